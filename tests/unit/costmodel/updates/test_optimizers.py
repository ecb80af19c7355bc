"""Optimizers as data: what they keep, what they compute, who has them."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.memory.state import bytes_per_parameter
from costmodel.models.catalog import model
from costmodel.ops.op import gemm, grouped_gemm
from costmodel.ops.updates import uneven_state_bytes, update_products
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from costmodel.training.raw_times import features_of
from costmodel.updates.optimizers import optimizer, optimizers
from planner.plan import PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()
JOB = TrainingJob(sequence_length=4096, global_batch_size=64)


def kept(name: str, profile: str = "megatron-core", zero_stage: int = 0) -> tuple[float, float]:
    """Bytes per parameter of weights and of optimizer state over eight replicas."""
    table = LayoutTable.from_rows([ParallelLayout(dp=8, zero_stage=zero_stage)])
    dense = bytes_per_parameter(
        Workload(model=model("llama-2-7b"), job=replace(JOB, optimizer=name), stack=stack(profile)), table
    ).dense
    return float(np.ravel(dense.weights_bytes)[0]), float(np.ravel(dense.optimizer_bytes)[0])


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("adamw", 12), ("adamw-bf16", 8), ("adamw-8bit", 6.03125), ("adamw-no-master", 8),
        ("adamw-pure-bf16", 4), ("adamw-8bit-no-master", 2.03125), ("sgd", 4), ("sgd-momentum", 8), ("lion", 8),
        ("adafactor", 4), ("muon", 8), ("shampoo", 12), ("soap", 12),
    ],
)  # fmt: skip
def test_bytes_per_parameter(name: str, state: float) -> None:
    """An fp32 master weight where there is one, and the optimizer's own moments."""
    assert kept(name) == (2.0, state)
    assert kept(name, zero_stage=1)[1] == state / 8


def test_every_optimizer_is_tried() -> None:
    """Those of the file are those of the table above."""
    table = next(mark for mark in test_bytes_per_parameter.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert [name for name, _ in table.args[1]] == list(optimizers())


def test_a_profile_keeps_what_is_not_a_moment() -> None:
    """Half a master weight of the bf16 state, four further bytes of Megatron-LM in 2021."""
    assert kept("sgd", "megatron-core-bf16-state")[1] == 2
    assert kept("muon", "megatron-lm-2021")[1] == 12
    assert kept("adamw-no-master", "megatron-core-bf16-state")[1] == 8


def test_without_a_master_copy_there_is_a_weight_to_gather() -> None:
    """A profile that gathers from its master has none of its own at ZeRO-3, unless there is no master."""
    assert kept("adamw", "torchtitan", zero_stage=3)[0] == 0
    assert kept("adamw-pure-bf16", "torchtitan", zero_stage=3)[0] == 2 / 8


def test_newton_schulz_counts_its_three_products() -> None:
    """S·(4·m²·n + 2·m³) FLOP of a matrix, m its smaller side."""
    op = gemm("x", m=1, n=4096, k=1024, saved_elements=0)
    flop = sum(2 * one.count * one.m * one.n * one.k for one in update_products(op, optimizer("muon")))
    assert float(flop) == 5 * (4 * 1024**2 * 4096 + 2 * 1024**3)


def test_matrices_side_by_side_and_experts_are_updated_one_by_one() -> None:
    """Their number times one of them, not one large matrix."""
    one = gemm("x", m=1, n=1024, k=1024, saved_elements=0)
    joined = replace(gemm("x", m=1, n=3072, k=1024, saved_elements=0), joins=3)
    experts = grouped_gemm("x", experts=3, m=1, n=1024, k=1024)
    for several in (joined, experts):
        alone, all_of_them = (update_products(op, optimizer("muon")) for op in (one, several))
        assert [float(p.count) for p in all_of_them] == [3 * float(p.count) for p in alone]
        assert [float(p.n) for p in all_of_them] == [float(p.n) for p in alone]


def test_soap_keeps_two_squares_of_each_side_up_to_its_largest() -> None:
    """Four bytes a number; a side above 10,000 has none."""
    small = gemm("x", m=1, n=4096, k=1024, saved_elements=0)
    wide = gemm("x", m=1, n=28672, k=1024, saved_elements=0)
    squares = [uneven_state_bytes([op], optimizer("soap"), matrices=True) for op in (small, wide)]
    assert [float(size) for size in squares] == [8 * (1024**2 + 4096**2), 8 * 1024**2]


def test_muon_keeps_adam_of_embedding_and_head() -> None:
    """Eight bytes a parameter there, four of a matrix, beside four of the master."""
    spec = model("llama-2-7b")
    pieces = memory_pieces(
        Workload(model=spec, job=replace(JOB, optimizer="muon"), stack=stack("megatron-core")),
        ParallelLayout(),
    )
    table = spec.vocab_size * spec.hidden_size
    assert float(np.ravel(pieces.embedding.state.optimizer_bytes)[0]) == 12 * table
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    norms = 2 * 4096
    assert float(np.ravel(pieces.layers[0].state.optimizer_bytes)[0]) == 8 * layer + 12 * norms


def update_s(name: str, layout: ParallelLayout) -> float:
    """Seconds of the products of an update of one layer."""
    cluster = default_cluster("h100-sxm", layout.num_gpus)
    found = features_of(
        Case(
            model=model("llama-2-7b"),
            cluster=cluster,
            job=replace(JOB, optimizer=name),
            stack=stack("megatron-core"),
            cal=CAL,
        ),
        LayoutTable.from_rows([layout]),
    )
    return float(found.traffic.update_s[0, 0])


def test_matrices_are_dealt_to_the_ranks_of_zero_1() -> None:
    """Eight ranks take an eighth of the time, without a further message; ZeRO-3 gathers what it cut."""
    alone, dealt, cut = (update_s("muon", ParallelLayout(dp=8, zero_stage=stage)) for stage in (0, 1, 3))
    assert dealt == pytest.approx(alone / 8)
    assert cut > dealt
    assert update_s("adamw", ParallelLayout(dp=8)) == 0


def test_newton_schulz_takes_what_its_products_take_on_the_gpu() -> None:
    """Between the peak rate and a third of it for matrices of this size."""
    flop = 5 * (4 * (4 * 4096**3 + 2 * 4096**3) + 3 * (4 * 4096**2 * 11008 + 2 * 4096**3))
    peak = flop / default_cluster("h100-sxm", 1).gpu.peak("bf16")
    assert peak < update_s("muon", ParallelLayout()) < 3 * peak


@pytest.mark.parametrize("name", ["adamw-8bit", "muon", "sgd", "soap"])
def test_the_parts_of_a_step_sum_to_it(name: str) -> None:
    """The products of an update are part of the optimizer's time."""
    layout = ParallelLayout(tp=2, dp=4, zero_stage=1, sequence_parallel=True)
    cluster = default_cluster("h100-sxm", 8)
    found = estimate(
        Case(
            model=model("8b"),
            cluster=cluster,
            job=replace(JOB, optimizer=name),
            stack=stack("megatron-core"),
            cal=CAL,
        ),
        layout,
    )
    assert found.time.total_s == pytest.approx(found.step_time_s)
    assert found.time.optimizer_s > 0


def test_an_unknown_optimizer_is_refused() -> None:
    """With the names that there are, and the nearest."""
    with pytest.raises(InputError) as refused:
        replace(JOB, optimizer="muom")
    assert refused.value.cause.startswith("there are adamw, ")
    assert refused.value.fix == "did you mean muon?"


def plan_for(engine: str, name: str, **pins: int) -> object:
    """A search for an engine."""
    asked = replace(JOB, optimizer=name)
    profile = "torchtitan" if engine == "torchtitan" else "megatron-core"
    return search(
        PlanRequest(
            model=model("8b"), cluster=default_cluster("h100-sxm", 8).spec, job=asked, stack=profile,
            engine=engine, pins=pins,
        )
    )  # fmt: skip


def test_engines_have_the_optimizers_of_their_contracts() -> None:
    """Megatron-LM is told muon where whole matrices can be dealt out; torchtitan's AdamW is its only one here."""
    assert not isinstance(plan_for("megatron", "muon"), Infeasible)
    assert isinstance(plan_for("megatron", "muon", zero_stage=2, pp=1), Infeasible)
    assert isinstance(plan_for("megatron", "soap"), Infeasible)
    assert isinstance(plan_for("torchtitan", "muon"), Infeasible)
