"""Which plans the executor multiplies in eight bits, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter
from planner.rules.check import check
from topology.builders import default_cluster

ODD = "odd"
TP = {"tp": 8, "sequence_parallel": True}


def said(
    name: str, layout: dict[str, Any], *, precision: str = "fp8", gpu: str = "b200-sxm", **job: Any
) -> dict[str, str]:
    """What each broken rule of the executor says of a layout."""
    asked = TrainingJob(**{"sequence_length": 4096, "global_batch_size": 64, "precision": precision, **job})
    odd = {"intermediate_size": 14336 + 64} if name == ODD else {}
    spec = replace(model("llama-3.1-8b" if odd else name), **odd)
    cluster = default_cluster(gpu, 8)
    found = check(
        spec, cluster, asked, stack("meshplan"), replace(ParallelLayout(), **layout), engine="meshplan"
    )
    return {v.rule: f"{v.message}; {v.hint}" for v in found if v.rule.startswith("meshplan-")}


@pytest.mark.parametrize("layout", [{"dp": 8, "zero_stage": 3}, TP])
def test_dense_models_are(layout: dict[str, Any]) -> None:
    """Under any layout whose parts are whole units of sixteen."""
    assert said("llama-3.1-8b", layout) == {}


@pytest.mark.parametrize(
    ("name", "layout", "more", "rule", "words"),
    [
        ("llama-3.1-8b", {"dp": 8}, {"precision": "mxfp8"}, "precision", "in eight bits by rows (fp8)"),
        ("llama-3.1-8b", {"dp": 8}, {"precision": "fp16"}, "precision", "the executor multiplies in bf16"),
        ("mixtral-8x7b", {"dp": 8}, {}, "precision", "routed experts in sixteen bits; use --precision bf16"),
        ("llama-3.1-8b", {"dp": 8}, {"adapter": parse_adapter("lora:r=16")}, "precision", "adapters"),
        (
            "llama-3.1-8b",
            {"cp": 8},
            {"sequence_length": 4032},
            "tokens-of-eight-bits",
            "tokens of a microbatch 4032 % (16·cp 8) = 64, must be 0 for fp8; use a smaller cp",
        ),
        (
            ODD,
            TP,
            {},
            "columns-of-eight-bits",
            "columns 64 % (16·tp 8) = 64, must be 0 for fp8; use a smaller tp, or --precision bf16",
        ),
    ],
)
def test_others_are_refused_with_their_numbers(
    name: str, layout: dict[str, Any], more: dict[str, Any], rule: str, words: str
) -> None:
    """By a rule of the search, which every command asks."""
    found = said(name, layout, **more)
    assert f"meshplan-{rule}" in found
    assert words in found[f"meshplan-{rule}"]
