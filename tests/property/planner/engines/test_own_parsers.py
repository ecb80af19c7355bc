"""Engines' own parsers take what is written for them, and derive from it what the plan says."""

from __future__ import annotations

from itertools import islice

import pytest

from planner.parsers.client import PACKAGES, answers, case_of, faults, interpreter
from tests.counts import tries
from tests.property.planner.engines.published_plans import published_plans
from tests.property.planner.engines.random_plans import random_plans

WANTED = tries(20, 120)
"""Random plans of each engine; `benchmarks/round_trip.py` asks about as many as are wanted."""
PUBLISHED = {"megatron": 50, "megatron-bridge": 130, "torchtitan": 15, "accelerate": 15, "deepspeed": 25}
"""Published layouts that an engine can be told, at least."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(PACKAGES))
def test_an_engine_derives_the_plan_from_what_is_written(engine: str) -> None:
    """Random legal layouts of several models, precisions and GPUs, and those that people have run."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"{PACKAGES[engine]} is not installed")
    published = published_plans(engine)
    assert len(published) >= PUBLISHED[engine]
    told = [*published, *islice(random_plans(engine, 2), WANTED)]
    assert [one.faults for one in told if one.faults] == []
    cases = [case_of(one.contract, one.files, one.facts, one.gpu) for one in told]
    elsewhere = {**cases[0], "gpus": 2 * cases[0]["gpus"]}
    *given, other = answers(engine, [*cases, elsewhere], python, timeout_s=600)
    differs = [(said, one.files) for one, said in zip(told, given, strict=True) if faults(one.facts, said)]
    assert differs == []
    assert faults(told[0].facts, other)  # on twice the GPUs it is another plan, and that is seen
