"""What an audit prices is what the contract of the engine reads: there is no second spelling of a default."""

from itertools import islice

import pytest

from tests.property.planner.audit.launch_files import ENGINES, launch_files

RECIPE = "only the recipe states"
"""Files that leave a degree to a recipe which is not there are unpriced, and say so."""
FILES = 12
"""Of every engine; `benchmarks/one_reader.py` tries 200."""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_audit_prices_what_the_contract_reads(engine):
    files = list(islice(launch_files(engine, "suite"), FILES))
    assert {one.reading.family.engine for one in files} == {engine}
    judged = [one for one in files if not any(RECIPE in difference for difference in one.differences)]
    assert [(one.differences, one.texts) for one in judged if one.differences] == []
