"""Which plans the executor multiplies in eight bits, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import Routing
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter
from planner.plan import Problem
from planner.rules.check import check
from topology.builders import default_cluster

ODD, ODD_EXPERTS, DENSE_LATENT = "odd", "odd experts", "dense with latent attention"
DENSE = {
    "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0, "shared_expert_size": 0,
    "num_dense_layers": 0, "router_bias": False, "routing": Routing(),
}  # fmt: skip
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    ODD: ("llama-3.1-8b", {"intermediate_size": 14336 + 64}),
    ODD_EXPERTS: ("mixtral-8x7b", {"moe_intermediate_size": 14336 + 16}),
    DENSE_LATENT: ("deepseek-v3", DENSE),
}
TP = {"tp": 8, "sequence_parallel": True}


def said(
    name: str, layout: dict[str, Any], *, precision: str = "fp8", gpu: str = "b200-sxm", **job: Any
) -> dict[str, str]:
    """What each broken rule of the executor says of a layout."""
    asked = TrainingJob(**{"sequence_length": 4096, "global_batch_size": 64, "precision": precision, **job})
    named, changed = CHANGED.get(name, (name, {}))
    spec = replace(model(named), **changed)
    cluster = default_cluster(gpu, 8)
    found = check(
        Problem(
            case=Case(
                model=spec, cluster=cluster, job=asked, stack=stack("meshplan"), cal=load_calibration()
            ),
            engine="meshplan",
        ),
        replace(ParallelLayout(), **layout),
    )
    return {v.rule: f"{v.message}; {v.hint}" for v in found if v.rule.startswith("meshplan-")}


@pytest.mark.parametrize("gpu", ["h100-sxm", "mi355x"])
def test_gpus_whose_units_read_the_same_format_are_taken(gpu: str) -> None:
    """AMD's from CDNA 4 on, as NVIDIA's."""
    assert said("llama-3.1-8b", {"dp": 8, "zero_stage": 3}, gpu=gpu) == {}


def test_latent_attention_is_whole_without_tensor_parallelism() -> None:
    """Nothing is a sum of parts then, and a model with heads' own keys has none to begin with."""
    assert "meshplan-partial-sums-of-eight-bits" not in said(DENSE_LATENT, {"dp": 8})
    assert "meshplan-partial-sums-of-eight-bits" not in said("llama-3.1-8b", TP)
    assert "meshplan-partial-sums-of-eight-bits" not in said(DENSE_LATENT, TP, precision="bf16")


ADAPTERS = {
    "lora:r=8": (
        "mixtral-8x7b",
        {},
        "adapters of routed experts: the executor has none; use targets=",
    ),
    "lora:r=16,base=fp8": (
        "llama-3.1-8b",
        {},
        "base=fp8, dropout=0: weights have sixteen bits, nothing is dropped; leave base and dropout out",
    ),
    "lora:r=16,dropout=0.1": (
        "llama-3.1-8b",
        {},
        "dropout=0.1: weights have sixteen bits, nothing is dropped",
    ),
    "lora:r=16": (
        "llama-3.1-8b",
        {"optimizer": "muon"},
        "an adapter with muon: it is trained by AdamW; use --set",
    ),
}


@pytest.mark.parametrize("words", ADAPTERS)
def test_adapters_that_are_not_trained_so_are_refused(words: str) -> None:
    """Of experts, over a narrow base, with dropout, by another optimizer: each by its own words."""
    name, job, expected = ADAPTERS[words]
    found = said(name, {"dp": 8}, precision="bf16", adapter=parse_adapter(words), **job)
    assert expected in found["meshplan-adapted"], found


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
@pytest.mark.parametrize("layout", [{"dp": 8, "zero_stage": 3}, TP])
def test_dense_models_are(layout: dict[str, Any], precision: str) -> None:
    """Under any layout whose parts are whole units of sixteen, or blocks of thirty-two."""
    assert said("llama-3.1-8b", layout, precision=precision) == {}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("mixtral-8x7b", {"dp": 8, "ep": 8, "zero_stage": 1}),
        ("mixtral-8x7b", {"tp": 2, "dp": 4, "expert_tp": 2, "sequence_parallel": True}),
        ("deepseek-v3", {"dp": 8, "ep": 8, "zero_stage": 1}),
        ("gpt-oss-20b", {"dp": 8, "ep": 8, "zero_stage": 1}),
    ],
)
@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_routed_experts_are(name: str, layout: dict[str, Any], precision: str) -> None:
    """By rows or blocks, whole or cut, with latent attention that no rank cuts."""
    assert said(name, layout, precision=precision) == {}


def test_blocks_ask_for_more_than_rows() -> None:
    """What blocks of thirty-two refuse below, units of sixteen take."""
    assert said(ODD, {"tp": 4, "dp": 2, "sequence_parallel": True}) == {}
    assert said("llama-3.1-8b", {"cp": 8}, sequence_length=4224) == {}
    assert said(ODD_EXPERTS, {"tp": 2, "dp": 4, "sequence_parallel": True}) == {}


@pytest.mark.parametrize(
    ("name", "layout", "more", "rule", "words"),
    [
        (
            "llama-3.1-8b",
            {"dp": 8},
            {"precision": "nvfp4"},
            "precision",
            "in eight bits by rows (fp8) or blocks (mxfp8)",
        ),
        (
            "llama-3.1-8b",
            {"dp": 8},
            {"precision": "mxfp8", "gpu": "mi355x"},
            "block-scales",
            "mxfp8 on mi355x (cdna4): the executor's kernels want sm_100 or later; use --precision fp8",
        ),
        (
            ODD,
            {"tp": 4, "dp": 2, "sequence_parallel": True},
            {"precision": "mxfp8"},
            "columns-of-eight-bits",
            "columns 64 % (32·tp 4) = 64, must be 0 for mxfp8; use a smaller tp, or --precision bf16",
        ),
        (
            "llama-3.1-8b",
            {"cp": 8},
            {"precision": "mxfp8", "sequence_length": 4224},
            "tokens-of-eight-bits",
            "tokens of a microbatch 4224 % (32·cp 8) = 128, must be 0 for mxfp8; use a smaller cp",
        ),
        (
            ODD_EXPERTS,
            {"tp": 2, "dp": 4, "expert_tp": 2, "sequence_parallel": True},
            {"precision": "mxfp8"},
            "experts-of-eight-bits",
            "columns of an expert 14352 % (32·expert_tp 2) = 16, must be 0 for mxfp8; use a smaller expert_tp",
        ),
        (
            "mixtral-8x7b",
            {"dp": 8},
            {"precision": "mxfp8", "gpu": "h100-sxm"},
            "block-scales",
            "mxfp8 on h100-sxm (hopper): the executor's kernels want sm_100 or later; use --precision fp8",
        ),
        (
            "mixtral-8x7b",
            {"dp": 8},
            {"precision": "mxfp8", "gpu": "mi355x"},
            "block-scales",
            "mxfp8 on mi355x (cdna4)",
        ),
        (
            "mixtral-8x7b",
            {"dp": 8},
            {"gpu": "mi325x"},
            "precision",
            "the executor rounds to e4m3fn, mi325x multiplies e4m3fnuz; use --precision bf16",
        ),
        ("llama-3.1-8b", {"dp": 8}, {"precision": "fp16"}, "precision", "the executor multiplies in bf16"),
        (
            "mixtral-8x7b",
            {"dp": 8},
            {"gpu": "l40s"},
            "precision",
            "routed experts want compute capability 9 or 10 (torch's kernel), l40s has 8.9; use --precision",
        ),
        (
            ODD_EXPERTS,
            {"tp": 2, "dp": 4, "expert_tp": 2, "sequence_parallel": True},
            {},
            "experts-of-eight-bits",
            "columns of an expert 14352 % (16·expert_tp 2) = 16, must be 0 for fp8; use a smaller expert_tp",
        ),
        ("llama-3.1-8b", {"dp": 8}, {"adapter": parse_adapter("lora:r=16")}, "precision", "adapters"),
        (
            "llama-3.1-8b",
            {"dp": 8},
            {"gpu": "mi300x"},
            "precision",
            "the executor rounds to e4m3fn, mi300x multiplies e4m3fnuz; use --precision bf16",
        ),
        (
            "deepseek-v3",
            {**TP, "ep": 8},
            {},
            "partial-sums-of-eight-bits",
            "with tp 8: ranks would round parts of latent gradients",
        ),
        (
            DENSE_LATENT,
            TP,
            {},
            "partial-sums-of-eight-bits",
            "with tp 8: ranks would round parts of latent gradients; use tp = 1, or --precision bf16",
        ),
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


@pytest.mark.parametrize(
    ("name", "layout", "kind", "words"),
    [
        ("llama-3.1-8b", {"dp": 4, "tp": 2, "sequence_parallel": True}, "bf16", "tp·pp·cp·ep = 2·1·1·1"),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 1}, "bf16", "gradients as bf16 of ZeRO-1"),
        ("mixtral-8x7b", {"dp": 8, "zero_stage": 0}, "fp16", "mixtral-8x7b has experts"),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 0}, "fp16", ""),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 0}, "bf16", ""),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 0}, "int8", ""),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 0}, "powersgd:4", ""),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 2}, "powersgd:4", "gradients as powersgd:4 of ZeRO-2"),
    ],
)
def test_gradients_are_compressed_of_whole_dense_replicas(
    name: str, layout: dict[str, Any], kind: str, words: str
) -> None:
    """In every way, by dp alone; everything else says why."""
    found = said(name, layout, precision="bf16", gradient_compression=kind)
    assert words in found["meshplan-compressed"] if words else "meshplan-compressed" not in found
    assert "meshplan-compression" not in found
    late = said(name, {"dp": 8, "zero_stage": 0}, precision="bf16", local_steps="diloco:100")
    assert "local_steps = diloco:100: the executor is not told it" in late["meshplan-compression"]
