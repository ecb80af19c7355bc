"""No input is a defect: hostile files, cells, flags, variables and links are answered or refused.

A part of what `benchmarks/fuzz.py` does, always with the same inputs: few of each surface in the quick run,
five hundred in the whole one, forty times as many in the nightly one.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest

from tests.counts import tries
from tests.property.fuzz.campaign import Tally, run
from tests.property.fuzz.mutate import mutated_tree
from tests.property.fuzz.surface import Box, Surface
from tests.property.fuzz.surfaces import SURFACES
from topology.base.errors import InputError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="memory and what is opened are measured on Linux"
)

TOTAL = tries(500, 21_000)
FEW = tries(6, 60)
"""Mutated inputs of each surface in the quick run; slower surfaces take their share of that."""
WHOLE_CORPUS = 20
"""Weight from which the quick run has a surface's whole corpus."""
BY_NAME = {surface.name: surface for surface in SURFACES}


def told(tally: Tally) -> list[str]:
    """Every kind of fault in one line: how often, and its smallest input."""
    return [
        f"{count} × {fault.kind}: {fault.what[:200]} ({fault.place}); {fault.story[:200]}; input {fault.text[:300]!r}"
        for count, fault in tally.smallest().values()
    ]


@pytest.mark.parametrize("name", [surface.name for surface in SURFACES if surface.weight > 1])
def test_a_few_hostile_inputs_are_answered_or_refused(name: str) -> None:
    """The start of every surface's inputs, from the corpus on."""
    surface = BY_NAME[name]
    count = min(FEW, 4 * surface.weight)
    tally = run(
        surface, range(len(surface.corpus) + count) if surface.weight >= WHOLE_CORPUS else range(count)
    )
    assert "\n".join(told(tally)) == ""
    assert tally.inputs > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_hostile_input_is_answered_or_refused(name: str) -> None:
    """Exit code 3 never, less than 10 s and 1 GiB, no NaN, nothing touched unasked; thousands of inputs in all.

    The corpus of all but the slowest is in the quick run.
    """
    surface = BY_NAME[name]
    tried = len(surface.corpus) if surface.weight >= WHOLE_CORPUS else 0
    share = round(TOTAL * surface.weight / sum(each.weight for each in SURFACES))
    end = max(share, tried + min(FEW, surface.weight), len(surface.corpus))
    tally = run(surface, range(tried, end), seed=2, jobs=2)
    assert "\n".join(told(tally)) == ""
    assert tally.inputs == end - tried


# -- the harness itself: what it is to find, it finds ----------------------------------------------------------


def _spin() -> None:
    while True:
        with contextlib.suppress(Exception):  # which must not hide it
            sum(range(10**6))


def _refuse() -> None:
    raise InputError("a", "b", "c")


def _broken(what: str, box: Box) -> object:
    """Break the invariant in the way that the input names."""
    breaks: dict[str, Callable[[], object]] = {
        "defect": lambda: {}["key"],
        "slow": _spin,
        "memory": lambda: bytearray(2**31),
        "read": (box.folder / "canary" / "secret.toml").read_text,
        "write": lambda: (box.folder.parent.parent / "outside").write_text(what),
        "run": lambda: subprocess.run(["true"], check=True),
        "death": lambda: os._exit(9),
        "refused": _refuse,
    }
    breaks.get(what, lambda: None)()
    return {"nan": {"step_s": float("nan")}, "negative": [{"step_s": -1.0}]}.get(
        what, {"step_s": 1.0, "error": -0.1}
    )


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        ("defect", ["KeyError"]), ("memory", ["memory"]), ("read", ["touched"]), ("write", ["touched"]), ("run", ["touched"]),
        ("death", ["death"]), ("nan", ["answer"]), ("negative", ["answer"]), ("refused", []), ("fine", []),
        ("slow", ["slow"]),
    ],
)  # fmt: skip
def test_the_harness_sees_what_breaks(what: str, kinds: list[str]) -> None:
    """A surface that breaks the invariant on purpose is caught, one that keeps it is not; the next input still runs."""
    surface = Surface("broken", lambda *_: "fine", _broken, corpus=(what, "fine"))
    tally = run(surface, range(2), limit_s=0.5)
    assert sorted({fault.kind for fault in tally.faults}) == kinds
    assert (tally.inputs, tally.answered) == (2, 1 if kinds or what == "refused" else 2)


def test_an_input_is_known_by_its_number() -> None:
    """The same surface, seed and number give the same input; another seed gives another."""
    for surface in SURFACES:
        surface.ready() if surface.weight > 100 else None
        if "plan" in surface.name:
            continue
        index = len(surface.corpus) + 3
        assert surface.input_of(1, index) == surface.input_of(1, index)
        assert len({surface.input_of(1, index + step) for step in range(20)}) > 10


def test_a_mutated_tree_leaves_its_seed_alone() -> None:
    """Mutations work on copies, so that inputs do not depend on those before them."""
    tree = {"a": [1, {"b": "c"}]}
    before = json.dumps(tree)
    assert any(mutated_tree(tree, Random(seed), []) != tree for seed in range(50))
    assert json.dumps(tree) == before
