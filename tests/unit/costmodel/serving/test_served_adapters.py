"""Adapters that requests name: what their buffers hold, what a step with them takes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.serving.adapters import adapters_s
from costmodel.serving.deployment import Deployment, ServingLayout, draft_of
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import kv_capacity_tokens, weights_bytes
from costmodel.serving.ops import linear_s
from costmodel.updates.adapters import Adapter, parse_adapter
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()


def deployed(name: str, adapter: Adapter | None = None, adapters: int = 0, *, tp: int = 1) -> Deployment:
    """One replica on H100."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster("h100-sxm", 8).hierarchy,
        layout=ServingLayout(tp=tp),
        stack=serving_stack("vllm"),
        adapter=adapter,
        adapters=adapters,
    )


def held(one: Deployment) -> float:
    """Bytes of weights that the same replica without adapters does not hold."""
    return weights_bytes(one) - weights_bytes(deployed(one.model.name, tp=one.layout.tp))


@pytest.mark.parametrize(
    ("targets", "of_a_rank"),
    [
        # Llama 3.1 8B: H 4,096, 32 query and 8 key/value heads of 128, F 14,336; A and B of q, k, v, o
        ("attention", 3 * 4096 + (4096 + 2 * 1024) + 4096 + 4096),
        # gate, up, down
        ("mlp", 2 * 4096 + 2 * 14336 + 14336 + 4096),
    ],
)
def test_buffers_hold_every_slot_at_the_rank(targets: str, of_a_rank: int) -> None:
    """32 layers of r·(k + n) numbers of two bytes for each product, as many times as there are slots."""
    one = deployed("8b", parse_adapter(f"lora:r=16,targets={targets}"), 8)
    assert held(one) == pytest.approx(8 * 32 * 2 * 16 * of_a_rank)


def test_buffers_are_those_of_peft_where_nothing_is_split() -> None:
    """PEFT counts 41,943,040 parameters of all linear layers of Llama 3.1 8B at rank 16."""
    assert held(deployed("8b", Adapter(rank=16), 1)) == pytest.approx(2 * 41_943_040)


def test_ranks_split_one_of_both_matrices() -> None:
    """B where outputs are split, A where inputs are: more than an eighth of it all on each of eight ranks."""
    whole, split = (held(deployed("8b", Adapter(rank=16), 4, tp=tp)) for tp in (1, 8))
    # q, k, v, gate and up keep A whole, o and down keep B whole
    kept = 4 * 32 * 2 * 16 * (3 * 4096 + 4096 + 2 * 4096 + 4096)
    assert split == pytest.approx(kept + (whole - kept) / 8)


def test_the_cache_pays_for_the_buffers() -> None:
    """Bytes of the buffers are tokens of the cache that are not there."""
    plain, adapted = deployed("8b"), deployed("8b", Adapter(rank=64), 16)
    lost = [
        kv_capacity_tokens(one, token_budget=2048, max_batch=256, context=2000) for one in (plain, adapted)
    ]
    per_token = 32 * 8 * 128 * 2 * 2
    assert (lost[0] - lost[1]) * per_token == pytest.approx(held(adapted), rel=1e-3)


def test_a_step_reads_the_adapters_that_its_tokens_name() -> None:
    """One token names one of them; many tokens nearly all, and never more; more slots are never faster."""
    m = np.array([1.0, 16.0, 4096.0])
    (run,) = layer_runs(model("8b"))
    few, many = (adapters_s(with_adapters(slots), run.kind, m) for slots in (1, 32))
    assert many[0] == pytest.approx(few[0])
    assert (many >= few).all()
    rate = deployed("8b").hierarchy.gpu.memory_bandwidth_bytes_per_s
    one_layer = held(with_adapters(1)) / 32
    assert (many[2] - few[2]) * rate == pytest.approx(31 * one_layer, rel=1e-3)


def with_adapters(slots: int) -> Deployment:
    """Llama 3.1 8B with so many adapters."""
    return deployed("8b", Adapter(rank=16), slots)


def test_without_adapters_nothing_changes_and_with_them_steps_are_longer() -> None:
    """Eight small kernels a layer and their bytes."""
    m = np.array([1.0, 64.0, 2048.0])
    plain, adapted = (linear_s(CAL, one, m, captured=True) for one in (deployed("8b"), with_adapters(8)))
    stack = serving_stack("vllm")
    assert (adapted - plain > 32 * 8 * stack.kernel_s).all()
    assert (linear_s(CAL, deployed("8b", Adapter(), 0), m, captured=True) == plain).all()


def test_a_drafter_has_none() -> None:
    """Adapters are of the model that is served."""
    drafted = Deployment(
        model=model("70b"), hierarchy=default_cluster("h100-sxm", 8).hierarchy, layout=ServingLayout(tp=8),
        stack=serving_stack("vllm"), draft_tokens=3, acceptance=0.7, drafter="eagle3", adapter=Adapter(), adapters=4,
    )  # fmt: skip
    draft = draft_of(drafted)
    assert draft is not None
    assert draft.adapter is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"model": "8b", "adapters": "4"}, "adapters need a kind"),
        ({"model": "8b", "adapter": "qlora:r=16"}, "LoRA alone"),
        ({"model": "8b", "adapter": "lora:r=1024"}, "ranks up to 512"),
        ({"model": "8b", "adapter": "lora:r=16", "engine": "trtllm"}, "is given no adapters here"),
        ({"model": "mixtral-8x7b", "adapter": "lora:r=16"}, "8 experts"),
        ({"model": "deepseek-r1", "adapter": "lora:r=16"}, "latent attention"),
        ({"model": "8b", "adapter": "lora:r=16", "adapters": "0"}, "--adapters"),
    ],
)
def test_what_is_not_priced_or_not_told_is_refused(words: dict[str, str], says: str) -> None:
    """In three lines."""
    with pytest.raises(InputError) as caught:
        understand_serving(ServeFlags(gpu="h100-sxm", gpus="8", **words))
    assert says in f"{caught.value.what} {caught.value.cause} {caught.value.fix}"


def test_attention_alone_may_have_them_beside_experts() -> None:
    """Then experts are as they were."""
    asked = understand_serving(
        ServeFlags(
            model="mixtral-8x7b",
            gpu="h100-sxm",
            gpus="8",
            adapter="lora:r=16,targets=attention",
            adapters="8",
        )
    )
    assert {request.job.adapters for request, _ in asked.requests} == {8}
