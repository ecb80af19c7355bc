"""A given layout that is tight is told with the fastest switch with which it fits."""

from __future__ import annotations

import pytest

from app.reports.plan import estimate_answer
from costmodel.kernels.tables import load_calibration
from costmodel.memory.fit import fit_of, fit_text
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.easing import WITH
from planner.search.given_layout import plan_of_layout

CAL = load_calibration()
LAYOUTS = {
    "no switch is needed": ({"gpus": "64"}, ("tp=8", "pp=4"), ""),
    "the optimizer waits on the host": ({"gpus": "64"}, ("tp=4", "pp=4"), "--offload"),
    "it is recomputed": ({"gpus": "64", "offload": "optimizer"}, ("tp=2", "pp=8"), "--set"),
    "state is shared": ({"gpus": "64"}, ("tp=8", "pp=4", "zero_stage=0"), ""),
    "nothing helps": ({"gpus": "8"}, ("tp=8",), ""),
}


def given(words: dict[str, str], settings: tuple[str, ...]) -> Plan:
    """The plan of a layout of 70B."""
    found = plan_of_layout(understand(Flags(model="70b", settings=settings, **words)).request, CAL)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(("words", "settings", "kind"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_switch_that_is_named_delivers_what_it_promises(
    words: dict[str, str], settings: tuple[str, ...], kind: str
) -> None:
    """Applied and judged again it fits, with the chance of OOM of the note."""
    plan = given(words, settings)
    notes = [text for text in plan.assumptions if text.startswith(WITH)]
    if fit_of(plan.estimate.out_of_memory_chance) == "fits":
        assert (notes, kind) == ([], "")
        return
    assert bool(notes) == bool(kind)
    for note in notes:
        flag, value = note.removeprefix(WITH).partition(":")[0].split()
        assert flag == kind
        eased = (
            given({**words, "offload": value}, settings)
            if flag == "--offload"
            else given(words, (*(one for one in settings if one.split("=")[0] not in value), value))
        )
        chance = eased.estimate.out_of_memory_chance
        assert fit_of(chance) == "fits"
        assert fit_text(chance) in note
        assert note in str(estimate_answer(plan).sections[-1])
