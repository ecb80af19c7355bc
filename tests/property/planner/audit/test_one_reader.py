"""What an audit prices is what the contract of the engine reads: there is no second spelling of a default."""

from itertools import islice

import pytest

from tests.property.planner.audit.launch_files import ENGINES, launch_files

FILES = 20
"""Of every engine; `benchmarks/one_reader.py` tries 200."""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_audit_prices_what_the_contract_reads(engine):
    files = list(islice((each for each in launch_files(engine, "suite") if not each.refused), FILES))
    assert {each.reading.family.engine for each in files} == {engine}
    assert [(each.differences, each.texts) for each in files if each.differences] == []
