"""Tokens that every rank of an expert block gets: bytes by hand, whatever is routed where."""

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import ShardShape, layer_ops
from costmodel.ops.op import Op
from costmodel.stack import stack
from costmodel.switches.profile import with_switches

S = 4096.0
SPEC = model("qwen3-30b-a3b")
"""Eight of 128 experts a token, 2,048 numbers wide."""
JOB = TrainingJob(sequence_length=4096, global_batch_size=8)


def ops_of(dispatcher: str, **degrees: float) -> dict[str, Op]:
    """Operations of a layer of experts, by name."""
    profile = with_switches(stack("megatron-core"), {"dispatcher": dispatcher})
    shard = ShardShape(sequence_length=S, **degrees)
    return {
        op.name: op
        for op in layer_ops(Workload(model=SPEC, job=JOB, stack=profile), layer_runs(SPEC)[0].kind, shard)
    }


def test_all_tokens_of_the_block_go_to_every_rank_and_their_sums_back() -> None:
    """Gathered forward and summed back, and the other way round backward: 2·S·H bytes of each of ep ranks."""
    ops = ops_of("allgather", ep=4)
    block = 2 * S * 2048 * 4
    assert [
        (ops[name].collective, ops[name].phase, ops[name].collective_bytes)
        for name in ("dispatch_ep", "dispatch_ep_gradient", "combine_ep", "combine_ep_gradient")
    ] == [
        ("all_gather", "forward", block),
        ("reduce_scatter", "backward", block),
        ("reduce_scatter", "forward", block),
        ("all_gather", "backward", block),
    ]
    assert "dispatch" not in ops


@pytest.mark.parametrize("degrees", [{"ep": 4.0}, {"ep": 2.0, "expert_tp": 2.0, "tp": 2.0}])
def test_ranks_of_an_expert_get_the_block_too(degrees: dict[str, float]) -> None:
    """Both groups together bring each of ep·expert_tp ranks the tokens of all others, T/tp a rank."""
    ops = ops_of("allgather", **degrees)
    expert_tp, tp = degrees.get("expert_tp", 1), degrees.get("tp", 1)
    own = 2 * S / tp * 2048
    received = sum(
        ops[f"dispatch_{axis}"].collective_bytes * (1 - 1 / size)
        for axis, size in (("ep", degrees["ep"]), ("expert_tp", expert_tp))
    )
    assert received == pytest.approx(own * (degrees["ep"] * expert_tp - 1))


def test_experts_compute_what_they_do_anyway() -> None:
    """The dispatcher moves tokens; products and parameters are those of any other."""
    gathered, sent = ops_of("allgather", ep=4), ops_of("alltoall", ep=4)
    for name in ("router", "expert_up", "expert_down"):
        assert gathered[name] == sent[name]


def test_nothing_is_sent_on_one_rank() -> None:
    """Without expert ranks either dispatcher moves nothing."""
    assert ops_of("allgather")["dispatch_ep"].collective_bytes == 0
