"""The first number is an upper bound: the search that follows finds nothing slower."""

import pytest

from costmodel.kernels.saved import calibration_for
from planner.analysis.first_look import first_look
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search

ASKED = {"model": "llama-3.1-8b", "gpus": "16", "global_batch_size": "256", "sequence_length": "8192"}


def request_of(**changed: str):
    """A question beside the first one."""
    return understand(Flags(**{**ASKED, **changed})).request


@pytest.fixture(scope="module")
def known() -> Plan:
    """The plan that stands."""
    found = search(request_of())
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": "32"},
        {"gpus": "64"},
        {"global_batch_size": "1024"},
        {"sequence_length": "4096"},
        {"gpu": "h200-sxm"},
    ],
    ids=str,
)
def test_the_best_plan_is_no_slower_than_the_first_look(known, changed):
    """And what is looked at is legal, fits, and is of the same layout but for its replicas."""
    request = request_of(**changed)
    look = first_look(known, request, calibration_for(request.cluster))
    best = search(request)
    assert look is not None
    assert isinstance(best, Plan)
    assert best.estimate.step_time_s <= look.estimate.step_time_s * (1 + 1e-9)
    assert (look.layout.tp, look.layout.pp, look.layout.cp) == (
        known.layout.tp,
        known.layout.pp,
        known.layout.cp,
    )
    assert look.layout.num_gpus == request.cluster.num_gpus


def test_another_model_or_pin_has_no_first_look(known):
    """Nothing is said where the layout that stands is not one of those that are searched."""
    other = request_of(model="llama-3.1-70b", gpus="64")
    assert first_look(known, other, calibration_for(other.cluster)) is None
    pinned = understand(Flags(**ASKED, settings=(f"layout.tp={2 * known.layout.tp}",))).request
    assert first_look(known, pinned, calibration_for(pinned.cluster)) is None
