"""A campaign is a plan's own checkpoint in a world: its answer, what it refuses, what no layout can beat."""

from dataclasses import replace

import pytest

from costmodel.campaign.answer import RUNS, campaign, is_kept
from costmodel.campaign.checkpoint import (
    CheckpointState,
    checkpoint_bytes,
    checkpoint_state,
    saved_bytes_per_parameter,
)
from costmodel.campaign.closed_form import at_full_strength, expected
from costmodel.campaign.compose import CampaignJob, bare_course, bound_useful_share, course_of
from costmodel.campaign.course import CheckpointLevel
from costmodel.campaign.failures import default_model
from costmodel.campaign.interval import with_best_interval, with_best_spares
from costmodel.campaign.record import KEPT, Campaign, Duration, FailureModel
from costmodel.campaign.tiers import chains_of
from costmodel.campaign.worth import RunPrice
from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter
from topology.base.errors import InputError
from topology.base.units import DAY
from topology.builders import default_cluster

WORLD = default_model("h100-sxm")
CLUSTER = default_cluster("h100-sxm", 16384).spec
BYTES = 14 * 405.85e9
BAND = (4.0, 7.0)


def job(total_bytes: float = BYTES, *, days: float = 56, gpus: int = 16384) -> CampaignJob:
    """A job whose checkpoint is spread evenly."""
    state = CheckpointState(
        total_bytes=total_bytes,
        per_rank_bytes=total_bytes / gpus,
        weights_per_rank_bytes=total_bytes / 7 / 64,
        writers=gpus,
    )
    return CampaignJob(work_s=days * DAY, step_s=5.4, gpus=gpus, replica_gpus=128, checkpoint=state)


def answer(**changed: object) -> Campaign:
    """The campaign of that job, in a world that differs."""
    return campaign(
        job(),
        replace(WORLD, **changed),
        CLUSTER,
        step_band_s=BAND,
        least_bytes=BYTES,
        price=RunPrice(usd_per_gpu_hour=2.0, gpus_per_node=8),
        runs=40,
    )


TRAINING = TrainingJob(sequence_length=4096, global_batch_size=64)
LAYOUTS = [
    ParallelLayout(tp=8, pp=1, dp=4, zero_stage=1, shard_degree=4),
    ParallelLayout(tp=4, pp=2, dp=4, zero_stage=1, shard_degree=4),
    ParallelLayout(tp=2, pp=4, dp=4, zero_stage=1, shard_degree=4),
    ParallelLayout(tp=8, pp=4, dp=1),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_the_state_that_lies_on_the_ranks(layout: ParallelLayout) -> None:
    """Optimizer state of all ranks, and the weights of one replica, as the memory of the plan has them."""
    spec, engine = model("70b"), stack("megatron-core")
    even = [spec.num_layers // layout.pp] * layout.pp
    stages = memory_by_stage(
        Workload(model=spec, job=TRAINING, stack=engine), layout, [(n,) for n in even], [(0,)] * layout.pp
    )
    ours = checkpoint_state(
        Workload(model=spec, job=TRAINING, stack=engine), layout, [stage.weights_bytes for stage in stages]
    )
    ranks = layout.num_gpus // layout.pp
    held = sum(stage.optimizer_bytes * ranks + stage.weights_bytes * layout.tp for stage in stages)
    assert ours.total_bytes == pytest.approx(held, rel=0.002)
    assert ours.per_rank_bytes * layout.num_gpus >= ours.total_bytes
    assert ours.weights_per_rank_bytes == max(stage.weights_bytes for stage in stages)


def test_an_engine_that_gathers_from_its_master_copy_saves_no_weights_beside_it() -> None:
    """Twelve bytes a parameter where weights are sharded, fourteen otherwise."""
    each = [saved_bytes_per_parameter(stack("torchtitan"), stage) for stage in (1, 3)]
    assert each == [14.0, 12.0]


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [
        ("adamw", 14),
        ("adamw-bf16", 10),
        ("adamw-no-master", 10),
        ("adamw-pure-bf16", 6),
        ("lion", 10),
        ("sgd", 6),
    ],
)
def test_a_checkpoint_has_the_moments_of_its_optimizer(optimizer: str, each: int) -> None:
    """Weights in sixteen bits, an fp32 master copy where it updates one, and its own moments."""
    asked = replace(TRAINING, optimizer=optimizer)
    spec = model("llama-2-7b")
    assert checkpoint_bytes(
        Workload(model=spec, job=asked, stack=stack("megatron-core"))
    ) == each * parameter_count(spec)


def test_a_checkpoint_of_muon_has_two_moments_of_what_is_no_matrix() -> None:
    """Four bytes of momentum of a matrix, eight of AdamW of the embedding, the head and the norms."""
    spec = model("llama-2-7b")
    others = 2 * 32_000 * 4096 + 65 * 4096
    whole = 10 * parameter_count(spec) + 4 * others
    assert (
        checkpoint_bytes(
            Workload(model=spec, job=replace(TRAINING, optimizer="muon"), stack=stack("megatron-core"))
        )
        == whole
    )


def test_workers_that_run_apart_save_their_last_agreement() -> None:
    """DiLoCo keeps outer weights and momentum, eight bytes a parameter."""
    spec, engine = model("llama-2-7b"), stack("megatron-core")
    apart = replace(TRAINING, local_steps="diloco:100")
    more = checkpoint_bytes(Workload(model=spec, job=apart, stack=engine)) - checkpoint_bytes(
        Workload(model=spec, job=TRAINING, stack=engine)
    )
    assert more == 8 * parameter_count(spec)


ADAPTERS = [
    ("lora:r=16", 39_976_960),  # as PEFT prints for all seven matrices of Llama-2-7B
    ("lora:r=8,targets=attention", 8_388_608),
    ("qlora:r=16", 39_976_960),
    ("dora:r=16", 39_976_960 + 32 * 42_496),
]


@pytest.mark.parametrize(("adapter", "trained"), ADAPTERS)
def test_a_checkpoint_of_adapters_has_no_frozen_weight(adapter: str, trained: int) -> None:
    """Fourteen bytes of what PEFT trains; the base, in sixteen bits whatever it is kept in, is read beside it."""
    spec, layout = model("llama-2-7b"), ParallelLayout(dp=8)
    asked = replace(TRAINING, adapter=parse_adapter(adapter))
    state = checkpoint_state(Workload(model=spec, job=asked, stack=stack("megatron-core")), layout, [1e9])
    assert (state.total_bytes, state.per_rank_bytes) == (14 * trained, 14 * trained / 8)
    assert state.base_bytes == 2 * parameter_count(spec)
    assert (
        checkpoint_state(
            Workload(model=spec, job=TRAINING, stack=stack("megatron-core")), layout, [1e9]
        ).base_bytes
        == 0
    )


def test_a_restart_reads_the_frozen_base_from_storage() -> None:
    """Wherever the checkpoint lies, its load is longer by the base over the storage's rate."""
    state = job(0.56e9).checkpoint
    beside = replace(state, base_bytes=140e9)
    world = replace(WORLD, peer_memory=True)
    for with_base, without in zip(
        chains_of(beside, world, CLUSTER), chains_of(state, world, CLUSTER), strict=True
    ):
        for one, other in zip(with_base, without, strict=True):
            assert one.load_s - other.load_s == pytest.approx(140e9 / world.storage.read_bytes_per_s)
            assert (one.stall_s, one.durable_s) == (other.stall_s, other.durable_s)


def test_checkpoints_wait_for_storage_or_go_on() -> None:
    """Synchronous: the steps wait for all bytes; asynchronous: for the copy aside; a peer's copy comes first."""
    state = job().checkpoint
    ((waits,),) = chains_of(state, replace(WORLD, asynchronous=False), CLUSTER)
    ((goes_on,),) = chains_of(state, WORLD, CLUSTER)
    ((peer, last),) = chains_of(state, replace(WORLD, peer_memory=True), CLUSTER)
    assert (waits.stall_s, waits.durable_s) == (pytest.approx(BYTES / 100e9), 0.0)
    assert (goes_on.stall_s, goes_on.durable_s) == (
        pytest.approx(1.005, abs=0.001),
        pytest.approx(BYTES / 100e9),
    )
    assert last == goes_on
    assert (peer.survives, last.survives) == ("node", "memory")
    assert peer.load_s < last.load_s


def test_the_answer_has_its_parts() -> None:
    """Bands in order, shares that make one, an interval and spares."""
    found = answer()
    for band in (found.useful_share, found.days, found.usd, found.interruptions):
        assert 0 < band.p10 <= band.p50 <= band.p90
    assert found.mean_useful_share + found.lost_share.total == pytest.approx(1, abs=1e-9)
    assert 60 < found.checkpoint_interval_s < 600
    assert 5 < found.spare_nodes < 40
    assert found.mean_useful_share < found.bound_useful_share < 1
    assert [one.days for one in found.worth] == sorted((one.days for one in found.worth), reverse=True)
    assert "Llama 3" in found.notes[0]


def test_the_same_question_has_the_same_answer() -> None:
    """Number by number: the seeds are fixed."""
    assert answer() == answer()


def test_what_is_slower_or_fails_more_is_later() -> None:
    """Restart, storage, rate and detection each move the finish the right way."""
    usual = answer().mean_useful_share
    times = WORLD.times
    worse = {
        "restart": answer(restart="requeue"),
        "notice": answer(times=replace(times, crash_notice=Duration(seconds=600.0))),
        "stall": answer(times=replace(times, stall=Duration(seconds=20.0))),
        "waits": answer(asynchronous=False),
        "stragglers": answer(stragglers=replace(WORLD.stragglers, prevalence=0.1)),
    }
    assert {name: one.mean_useful_share < usual for name, one in worse.items()} == dict.fromkeys(worse, True)
    assert answer(peer_memory=True).mean_useful_share > usual


def test_a_run_that_shrinks_needs_fewer_spares_than_one_that_waits() -> None:
    """Going on with fewer replicas is worth spares."""
    assert answer(min_gpus=8192).spare_nodes < answer().spare_nodes


def test_the_best_interval_is_better_than_any_other() -> None:
    """Of a grid around it, at one level and at two."""
    for world in (WORLD, replace(WORLD, peer_memory=True), replace(WORLD, asynchronous=False)):
        best = with_best_interval(bare_course(job(), world, CLUSTER), 5.4)
        top = at_full_strength(best).useful
        for factor in (0.5, 0.8, 1.25, 2.0):
            other = replace(best, every_s=tuple(max(each * factor, 57.0) for each in best.every_s))
            assert at_full_strength(other).useful <= top * (1 + 1e-6)


def test_the_spares_make_the_fewest_node_hours() -> None:
    """One fewer or one more cost more for the same work."""
    best = with_best_spares(with_best_interval(bare_course(job(), WORLD, CLUSTER), 5.4))

    def node_hours(spares: int) -> float:
        """Nodes over the useful share."""
        return (best.nodes + spares) / expected(replace(best, spares=spares)).useful

    assert node_hours(best.spares) < min(node_hours(best.spares - 1), node_hours(best.spares + 1))


@pytest.mark.parametrize("peer_memory", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_layout_beats_the_bound_on_its_useful_share(peer_memory: bool, asynchronous: bool) -> None:
    """Admissible: every layout of the model on these GPUs, whatever it replicates, is below it."""
    world = replace(WORLD, peer_memory=peer_memory, asynchronous=asynchronous)
    spec, engine = model("405b"), stack("megatron-core")
    least = min(saved_bytes_per_parameter(engine, stage) for stage in range(4)) * parameter_count(spec)
    weights = 2 * parameter_count(spec)
    for tp, pp, step_s in ((8, 8, 5.4), (8, 16, 1.0), (4, 32, 20.0), (1, 126, 9.0)):
        dp = 16384 // (tp * pp)
        layout = ParallelLayout(tp=tp, pp=pp, dp=dp, zero_stage=1, shard_degree=dp)
        for uneven in (1.0, 1.6):
            stages = [weights / (tp * pp)] * (pp - 1) + [uneven * weights / (tp * pp)]
            state = checkpoint_state(Workload(model=spec, job=TRAINING, stack=engine), layout, stages)
            one = replace(job(), checkpoint=state, gpus=layout.num_gpus, step_s=step_s)
            bound = bound_useful_share(one, least, world, CLUSTER)
            share = expected(course_of(one, world, CLUSTER)).useful
            assert share <= bound < 1
            assert bound - share < 0.06  # and of use


def test_a_run_that_comes_back_slower_than_it_fails_is_refused() -> None:
    """With the nodes and the time that would do."""
    slow = replace(WORLD, times=replace(WORLD.times, swap=Duration(seconds=30_000.0)))
    with pytest.raises(InputError, match="faster than it comes back") as refused:
        course_of(job(), slow, CLUSTER)
    nodes = int(refused.value.fix.split()[1].replace(",", ""))
    assert course_of(replace(job(gpus=8 * nodes), checkpoint=job().checkpoint), slow, CLUSTER).nodes == nodes
    with pytest.raises(InputError, match="faster than it comes back"):
        course_of(replace(job(gpus=8 * (nodes + 2)), checkpoint=job().checkpoint), slow, CLUSTER)


def test_storage_slower_than_a_checkpoint_per_failure_is_refused_with_what_would_do() -> None:
    """The bandwidth in the help is the smallest that works: it is refused no more, a little less is."""

    def at(bandwidth: float) -> object:
        """The course with such storage."""
        storage = replace(WORLD.storage, write_bytes_per_s=bandwidth)
        return course_of(job(), replace(WORLD, storage=storage), CLUSTER)

    with pytest.raises(InputError, match="slower than one checkpoint per failure") as refused:
        at(1e8)
    named = float(refused.value.fix.split("above ")[1].split(",")[0])
    assert at(named * 1.001)
    with pytest.raises(InputError):
        at(named * 0.999)


def test_a_level_is_the_nearest_that_survives() -> None:
    """A lost process comes back from a peer, lost memory from storage."""
    course = bare_course(job(), replace(WORLD, peer_memory=True), CLUSTER)
    assert [course.level_for(loses) for loses in ("process", "node", "memory")] == [0, 0, 1]
    assert isinstance(course.levels[0], CheckpointLevel)


@pytest.mark.parametrize("world", [WORLD, replace(WORLD, min_gpus=12_288)])
def test_a_deadline_is_kept_as_the_campaign_says(world: FailureModel) -> None:
    """Judged alone it may end early: the verdict is that of the campaign's own chance, on both sides of it."""
    short = job(days=3)
    found = campaign(short, world, CLUSTER, step_band_s=BAND, least_bytes=BYTES, runs=RUNS)
    edge = found.percentile_days[round(100 * KEPT)] * DAY
    verdicts = []
    for factor in (0.6, 0.97, 1 - 1e-6, 1 + 1e-6, 1.03):
        verdicts.append(is_kept(short, world, CLUSTER, BAND, factor * edge))
        assert verdicts[-1] == (found.chance_within_s(factor * edge) >= KEPT)
    assert verdicts == [False, False, False, True, True]
