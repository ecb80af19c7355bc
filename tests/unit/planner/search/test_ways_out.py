"""Where there is no plan, each kind of way out is offered where it helps, and what is offered gives a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from planner.questions.flags import FLAG_OF_FIELD, Flags
from planner.questions.training import understand
from planner.search.best_first import has_layout
from planner.search.infeasible import Infeasible
from planner.search.search import search

CAL = load_calibration()
QUESTIONS = {
    "70B on half a node": (
        Flags(model="70b", gpus="4"),
        ("--gpus 24", "--adapter lora --for any"),
    ),
    "long sequences": (
        Flags(model="70b", gpus="16", sequence_length="65536"),
        ("--gpu h200-sxm", "--gpus 24", "--offload optimizer"),
    ),
    "8B on one": (
        Flags(model="8b", gpus="1"),
        ("--gpu b200-sxm", "--gpus 3", "--offload optimizer", "--adapter lora --for any"),
    ),
    "MoE on a few nodes": (
        Flags(model="deepseek-v3", gpus="64"),
        ("--gpu b300-sxm", "--gpus 192", "--offload optimizer", "--adapter lora --for any"),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_way_out_is_offered_and_leads_out(name: str) -> None:
    """More GPUs, larger ones of the same kind of machine, the host's memory, adapters: as flags that work."""
    flags, expected = QUESTIONS[name]
    answer = search(understand(flags).request, CAL)
    assert isinstance(answer, Infeasible)
    offered = [change.flag for change in answer.nearest]
    assert set(expected) <= set(offered)
    for words in offered:
        assert has_layout(understand(_with(flags, words)).request, CAL), words


def _with(flags: Flags, words: str) -> Flags:
    """The question with these flags beside its own."""
    fields = {flag: field for field, flag in FLAG_OF_FIELD.items()}
    names, values = words.split()[::2], words.split()[1::2]
    return replace(flags, **{fields[name]: value for name, value in zip(names, values, strict=True)})
