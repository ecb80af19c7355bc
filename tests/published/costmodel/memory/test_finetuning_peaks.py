"""Peak memory of fine-tuning with adapters, quantised bases and offloading against published tables.

`finetuning_peaks.csv`, every layer recomputed, one row a published peak:

- fsdp_qlora: AnswerDotAI/fsdp_qlora benchmarks_03_2024.md, two RTX 3090 or 4090, reserved memory; rank,
  dropout, pure bf16 from train.py. Its adapters leave out attention's output.
- qwen: QwenLM/Qwen README, one A100, batch 1; rank and dropout from finetune.py. Taken as reserved, in decimal
  GB: it does not say which, and its table of inference beside it is decimal.
- trl: huggingface/trl#6845 and #6846, eight H100, context parallelism. Of 0.6B at 1M tokens both peaks of
  huggingface/accelerate#4175, without and with offloaded inputs. Parameters of 30B are taken as offloaded:
  its state at 16 bytes a parameter is larger than its peak. Its 32B ran with a patched feed-forward that
  goes through the tokens in parts, which nothing here says, and is left out.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from pathlib import Path

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter
from costmodel.updates.offload import parse_offload
from topology.base.units import GB, GIB

with Path(__file__).with_name("finetuning_peaks.csv").open(newline="", encoding="utf-8") as file:
    ROWS = tuple(csv.DictReader(file))
UNITS = {"GB": GB, "GiB": GIB}
HELD_LOGITS = 18
"""Bytes of a logit in sixteen bits, its copy in fp32, its log-softmax, and the gradients of both."""
SIZES = {  # config.json of Qwen/Qwen-7B, Qwen/Qwen-14B, 01-ai/Yi-34B
    "qwen-7b": {"vocab_size": 151936, "qkv_bias": True},
    "qwen-14b": {
        "vocab_size": 152064, "qkv_bias": True, "num_layers": 40, "hidden_size": 5120,
        "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13696,
    },
    "yi-34b": {
        "vocab_size": 64000, "num_layers": 60, "hidden_size": 7168, "num_attention_heads": 56,
        "num_key_value_heads": 8, "intermediate_size": 20480,
    },
}  # fmt: skip


def spec_of(name: str) -> ModelSpec:
    """A model of the catalog, or one of the sizes above in the shape of Llama 2."""
    sizes = SIZES.get(name)
    return model(name) if sizes is None else dataclasses.replace(model("llama-2-7b"), name=name, **sizes)


def predicted_bytes(row: dict[str, str]) -> float:
    """What the row's source prints, of the one stage: what the allocator hands out or, reserved, holds."""
    spec = spec_of(row["model"])
    dp, cp, microbatch = int(row["dp"]), int(row["cp"]), int(row["microbatch_size"])
    layout = ParallelLayout(
        dp=dp, cp=cp, cp_kind="allgather" if cp > 1 else "ring", zero_stage=int(row["zero_stage"]),
        shard_degree=dp * cp if row["zero_stage"] == "3" else 1, microbatch_size=microbatch, recompute="full",
    )  # fmt: skip
    job = TrainingJob(
        sequence_length=int(row["sequence_length"]),
        global_batch_size=microbatch * dp,
        optimizer=row["optimizer"],
        adapter=parse_adapter(row["adapter"]) if row["adapter"] else None,
        offload=parse_offload(row["offload"])[0] if row["offload"] else None,
    )
    layers = tuple(run.count for run in layer_runs(spec))
    profile = stack(row["stack"])
    if (
        row["source"] == "fsdp_qlora"
    ):  # its loop holds the model's output, with logits in fp32, to the next step
        held = dataclasses.replace(profile.memory, loss_bytes_per_logit=HELD_LOGITS)
        profile = dataclasses.replace(profile, memory=held)
    (stage,) = memory_by_stage(Workload(model=spec, job=job, stack=profile), layout, [layers], [layers])
    reserved = profile.memory.fragmentation if row["what"] == "reserved" else 1.0
    return stage.allocated_bytes * reserved


def errors(source: str = "") -> list[float]:
    """Predicted over published, less one."""
    rows = [row for row in ROWS if source in ("", row["source"])]
    return [predicted_bytes(row) / (float(row["peak"]) * UNITS[row["unit"]]) - 1 for row in rows]


def test_published_peaks_of_fine_tuning_are_met_within_eight_percent_in_the_median() -> None:
    """And no step by a fifth: LoRA of 7B with its parameters in host memory is 19 % too low."""
    found = errors()
    assert statistics.median(abs(error) for error in found) < 0.08
    steps = [error for error, row in zip(found, ROWS, strict=True) if not loads_at_its_peak(row)]
    assert max(abs(error) for error in steps) < 0.20
    assert (len(found), len(steps)) == (33, 31)


def loads_at_its_peak(row: dict[str, str]) -> bool:
    """Whether a peak is of loading: of 512 tokens, 10.24 GiB where 2,048 take 10.22; 4.98 where they take 5.21."""
    return row["source"] == "fsdp_qlora" and row["sequence_length"] == "512"


def test_a_step_needs_less_than_the_loading_that_peaks() -> None:
    """What is published of a run that peaks before its first step is a bound of the step."""
    found = [predicted_bytes(row) / (float(row["peak"]) * GIB) for row in ROWS if loads_at_its_peak(row)]
    assert len(found) == 2
    assert all(0.7 < ratio < 1.0 for ratio in found)


@pytest.mark.parametrize(("source", "median"), [("fsdp_qlora", 0.08), ("qwen", 0.08), ("trl", 0.09)])
def test_each_source_is_met(source: str, median: float) -> None:
    """No source alone carries the median."""
    assert statistics.median(abs(error) for error in errors(source)) < median


def test_offloading_inputs_saves_what_was_published() -> None:
    """0.6B at 1M tokens: 7.1 GB of 7.5 GB of inputs (huggingface/accelerate#4175)."""
    whole, away = (
        predicted_bytes(row)
        for row in ROWS
        if row["model"] == "qwen3-0.6b" and row["sequence_length"] == "1048576"
    )
    assert whole - away == pytest.approx(7.1 * GB, rel=0.03)
