"""What experts cost inside a step: their all-to-all, the wait for routing, and who hides either."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.routing import Routing
from costmodel.ops.feed_forward import copies_sent, expert_ops
from costmodel.ops.op import ShardShape
from costmodel.pipeline.even_split import even_split
from costmodel.stack import SoftwareStack, stack, stack_of_framework
from costmodel.switches.profile import with_switches
from costmodel.training.constants import default_constants
from costmodel.training.layer_time import layer_step
from costmodel.training.op_times import dispatch_time
from costmodel.training.raw_times import features_of
from costmodel.training.score import evaluate
from topology.builders import default_cluster

CAL = load_calibration()
MESSAGE = np.array([256e6])
QWEN = model("qwen3-30b-a3b")


def step_s(
    profile: SoftwareStack, layout: ParallelLayout, precision: str = "bf16", gpu: str = "h100-sxm"
) -> float:
    """Seconds of a step of Qwen3-30B on 16 GPUs."""
    job = TrainingJob(sequence_length=4096, global_batch_size=256, precision=precision)  # type: ignore[arg-type]
    cluster = default_cluster(gpu, 16)
    table = LayoutTable.from_rows([layout])
    return float(
        evaluate(
            Case(model=model("qwen3-30b-a3b"), cluster=cluster, job=job, stack=profile, cal=CAL), table
        ).step_time_s[0]
    )


def test_a_token_sent_once_per_node_crosses_the_network_less_often() -> None:
    """Of K = 8 copies over two nodes 2·(1 − 2⁻⁸) ≈ 2 need to cross, so sending takes about a quarter."""
    h = default_cluster("h100-sxm", 16).hierarchy
    size, stride = np.array([16.0]), np.array([1.0])
    every = collective_time(CAL, h, "all_to_all", MESSAGE, 16, 1)
    once = dispatch_time(CAL, h, MESSAGE, size, stride, lambda places: copies_sent(QWEN, places))
    assert 0.2 < float(once[0] / every[0]) < 0.4


def test_one_expert_per_token_is_sent_alike_either_way() -> None:
    """With K = 1 there is nothing to send once instead of several times."""
    h = default_cluster("h100-sxm", 16).hierarchy
    every = collective_time(CAL, h, "all_to_all", MESSAGE, 16, 1)
    single = replace(QWEN, num_experts_per_token=1)
    once = dispatch_time(
        CAL, h, MESSAGE, np.array([16.0]), np.array([1.0]), lambda places: copies_sent(single, places)
    )
    assert once == pytest.approx(every)


@pytest.mark.parametrize("places", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "qwen3-30b-a3b"])
def test_places_reached_are_those_that_routed_tokens_reach(name: str, places: int) -> None:
    """Tokens that choose their groups, and then experts in them, evenly: counted instead of reckoned."""
    spec, random, tokens = model(name), np.random.default_rng(0), 4000
    routing, K = spec.routing, spec.num_experts_per_token
    eligible = np.argsort(random.random((tokens, routing.n_group)), axis=1)[:, : routing.topk_group]
    size = spec.num_experts // routing.n_group
    scores = random.random((tokens, spec.num_experts))
    of_group = np.arange(spec.num_experts) // size
    open_to = (of_group[None, :, None] == eligible[:, None, :]).any(axis=-1)
    chosen = np.argsort(np.where(open_to, scores, -1.0), axis=1)[:, -K:]
    counted = np.mean([len(set(row)) for row in (chosen * places // spec.num_experts).tolist()])
    assert copies_sent(spec, places) * K == pytest.approx(counted, rel=0.04)


def test_a_token_of_deepseek_v3_crosses_to_four_of_eight_nodes_at_most() -> None:
    """The paper's limit: 3.6 nodes of 8 instead of 5.3 that free routing reaches."""
    limited, free = model("deepseek-v3"), replace(model("deepseek-v3"), routing=Routing())
    assert float(copies_sent(limited, 8) * 8) == pytest.approx(4 * (1 - (3 / 4) ** 8))
    assert float(copies_sent(free, 8) * 8) == pytest.approx(8 * (1 - (7 / 8) ** 8))


def test_experts_that_drop_tokens_wait_for_no_routing() -> None:
    """Fixed shapes need no answer from the GPU before experts are launched."""
    layout = ParallelLayout(dp=16, ep=8)
    dropless = stack("megatron-bridge")
    dropping = replace(dropless, timing=replace(dropless.timing, drops_tokens=True))
    assert step_s(dropping, layout) < step_s(dropless, layout)


def forward_s(profile: SoftwareStack, microbatch: int, ep: int) -> tuple[float, float]:
    """Seconds of a layer's forward at full clocks on a rank of Qwen3-30B, and of its expert products alone."""
    job = TrainingJob(sequence_length=4096, global_batch_size=1024)
    table = LayoutTable.from_rows([ParallelLayout(dp=16, ep=ep, microbatch_size=microbatch)])
    f = features_of(
        Case(model=QWEN, cluster=default_cluster("h100-sxm", 16), job=job, stack=profile, cal=CAL), table
    )
    constants = replace(default_constants(), picojoule_per_flop=0.0)
    step = layer_step(f.runs[0], f, constants)
    return float(step.forward_s[0]), float(f.runs[0].kernels.grouped_forward_s[0])


@pytest.mark.parametrize("ep", [4, 8, 16])
@pytest.mark.parametrize("microbatch", [1, 2, 4, 8])
def test_experts_launched_one_by_one_take_as_long_as_their_launches(microbatch: int, ep: int) -> None:
    """The GPU is idle when they start: 128/ep launches, or the products where these last longer."""
    singly = stack("megatron-bridge")
    at_once = replace(singly, timing=replace(singly.timing, launches_experts_singly=False))
    slow, products = forward_s(singly, microbatch, ep)
    fast, _ = forward_s(at_once, microbatch, ep)
    launches = QWEN.num_experts / ep * default_constants().expert_launch_s
    assert slow - fast == pytest.approx(max(0.0, launches - products), abs=1e-12)


def test_few_rows_an_expert_wait_and_many_do_not() -> None:
    """Both sides of the test above occur."""
    launches = QWEN.num_experts / 8 * default_constants().expert_launch_s
    assert (
        forward_s(stack("megatron-bridge"), 1, 8)[1] < launches < forward_s(stack("megatron-bridge"), 8, 8)[1]
    )


@pytest.mark.parametrize("drops", [True, False])
def test_experts_whose_shapes_are_known_are_not_waited_for(drops: bool) -> None:
    """Tokens that are dropped, or graphs around the step, leave no launch for after the routing."""
    profile = stack("megatron-bridge-26.06")
    known = {"drops_tokens": True} if drops else {"cuda_graphs": True}
    singly = replace(profile, timing=replace(profile.timing, **known))
    at_once = replace(singly, timing=replace(singly.timing, launches_experts_singly=False))
    assert forward_s(singly, 1, 4) == forward_s(at_once, 1, 4)


@pytest.mark.parametrize("name", ["torchtitan", "hai-llm", "meshplan"])
def test_engines_with_one_kernel_for_all_experts_launch_no_single_ones(name: str) -> None:
    """Those of torch's grouped_mm and DeepGEMM; Transformer Engine's grouped linear layers loop over cuBLAS."""
    assert not stack(name).timing.launches_experts_singly
    assert stack("megatron-core").timing.launches_experts_singly


def test_graphs_around_experts_exist_on_blackwell_only() -> None:
    """The newer containers change nothing on Hopper."""
    layout = ParallelLayout(dp=16, ep=8)
    old, new = (stack_of_framework(f"Megatron-Bridge {version}") for version in ("26.04", "26.06"))
    assert step_s(new, layout) == step_s(old, layout)
    assert step_s(new, layout, gpu="b200-sxm") < step_s(old, layout, gpu="b200-sxm")


def test_dualpipe_hides_the_all_to_all_that_1f1b_shows() -> None:
    """A schedule that pairs forwards with backwards gains more on a slow network than its bubble alone."""
    profile = stack("ideal")
    plain = replace(profile, timing=replace(profile.timing, expert_overlap_share=0.0))
    layout = ParallelLayout(pp=2, dp=8, ep=8)
    paired = replace(layout, schedule="dualpipev", virtual_stages=2)
    hidden = step_s(plain, layout) - step_s(profile, layout)
    assert hidden > 0
    assert step_s(plain, paired) == pytest.approx(step_s(profile, paired))


def test_tensor_parallelism_hides_nothing_where_gpus_cannot_write_each_others_memory() -> None:
    """Over PCIe the share of a stack that overlaps is worth nothing."""
    layout = ParallelLayout(tp=2, dp=8, sequence_parallel=True)
    profile = stack("megatron-core")
    without = replace(profile, timing=replace(profile.timing, tp_overlap_share=0.0))
    assert step_s(profile, layout, gpu="l40s") == step_s(without, layout, gpu="l40s")
    assert step_s(profile, layout) < step_s(without, layout)


def test_four_bits_beat_eight_by_less_than_their_peaks() -> None:
    """Some linear layers stay in bf16, so fp4 gains less than the ratio of the peaks, 2 on a B200."""
    job = TrainingJob(sequence_length=8192, global_batch_size=128)
    cluster, table = (
        default_cluster("b200-sxm", 8),
        LayoutTable.from_rows([ParallelLayout(dp=8, microbatch_size=2)]),
    )
    profile = stack("megatron-bridge")
    eight, four = (
        float(
            evaluate(
                Case(
                    model=model("llama-3-8b"),
                    cluster=cluster,
                    job=replace(job, precision=p),
                    stack=profile,
                    cal=CAL,
                ),
                table,
            ).step_time_s[0]
        )
        for p in ("mxfp8", "nvfp4")
    )
    assert eight / 2 < four < eight


def test_tokens_go_out_in_eight_bits_and_come_back_in_sixteen() -> None:
    """Of four messages forward and backward two are narrow where the engine does so and the job is narrow."""
    wide, engine = stack("megatron-bridge"), stack("hai-llm")
    shard = ShardShape(sequence_length=4096.0, ep=8.0)
    sent = {}
    for profile in (wide, engine):
        for precision in ("bf16", "fp8"):
            job = TrainingJob(sequence_length=4096, global_batch_size=8, precision=precision)  # type: ignore[arg-type]
            ops = expert_ops(Workload(model=QWEN, job=job, stack=profile), shard)
            sent[profile.name, precision] = [
                float(op.collective_bytes) for op in ops if op.collective == "all_to_all"
            ]
    full = sent["megatron-bridge", "bf16"]
    assert sent["megatron-bridge", "fp8"] == sent["hai-llm", "bf16"] == full
    shares = [narrow / whole for narrow, whole in zip(sent["hai-llm", "fp8"], full, strict=True)]
    assert shares == [33 / 64, 1, 1, 33 / 64]


def test_a_pair_hides_tokens_under_the_other_pass() -> None:
    """Exchange of a forward hides under a backward, as far as that lasts, at the price of its processors."""
    layout = ParallelLayout(dp=16, ep=8)
    profile = stack("megatron-bridge-overlap")
    job = TrainingJob(sequence_length=4096, global_batch_size=4096)
    table = LayoutTable.from_rows([layout])
    f = features_of(
        Case(model=QWEN, cluster=default_cluster("h100-sxm", 16), job=job, stack=profile, cal=CAL), table
    )
    part, c = f.runs[0], default_constants()
    moves = part.transfers
    both = moves.ep_forward_s + moves.ep_backward_s
    alone = layer_step(part, replace(f, paired=np.zeros(1)), c)
    paired = layer_step(part, replace(f, paired=np.ones(1)), c)
    slower = c.exchange_processors / (1 - c.exchange_processors)
    assert alone.ep_s == pytest.approx(both)
    assert np.all(slower * both * (1 - 1e-9) <= paired.ep_s)
    assert np.all(paired.ep_s < alone.ep_s)


def test_deepseek_v3_fits_the_ranks_it_was_trained_on() -> None:
    """61 layers over two chunks on each of 16 ranks: the ends of the model share what is missing."""
    layout = ParallelLayout(pp=16, virtual_stages=2, schedule="dualpipev", dp=128, ep=64, zero_stage=1)
    split = even_split((3, 58), layout)
    layers = [sum(row) for row in split.layers_of_stage]
    assert sum(layers) == 61
    assert layers[1:] == [4] * 15


def test_deepseek_v3_takes_about_as_long_as_published() -> None:
    """180,000 GPU hours for a trillion tokens on 2,048 H800, 15,360 sequences of 4,096 a step: 20.1 s.

    With the module that it was trained with (`tests/published/costmodel/training/test_further_tokens.py`).
    """
    spec, cluster = model("deepseek-v3"), default_cluster("h800", 2048)
    job = TrainingJob(sequence_length=4096, global_batch_size=15_360, precision="fp8", mtp_layers=1)
    layout = ParallelLayout(
        pp=16, virtual_stages=2, schedule="dualpipev", dp=128, ep=64, zero_stage=1, recompute="selective"
    )
    found = evaluate(
        Case(model=spec, cluster=cluster, job=job, stack=stack("hai-llm"), cal=CAL),
        LayoutTable.from_rows([layout]),
    )
    assert float(found.step_time_s[0]) == pytest.approx(20.1, rel=0.1)


@pytest.mark.parametrize(
    ("dispatcher", "waits"), [("deepep", True), ("alltoall", False), ("hybridep", False)]
)
def test_a_host_that_launches_pairs_waits_for_deepeps_dispatch(dispatcher: str, waits: bool) -> None:
    """Kernels and launches of a pair add up then, which costs more than the exchange that pairs hide.

    Published: Megatron-Bridge gave pairs up with DeepEP "due to CPU overhead" (pull request 1760: from 20.1
    to 16.9 s) and took them up with others (issues 3880 and 5123: from 42.2 to 31.1 s by an all-to-all).
    """
    layout = ParallelLayout(dp=16, ep=16)
    alone, paired = (
        step_s(
            with_switches(stack("megatron-bridge"), {"dispatcher": dispatcher, "exchange_overlap": on}),
            layout,
        )
        for on in ("off", "on")
    )
    assert (paired > alone) == waits
