"""Advice keeps what a file trains: of every engine, whatever its files and whatever the better layout is."""

from __future__ import annotations

from itertools import islice

import pytest

from planner.audit.contract_reading import PADDED, contract_of, words_between, words_of
from planner.audit.read import read_texts
from planner.audit.spelling import spelled_words
from planner.engines.contract import read
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import is_numeric
from tests.property.planner.engines.random_plans import random_plans

WANTED = 20
"""Pairs of plans of each engine."""
OTHERWISE = {
    "stack.dropout": (True, False), "stack.gradient_reduce_bytes": (2.0, 4.0), "job.global_batch_size": (96, 48),
    "job.precision": ("fp16", "fp8"), "stack.gradient_bytes": (2.0, 4.0), "stack.optimizer_bytes": (6.0, 12.0),
}  # fmt: skip
"""What another plan may train, and advice must not take over."""


@pytest.mark.parametrize("engine", [name for name in CONTRACTS if name != "meshplan"])
def test_no_word_of_advice_changes_what_is_trained(engine: str) -> None:
    """Read back with the words that are proposed, and without those to take away, numerics are the same."""
    plans = random_plans(engine, "advice")
    proposed = 0
    for told, other in islice(zip(plans, plans, strict=False), WANTED):
        texts = {name: text for name, text in told.files.items() if text.strip()}
        reading = read_texts(texts)
        contract = contract_of(reading)
        if contract is None or contract.engine != engine:
            continue
        after = {
            **told.facts,
            **{name: said for name, said in other.facts.items() if name[:6] in ("layout", "split.")},
        }
        for number, (name, values) in enumerate(OTHERWISE.items()):
            if name in after:
                after[name] = values[number % 2]
        between = words_between(reading, told.facts, after)
        if between is None:
            continue
        said, gone = between
        given = words_of(reading, contract)
        left = {
            name: value
            for name, value in given.items()
            if contract.spellings[name].name not in {*gone, *said}
        }
        was, will = read(contract, given), read(contract, {**left, **said})
        numeric = {name: value for name, value in was.fields.items() if is_numeric(name) and name != PADDED}
        assert {name: will.fields.get(name, value) for name, value in numeric.items()} == numeric
        spelled = spelled_words(reading, said, gone)
        assert not any("dropout" in word or "grads-in" in word or "reduce-in" in word for word in spelled)
        assert not any(
            word.startswith("without ") and " " in word.removeprefix("without ") for word in spelled
        )
        proposed += bool(said)
    assert proposed or engine not in ("megatron-lm", "torchtitan")
