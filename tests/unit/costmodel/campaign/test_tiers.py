"""Where checkpoints go is searched: chains of places, what they survive, what fits, what a place is worth."""

from dataclasses import replace

import pytest

from costmodel.campaign.answer import campaign
from costmodel.campaign.checkpoint import CheckpointState
from costmodel.campaign.closed_form import at_full_strength, expected, why_invalid
from costmodel.campaign.compose import CampaignJob, bare_course, bound_useful_share, chosen_places, course_of
from costmodel.campaign.failures import default_model
from costmodel.campaign.interval import with_best_interval
from costmodel.campaign.record import Cause, FailureModel
from costmodel.campaign.simulate import simulate
from costmodel.campaign.tiers import chains_of, storage_places
from costmodel.campaign.worth import RunPrice
from topology.base.errors import InputError
from topology.base.units import DAY
from topology.builders import build, default_cluster
from topology.spec import StorageSpec

BYTES = 14 * 405.85e9
FILES = StorageSpec(kind="file-system", write_bytes_per_s=100e9, read_bytes_per_s=100e9)
OBJECTS = StorageSpec(kind="object-store", write_bytes_per_s=50e9, read_bytes_per_s=50e9)
DISKS = StorageSpec(kind="nvme", write_bytes_per_s=20e9, read_bytes_per_s=40e9, usd=2e5)
HOST, PEER = StorageSpec(kind="host"), StorageSpec(kind="peer", usd=1e5)
ALL = (HOST, PEER, DISKS, FILES, OBJECTS)
CLUSTER = replace(default_cluster("h100-sxm", 16384).spec, storage=ALL)
WORLD = default_model("h100-sxm")


def job(total_bytes: float = BYTES, *, uneven: float = 1.0) -> CampaignJob:
    """A job whose checkpoint is spread so unevenly."""
    state = CheckpointState(
        total_bytes=total_bytes,
        per_rank_bytes=uneven * total_bytes / 16384,
        weights_per_rank_bytes=total_bytes / 7 / 64,
        writers=16384,
    )
    return CampaignJob(work_s=56 * DAY, step_s=5.4, gpus=16384, replica_gpus=128, checkpoint=state)


def useful(world: FailureModel, *offered: StorageSpec) -> float:
    """Useful share where only these places are offered."""
    return expected(course_of(job(), world, replace(CLUSTER, storage=offered))).useful


def test_the_search_takes_the_best_of_all_chains() -> None:
    """No chain of two near places and one shared is better than the one that is taken."""
    course = course_of(job(), WORLD, CLUSTER)
    taken = at_full_strength(course).useful
    tried = {
        tuple(level.name for level in chain): at_full_strength(
            with_best_interval(bare_course(job(), WORLD, CLUSTER, chain), 5.4)
        ).useful
        for chain in chains_of(job().checkpoint, WORLD, CLUSTER)
    }
    assert len(tried) == 2 * (1 + 3 + 3)
    assert max(tried.values()) <= taken + 1e-5
    assert [place.title for place in chosen_places(job(), course, WORLD, CLUSTER)] == ["peer", "file-system"]
    assert max(tried.values()) - min(tried.values()) > 0.01  # and there was something to choose


def test_every_place_more_that_is_offered_can_only_help() -> None:
    """What is not worth it is left out; disks beside storage help where restarts lose a process."""
    shares = [useful(WORLD, *ALL[k:]) for k in (4, 3, 2, 1, 0)]
    assert shares == sorted(shares)
    assert useful(WORLD, FILES) == useful(WORLD) != shares[0]  # the world's own storage has the same numbers


def test_a_place_that_the_checkpoint_does_not_fit_is_not_taken() -> None:
    """Three copies of a node's share for a peer, in the memory of the host."""
    small = replace(CLUSTER, nodes=tuple(replace(n, host_memory_bytes=3e9) for n in CLUSTER.nodes))
    needed = 3 * BYTES / 2048
    roomy = replace(CLUSTER, nodes=tuple(replace(n, host_memory_bytes=1.01 * needed) for n in CLUSTER.nodes))
    kinds = [
        {place.kind for chain in storage_places(job().checkpoint, WORLD, cluster) for place in chain}
        for cluster in (small, roomy)
    ]
    assert kinds[1] - kinds[0] == {"host", "peer"}


def test_what_a_place_survives_decides_what_it_is_for() -> None:
    """Disks go with their node, a peer goes with all memory, and a peer in another rack outlives one."""
    chains = {
        tuple(level.name for level in chain): chain for chain in chains_of(job().checkpoint, WORLD, CLUSTER)
    }
    course = bare_course(job(), WORLD, CLUSTER, chains["peer", "nvme", "file-system"])
    assert [course.level_for(loses) for loses in ("process", "node", "rack", "memory")] == [0, 0, 2, 1]
    apart = replace(CLUSTER, storage=(replace(PEER, survives="rack"), FILES))
    (peer, _) = chains_of(job().checkpoint, WORLD, apart)[1]
    assert peer.survives == "rack"


def test_a_world_whose_only_storage_does_not_survive_is_refused() -> None:
    """With the level that would do."""
    fragile = replace(WORLD, storage=replace(WORLD.storage, survives="process"))
    with pytest.raises(InputError, match="nothing that is kept survives"):
        course_of(job(), fragile, default_cluster("h100-sxm", 16384).spec)


@pytest.mark.parametrize("offered", [ALL, (HOST, FILES), (PEER, OBJECTS), (DISKS, FILES)])
@pytest.mark.parametrize("uneven", [1.0, 1.6])
def test_the_bound_covers_every_place(offered: tuple[StorageSpec, ...], uneven: float) -> None:
    """Admissible over layouts and places together: no unevenness and no larger checkpoint is above it."""
    cluster = replace(CLUSTER, storage=offered)
    bound = bound_useful_share(job(), 0.8 * BYTES, WORLD, cluster)
    for share in (0.8, 1.0, 1.2):
        one = job(share * BYTES, uneven=uneven)
        assert expected(course_of(one, WORLD, cluster)).useful <= bound < 1


def test_both_answers_agree_on_a_chain_of_three_places() -> None:
    """The closed form and the simulation, with causes that lose all memory."""
    site = replace(WORLD.site, causes=(*WORLD.site.causes, Cause(name="power", events=40, loses="memory")))
    world = replace(WORLD, site=site)
    chain = next(
        c for c in chains_of(job().checkpoint, world, CLUSTER) if len(c) == 3 and c[1].name == "nvme"
    )
    course = replace(with_best_interval(bare_course(job(), world, CLUSTER, chain), 5.4), spares=20)
    assert not why_invalid(course)
    runs = simulate(course, 100, seed=3)
    assert expected(course).useful == pytest.approx(float(runs.work_s.sum() / runs.wall_s.sum()), rel=0.005)


def test_what_changed_is_written_and_the_whole_is_read() -> None:
    """A tenth of the bytes take a tenth of the time; a restart reads the whole and the last change."""
    whole, tenth = (
        chains_of(job().checkpoint, replace(WORLD, changed_share=share), replace(CLUSTER, storage=(FILES,)))[
            0
        ][0]
        for share in (1.0, 0.1)
    )
    assert tenth.durable_s == pytest.approx(0.1 * whole.durable_s)
    spread_s = job().checkpoint.weights_per_rank_bytes / 50e9
    assert tenth.load_s - spread_s == pytest.approx(1.1 * (whole.load_s - spread_s))


def test_a_place_says_when_it_has_paid_back() -> None:
    """Its price over what a day of the run saves by it, counted from the two runs with and without."""
    found = campaign(
        job(), WORLD, CLUSTER, step_band_s=(4.0, 7.0), least_bytes=BYTES,
        price=RunPrice(usd_per_gpu_hour=2.0, gpus_per_node=8), runs=20,
    )  # fmt: skip
    (worth,) = [one for one in found.worth if one.change == "peer beside file-system"]
    days = [56 / share for share in (useful(WORLD, FILES), useful(WORLD, PEER, FILES))]
    assert worth.days == pytest.approx(days[0] - days[1], rel=1e-6)
    assert worth.usd
    assert worth.pays_back_days == pytest.approx(1e5 / (worth.usd / days[1]))
    assert [one.name for one in found.kept] == ["peer", "file-system"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (StorageSpec(kind="tape"), "kind = 'tape'"),
        (StorageSpec(kind="nvme"), "write_bytes_per_s"),
        (replace(FILES, survives="all"), "survives = 'all'"),
        (replace(HOST, usd=-1.0), "usd"),
    ],
)
def test_places_that_are_none_are_refused(place: StorageSpec, said: str) -> None:
    """In a cluster and in a world alike."""
    with pytest.raises(InputError, match="cannot be built") as refused:
        build(replace(CLUSTER, storage=(place,)))
    assert said in refused.value.cause
    with pytest.raises(InputError, match="cannot be kept so"):
        replace(WORLD, tiers=(place,))


def test_more_places_than_can_be_tried_are_refused() -> None:
    """Every chain of them is searched."""
    with pytest.raises(InputError, match="cannot be kept so") as refused:
        replace(WORLD, tiers=(FILES,) * 9)
    assert "8 or fewer" in refused.value.cause
