"""Where there is no plan, each kind of way out is offered where it helps, and what is offered gives a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration
from planner.questions.flags import FLAG_OF_FIELD, Flags
from planner.questions.training import understand
from planner.search.best_first import has_layout
from planner.search.infeasible import Infeasible
from planner.search.search import search

CAL = load_calibration()
CARD = """
[[gpus]]
name = "my-card"
memory_bytes = "24 GiB"
memory_bandwidth_bytes_per_s = "936 GB/s"
peak_flop_per_s = { bf16 = "71 TFLOP/s" }
"""
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
    "a card of fine-tuners": (
        Flags(model="8b", gpus="1", gpu="rtx-4090"),
        ("--adapter qlora --for any",),
    ),
    "machines of four": (Flags(model="8b", gpus="2", gpu="a100-pcie-40gb"), ("--gpus 8",)),
    "half precision on V100": (
        Flags(model="8b", gpus="2", gpu="v100-sxm-16gb", precision="fp16"),
        ("--gpu h200-sxm",),
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


def test_a_card_of_ones_own_has_ways_out_too(tmp_path: Path) -> None:
    """It is in no catalog, so that none is like it: more of it, the host's memory, adapters."""
    file = tmp_path / "mine.toml"
    file.write_text(CARD, encoding="utf-8")
    answer = search(understand(Flags(model="70b", cluster=str(file))).request, CAL)
    assert isinstance(answer, Infeasible)
    assert answer.nearest


def _with(flags: Flags, words: str) -> Flags:
    """The question with these flags beside its own."""
    fields = {flag: field for field, flag in FLAG_OF_FIELD.items()}
    names, values = words.split()[::2], words.split()[1::2]
    return replace(flags, **{fields[name]: value for name, value in zip(names, values, strict=True)})
