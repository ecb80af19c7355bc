"""Megatron-LM gets the plan, all of it, or the plan is refused with what it would become."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from planner.launch.targets import export_plan
from planner.plan import Plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError

PLAIN = ParallelLayout(dp=8, zero_stage=3)
HYBRID = ParallelLayout(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True)


def words_of(plan: Plan, **how: Any) -> list[str]:
    """Arguments of an exported shell array."""
    text = export_plan(plan, "megatron", **how).text
    return shlex.split(text[text.index("MEGATRON_ARGS=(") + 15 : text.rindex(")")])


def option(words: list[str], name: str) -> str:
    """Value that follows an option."""
    return words[words.index(name) + 1]


def test_degrees_batch_and_switches() -> None:
    """Each field of the layout under Megatron's name for it, and what is priced as on is switched on."""
    words = words_of(priced(HYBRID))
    assert {
        name: option(words, f"--{name}")
        for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "global-batch-size")
    } == {
        "tensor-model-parallel-size": "2",
        "pipeline-model-parallel-size": "2",
        "global-batch-size": "64",
    }
    switches = {"--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--tp-comm-overlap",
                "--overlap-grad-reduce", "--overlap-param-gather"}  # fmt: skip
    assert switches <= set(words)


def test_nothing_is_switched_on_that_is_not_priced() -> None:
    """The profile without overlap is the job without it."""
    words = words_of(priced(HYBRID, stack="megatron-core-noov"))
    assert [word for word in words if "overlap" in word] == []


def test_the_queue_of_kernels_is_ordered_where_overlap_needs_it() -> None:
    """Below Blackwell, with tensor or context parallelism, Megatron stops without that variable."""
    line = "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    layouts = {HYBRID: True, ParallelLayout(cp=2, dp=4, zero_stage=1): True, PLAIN: False}
    found = {x: line in export_plan(priced(x), "megatron").text.splitlines() for x in layouts}
    assert found == layouts
    assert line not in export_plan(priced(HYBRID, gpu="b200-sxm"), "megatron").text


def test_sharded_gradients_and_parameters_are_megatron_fsdp() -> None:
    """ZeRO-2 and ZeRO-3 have words where there is no pipeline, HSDP too."""
    words = words_of(priced(PLAIN))
    assert "--use-megatron-fsdp" in words
    assert option(words, "--data-parallel-sharding-strategy") == "optim_grads_params"
    partly = words_of(priced(dataclasses.replace(PLAIN, zero_stage=2, shard_degree=4)))
    assert option(partly, "--data-parallel-sharding-strategy") == "optim_grads"
    assert option(partly, "--num-distributed-optimizer-instances") == "2"


def test_uneven_stages_are_a_layout_string() -> None:
    """Embedding first, loss last, one letter a layer."""
    plan = priced(HYBRID, dataclasses.replace(model("llama-3.1-8b"), num_layers=5))
    one, two = plan.layers_of_stage
    layout = option(words_of(plan), "--pipeline-model-parallel-layout")
    assert layout == f"E{'t' * one}|{'t' * two}L"


@pytest.mark.parametrize("count", [1, 3])
def test_one_number_of_recomputed_layers_is_written_for_all_chunks(count: int) -> None:
    """Every rank recomputes that many of each chunk, and the plan says so."""
    plan = priced(HYBRID)
    plan = _again(plan, (count, count))
    words = words_of(plan)
    asked = ("--recompute-granularity", "--recompute-method", "--recompute-num-layers")
    assert [option(words, name) for name in asked] == ["full", "block", str(count)]


def _again(plan: Plan, recompute: tuple[int, ...]) -> Plan:
    """The same plan with so many layers recomputed, estimated anew."""
    from planner.search.verify import estimate_anew

    layout = dataclasses.replace(plan.layout, recompute="full")
    changed = dataclasses.replace(plan, layout=layout, recompute_of_stage=recompute)
    return estimate_anew(changed, plan.problem)


def test_a_number_for_each_rank_is_refused_with_its_price() -> None:
    """The fields, both costs, the way out; the nearest is written on demand, and says what it is."""
    plan = _again(priced(HYBRID), (3, 0))
    with pytest.raises(InputError, match=r"cannot be told this plan: split.recompute") as caught:
        export_plan(plan, "megatron")
    assert "(3, 0), there (3, 3)" in str(caught.value)
    assert "--for megatron" in str(caught.value)
    notes = export_plan(plan, "megatron", nearest=True).notes
    assert [note for note in notes if "the plan takes" in note and "the nearest" in note]


@pytest.mark.parametrize(
    ("layout", "name", "job", "limit"),
    [
        (ParallelLayout(tp=8), "llama-3.1-8b", {}, "sequence-parallel"),
        (ParallelLayout(dp=8, ep=8, zero_stage=1), "mixtral-8x7b", {"precision": "fp16"}, "fp16-experts"),
        (
            ParallelLayout(dp=8, tp=8, zero_stage=3, sequence_parallel=True),
            "llama-3.1-8b",
            {},
            "sharding-with-tensors",
        ),
        (ParallelLayout(cp=2, dp=4, zero_stage=1), "gpt-oss-20b", {}, "context-exchange"),
        (
            ParallelLayout(tp=2, dp=4, expert_tp=2, zero_stage=1, sequence_parallel=True),
            "gpt-oss-20b",
            {},
            "biased-experts",
        ),
        (
            ParallelLayout(
                pp=2, dp=8, ep=2, zero_stage=1, axis_order=("dp", "pp", "cp", "tp")
            ),
            "mixtral-8x7b",
            {},
            "order-with-experts",
        ),
        (ParallelLayout(dp=8, zero_stage=1), "gemma-2-2b", {}, "model"),
        (ParallelLayout(dp=8, zero_stage=1), "deepseek-v2", {}, "expert-groups"),
    ],
)  # fmt: skip
def test_what_megatron_cannot_run_is_refused_and_never_planned_for_it(
    layout: ParallelLayout, name: str, job: dict[str, Any], limit: str
) -> None:
    """The same limit is a rule of the search and a refusal of the export."""
    plan = priced(layout, name, **job)
    with pytest.raises(InputError, match=f"cannot run this plan: megatron-{limit}"):
        export_plan(plan, "megatron", nearest=True)
    with pytest.raises(AssertionError, match=f"megatron-{limit}"):
        priced(layout, name, engine="megatron", **job)


def test_a_plan_of_another_profile_is_refused() -> None:
    """What torchtitan takes says nothing of what Megatron-LM takes."""
    plan = priced(PLAIN, stack="torchtitan")
    with pytest.raises(InputError, match="--for megatron"):
        export_plan(plan, "megatron")


MODEL_FLAGS = ("--disable-bias-linear", "--add-qkv-bias", "--qk-layernorm", "--apply-layernorm-1p")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("llama-3.1-8b", {"--disable-bias-linear"}),
        ("qwen2.5-7b", {"--disable-bias-linear", "--add-qkv-bias"}),
        ("qwen3-8b", {"--disable-bias-linear", "--qk-layernorm"}),
        ("deepseek-v2-lite", {"--disable-bias-linear", "--qk-layernorm"}),
        ("gpt-3-175b", set()),
    ],
)
def test_the_model_of_the_plan(name: str, flags: set[str]) -> None:
    """Biases and norms of the family, not Megatron's defaults, and no dropout."""
    words = words_of(priced(HYBRID, name, sequence_length=2048))
    assert set(words) & set(MODEL_FLAGS) == flags
    assert (option(words, "--attention-dropout"), option(words, "--hidden-dropout")) == ("0", "0")


@pytest.mark.parametrize(
    ("name", "tokenizer_size", "tp"),
    [("llama-3.1-8b", 128_256, 8), ("qwen3-8b", 151_669, 1), ("qwen3-8b", 151_669, 8)],
)
def test_the_tokenizer_is_padded_to_the_vocabulary_of_the_model(
    name: str, tokenizer_size: int, tp: int
) -> None:
    """Megatron rounds up to a multiple of the argument times tp."""
    layout = ParallelLayout(tp=tp, sequence_parallel=tp > 1)
    words = words_of(priced(layout, name))
    multiple = int(option(words, "--make-vocab-size-divisible-by")) * tp
    assert -(-tokenizer_size // multiple) * multiple == model(name).vocab_size


MATHEMATICS = {
    "llama-3.1-8b": "--norm-epsilon 1e-05 --rotary-base 500000 --use-rope-scaling --rope-scaling-factor 8",
    "qwen3-8b": "--norm-epsilon 1e-06 --qk-layernorm --rotary-base 1000000",
    "nemotron-4-15b": "--apply-layernorm-1p --squared-relu --rotary-base 10000 --rotary-percent 0.5",
    "mixtral-8x7b": "--moe-router-score-function softmax --moe-router-topk 2 --rotary-base 1000000",
    "qwen3-30b-a3b": "--moe-router-score-function softmax --moe-router-topk 8",
    "deepseek-v3": "--moe-router-score-function sigmoid --moe-router-topk-scaling-factor 2.5 "
    "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-enable-expert-bias "
    "--rope-type yarn --rotary-scaling-factor 40 --mscale 1 --mscale-all-dim 1",
    "deepseek-v2-lite": "--moe-router-pre-softmax --rotary-scaling-factor 40 --mscale 0.707",
    "gpt-oss-20b": "--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7 "
    "--window-size 127,0 --window-attn-skip-freq 2 --softmax-type learnable --rotary-base 150000 "
    "--position-embedding-type yarn --yarn-original-max-position-embeddings 4096 --rotary-scaling-factor 32",
    "mistral-7b-v0.1": "--window-size 4095,0 --rotary-base 10000",
}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_what_the_model_computes(name: str) -> None:
    """Positions, norms, activation, windows and routing in Megatron's words, each with its value."""
    words = words_of(priced(PLAIN, name))
    pairs = {" ".join(words[i : i + 2]) for i in range(len(words))} | set(words)
    asked = MATHEMATICS[name].replace(" --", "\n--").split("\n")
    assert [option for option in asked if option not in pairs] == []


def test_a_router_without_groups_and_factor_has_no_word_of_them() -> None:
    """A word that says what the default does is one that older releases may refuse."""
    of_groups = ("--moe-router-topk-scaling-factor", "--moe-router-num-groups", "--moe-router-group-topk")
    assert set(of_groups).isdisjoint(words_of(priced(PLAIN, "qwen3-30b-a3b")))
    assert set(of_groups) <= set(words_of(priced(PLAIN, "deepseek-v3")))
