"""Megatron-LM's contract: what is written reads back, in all the words that people have used."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model, models
from costmodel.models.rotary import RopeScaling
from costmodel.stack import stack
from planner.engines.contract import EngineReading, read, words_of_line, write
from planner.engines.fields import layout_facts, model_facts, stack_facts
from planner.engines.megatron_lm.contract import MEGATRON

UNSAYABLE = {"gemma-2-2b", "gemma-2-9b", "gemma-2-27b", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b",
             "gemma-3-270m", "kimi-k2", "kimi-k2.5", "kimi-k2-thinking", "minimax-m2", "smollm3-3b",
             "olmo-2-7b", "olmo-2-13b", "olmo-2-32b", "olmo-3-7b", "olmo-3-32b",
             *(name for name, spec in models().items() if spec.layer_pattern or spec.unmodelled)}  # fmt: skip


def read_line(line: str, num_gpus: int | None = None) -> EngineReading:
    """What a command line says."""
    return read(MEGATRON, words_of_line(MEGATRON, line.split()), num_gpus)


@pytest.mark.parametrize("name", sorted(set(models()) - UNSAYABLE))
def test_every_model_reads_back(name: str) -> None:
    """All that the catalog says of a model is in the words, or is what Megatron always does."""
    spec, layout = model(name), ParallelLayout(dp=4, zero_stage=1)
    job = TrainingJob(sequence_length=min(4096, spec.max_sequence_length), global_batch_size=64)
    facts: dict[str, Any] = {
        **layout_facts(layout), **model_facts(spec), **stack_facts(stack("megatron-core")),
        "split.layers": (spec.num_layers,), "split.recompute": (0,),
        **{f"job.{f.name}": getattr(job, f.name) for f in dataclasses.fields(job)},
    }  # fmt: skip
    words = write(MEGATRON, facts)
    found = read(MEGATRON, words, 4)
    told = {name: value for name, value in found.fields.items() if not name.startswith(("stack.", "recipe."))}
    assert (found.unknown, found.wrong, told) == ((), (), {name: facts[name] for name in told})
    assert {name for name in facts if name.startswith(("model.", "layout."))} <= set(told)


@pytest.mark.parametrize("name", sorted(UNSAYABLE))
def test_a_model_that_cannot_be_told_reads_back_as_another(name: str) -> None:
    """The difference is seen in the fields, not in a list of names."""
    facts = {
        **layout_facts(ParallelLayout()), **model_facts(model(name)), **stack_facts(stack("megatron-core")),
        "split.layers": (model(name).num_layers,), "split.recompute": (0,), "job.precision": "bf16",
        "job.global_batch_size": 8, "job.sequence_length": 4096,
    }  # fmt: skip
    found = read(MEGATRON, write(MEGATRON, facts), 1).fields
    assert any(found[field] != facts[field] for field in facts if field.startswith("model."))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--model-parallel-size 8", {"layout.tp": 8}),
        (
            "--num-layers 96 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            {"layout.pp": 4, "layout.virtual_stages": 8, "layout.schedule": "interleaved"},
        ),
        ("--checkpoint-activations --num-layers 4", {"layout.recompute": "full", "split.recompute": (4,)}),
        ("--recompute-activations", {"layout.recompute": "selective"}),
        (
            "--activations-checkpoint-method uniform --num-layers 6 --pipeline-model-parallel-size 2",
            {"layout.recompute": "full", "split.recompute": (3, 3)},
        ),
        (
            ("--num-layers 6 --pipeline-model-parallel-size 2 --recompute-granularity full "
            "--recompute-method block --recompute-num-layers 2"),
            {"split.layers": (3, 3), "split.recompute": (2, 2)},
        ),
        (
            "--num-layers 61 --pipeline-model-parallel-size 16 --pipeline-model-parallel-layout Et*3|(tt|)*29|mL",
            {"layout.virtual_stages": 2, "split.layers": (3, *(2,) * 29, 0, 0)},
        ),
        (
            ("--num-layers 126 --pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 1 "
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"),
            {"layout.virtual_stages": 8, "split.layers": (0, *(1,) * 126, 0)},
        ),
        (
            "--num-layers 14 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2",
            {"split.layers": (2, 4, 4, 4)},
        ),
        ("--use-custom-fsdp --use-distributed-optimizer", {"layout.zero_stage": 3}),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            {"layout.zero_stage": 2},
        ),
        ("--fp8-format hybrid --bf16", {"job.precision": "fp8", "recipe.fp8_recipe": "delayed"}),
        ("--fp8-format=e4m3 --fp8-recipe=mxfp8", {"job.precision": "mxfp8"}),
        ("--num-experts 8 --tensor-model-parallel-size 4", {"layout.expert_tp": 4}),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", {"stack.dispatches_once_per_node": True}),
        ("--hidden-size 4096 --swiglu", {"model.intermediate_size": 10880, "model.gated_mlp": True}),
        ("--hidden-size 4096 --num-attention-heads 32", {"model.head_dim": 128, "model.num_key_value_heads": 32}),
        (
            ("--position-embedding-type yarn --rotary-scaling-factor 32 --max-position-embeddings 131072 "
            "--no-yarn-correction-range-round-to-int"),
            {"model.rotary.scaling": RopeScaling(
                kind="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False)},
        ),
        ("--overlap-grad-reduce", {"stack.gradient_overlap": True}),
        ("--cp-comm-type a2a --context-parallel-size 2", {"layout.cp_kind": "ulysses", "layout.cp": 2}),
    ],
)  # fmt: skip
def test_words_of_all_years_are_read(line: str, told: dict[str, Any]) -> None:
    """Aliases, older flags, and what follows from several of them."""
    found = read_line(line)
    assert ({name: found.fields.get(name) for name in told}, found.unknown, found.wrong) == (told, (), ())


def test_what_is_stated_is_kept_apart_from_what_the_engine_assumes() -> None:
    """A field is stated where a word of the file decides it, and the word is named."""
    found = read_line(
        "pretrain_gpt.py --tensor-model-parallel-size 4 --micro-batch-size 2 --my-own-flag x", 16
    )
    assert found.stated["layout.tp"] == 4
    assert (found.assumed["layout.pp"], found.assumed["layout.dp"]) == (1, 4)
    assert found.stated["job.global_batch_size"] == 8
    assert found.words_of["layout.tp"] == ("--tensor-model-parallel-size",)
    assert found.unknown == ("--my-own-flag",)


@pytest.mark.parametrize(
    "line",
    [
        "--tensor-model-parallel-size many",
        "--pipeline-model-parallel-size 0 --num-layers 4",
        "--pipeline-model-parallel-layout (((((tt|)*999999)*999999)*999999)*999999)",
        "--num-layers 999999999999 --pipeline-model-parallel-size 999999999",
        "--norm-epsilon nan",
        "--moe-layer-freq __import__('os').system('true') --num-experts 8",
        "--cp-comm-type telepathy",
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_else_is_lost(line: str) -> None:
    """No value of a stranger's file ends the reading of it."""
    found = read_line(f"{line} --seq-length 4096")
    assert found.stated["job.sequence_length"] == 4096
    assert found.wrong or "split.layers" not in found.fields


def test_torchs_fsdp_has_no_buffers_of_gradients_beside_the_loss() -> None:
    """Gradients are torch's own, made in the backward (megatron/core/distributed/torch_fully_sharded_data_parallel.py)."""
    sharded = read_line("--use-torch-fsdp2 --ckpt-format torch_dist --bf16").stated
    assert (sharded["layout.zero_stage"], sharded["stack.frees_loss"]) == (3, True)
    for words in ("--use-distributed-optimizer", "--use-megatron-fsdp --ckpt-format fsdp_dtensor"):
        assert "stack.frees_loss" not in read_line(f"{words} --bf16").stated
