"""The closed form and the simulation are two answers to one question."""

import time
from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest

from costmodel.campaign import simulate as simulate_module
from costmodel.campaign.closed_form import erlang_b, expected, node_states, why_invalid
from costmodel.campaign.course import CheckpointLevel, Course, Hazard
from costmodel.campaign.cycles import Cycles
from costmodel.campaign.simulate import simulate, simulate_unless_late
from tests.counts import cases_of_run, tries
from topology.base.errors import InputError
from topology.base.units import DAY, HOUR

AGREE = 0.015


def random_course(seed: int) -> Course:
    """Any run: causes, levels, spares, elasticity, heavy tails, slow nodes."""
    draw = np.random.default_rng(seed)
    between_s = 10 ** draw.uniform(3.5, 5.5)
    weights = draw.dirichlet(np.ones(draw.integers(1, 5)))

    def part(low: float, high: float) -> float:
        """A time as a share of that between failures."""
        return float(between_s * 10 ** draw.uniform(low, high))

    hazards = tuple(
        Hazard(
            name=f"cause {index}",
            per_s=weight / between_s,
            notice_s=part(-4, -1.3),
            restart_s=part(-4, -1.2),
            restart_sigma=float(draw.choice([0, 0.5, 1.0])),
            loses=draw.choice(["process", "node", "memory"]).item(),
        )
        for index, weight in enumerate(weights)
    )
    stall_s, durable_s = 10 ** draw.uniform(-2, 2), part(-4, -1.5) * draw.integers(0, 2)
    every_s = float(np.sqrt(2 * stall_s * between_s)) * 10 ** draw.uniform(-0.3, 0.3)
    every_s = min(max(every_s, durable_s + 1), 0.3 * between_s)
    levels = (CheckpointLevel(name="storage", stall_s=stall_s, durable_s=durable_s, load_s=part(-4, -1.5)),)
    intervals: tuple[float, ...] = (every_s,)
    if draw.random() < 0.4:
        near = CheckpointLevel(
            name="peer", stall_s=stall_s / 10, durable_s=durable_s / 10, load_s=1.0, survives="node"
        )
        levels, intervals = (near, *levels), (every_s / int(draw.integers(2, 9)), every_s)
    losses = sum(hazard.per_s for hazard in hazards if hazard.nodes)
    repair_s = 10 ** draw.uniform(3.5, 5.5)
    offered = losses * repair_s
    nodes, replica = int(2 ** draw.integers(4, 12)), int(2 ** draw.integers(0, 4))
    elastic = bool(draw.random() < 0.5)
    return Course(
        work_s=max(100 * between_s, 8 * repair_s),
        nodes=nodes,
        spares=max(0, int(np.ceil(offered + draw.uniform(-0.5, 2.5) * np.sqrt(offered) + 1))),
        hazards=hazards,
        levels=levels,
        every_s=intervals,
        repair_s=repair_s,
        repair_sigma=float(draw.choice([0.0, 1.0])),
        replica_nodes=replica,
        floor_nodes=max(replica, nodes // 2) if elastic else None,
        regrow_s=10 ** draw.uniform(1, 2.5) if elastic else 0.0,
        slow_per_s=float(draw.choice([0.0, 1e-6])),
        slow_spell_s=10 ** draw.uniform(3, 5),
        slowdown=draw.uniform(1, 3),
    )


@pytest.mark.slow
def test_both_agree_on_random_runs() -> None:
    """Within 1.5 %, wherever the closed form says that it holds."""
    wanted = tries(12, 200)
    every = map(random_course, range(260))
    valid = list(islice((course for course in every if not why_invalid(course)), wanted))
    apart = {}
    for seed, course in enumerate(valid):
        runs = simulate(course, 200, seed=seed)
        apart[seed] = abs(expected(course).useful / float(runs.work_s.sum() / runs.wall_s.sum()) - 1)
    assert len(apart) == wanted
    assert {seed: error for seed, error in apart.items() if error > AGREE} == {}


@pytest.mark.parametrize("seed", range(6))
def test_both_agree_on_where_the_time_goes(seed: int) -> None:
    """The parts too, each to a point of the whole run, and with the useful share they are all of it."""
    course = random_course(seed)
    runs, shares = simulate(course, 64, seed=1), expected(course)
    assert not why_invalid(course)
    assert shares.useful + shares.lost.total == pytest.approx(1, abs=1e-9)
    for name in ("lost_work", "detection", "restart", "waiting_for_nodes", "stragglers", "checkpoints"):
        simulated = float(getattr(runs, f"{name}_s").sum() / runs.wall_s.sum())
        assert getattr(shares.lost, name) == pytest.approx(simulated, abs=0.015), name


SLOW = tuple(product((60.0, HOUR, DAY), (0.02, 0.5, 0.95)))
"""Lengths of a slow spell, and shares of the time in which some node is slow."""


@pytest.mark.parametrize(
    ("spell_s", "prevalence"),
    cases_of_run(SLOW, [case for at, case in enumerate(SLOW) if at not in (2, 4, 6)]),
)
def test_some_node_is_slow_for_the_prevalence_of_the_time(prevalence: float, spell_s: float) -> None:
    """However short a spell, and however many: those of a minute are too many to be events of their own."""
    course = plain(slow_per_s=-np.log1p(-prevalence) / spell_s, slow_spell_s=spell_s, slowdown=3.0)
    assert course.slow_share == pytest.approx(prevalence)
    runs, shares = simulate(course, 64, seed=1), expected(course)
    for name in ("useful", "stragglers"):
        closed_form = shares.useful if name == "useful" else shares.lost.stragglers
        seconds = runs.work_s if name == "useful" else runs.stragglers_s
        assert closed_form == pytest.approx(float(seconds.sum() / runs.wall_s.sum()), abs=0.015), name


@pytest.mark.parametrize("seed", range(8))
def test_runs_that_are_late_are_known_before_their_end(seed: int) -> None:
    """With any limit around which they end: none is returned exactly where too many need longer."""
    course = random_course(seed)
    course = replace(course, work_s=min(course.work_s, 15 / course.per_s))
    whole = simulate(course, 60, seed=seed)
    for share in (0.02, 0.3, 0.9):
        limit = np.full(60, float(np.quantile(whole.wall_s, share)))
        late = int((whole.wall_s > limit).sum())
        for most_late in {0, late - 1, late, late + 1} - {-1}:
            found = simulate_unless_late(course, 60, seed, limit_s=limit, most_late=most_late)
            assert (found is None) == (late > most_late)
            if found is not None:
                assert found.wall_s.tolist() == whole.wall_s.tolist()


def plain(**changed: object) -> Course:
    """A run of one cause and one level."""
    return replace(
        Course(
            work_s=90 * DAY,
            nodes=2048,
            hazards=(Hazard(name="any", per_s=1 / (3 * HOUR), notice_s=30, restart_s=100),),
            levels=(CheckpointLevel(name="storage", stall_s=10.0, durable_s=0.0, load_s=0.0),),
            every_s=(460.0,),
            repair_s=1.0,
        ),
        **changed,
    )


def test_one_level_is_the_exact_result_of_daly() -> None:
    """T = M·e^(R/M)·(e^((τ+δ)/M) − 1)·Ts/τ (Daly 2006, eq. 20), with notice as part of the restart."""
    M, R, tau, delta = 3 * HOUR, 130.0, 460.0, 10.0
    exact = tau / (M * np.exp(R / M) * np.expm1((tau + delta) / M))
    assert expected(plain()).useful == pytest.approx(exact, rel=1e-9)


def test_a_run_without_a_spare_waits_as_a_loss_system_does() -> None:
    """The share of time it waits is Erlang's, whatever the distribution of repair."""
    cause = Hazard(name="node", per_s=1e-4, notice_s=1.0, restart_s=1.0, loses="node")
    for sigma in (0.0, 1.5):
        course = plain(hazards=(cause,), spares=2, repair_s=20_000.0, repair_sigma=sigma)
        runs = simulate(course, 300, seed=2)
        waiting = expected(course).lost.waiting_for_nodes
        assert waiting == pytest.approx(erlang_b(3, 2.0))
        share = runs.waiting_for_nodes_s.sum() / runs.wall_s.sum()
        assert share == pytest.approx(waiting, rel=0.02)


def test_shares_of_nodes_in_repair_are_all_time() -> None:
    """They sum to one, and an elastic run is in more states than one that waits."""
    cause = Hazard(name="node", per_s=1e-4, notice_s=1.0, restart_s=1.0, loses="node")
    waits = plain(hazards=(cause,), spares=1, repair_s=20_000.0)
    shrinks = replace(waits, floor_nodes=1024, replica_nodes=8)
    for course in (waits, shrinks):
        assert sum(p for _, p in node_states(course)) == pytest.approx(1)
    assert len(node_states(shrinks)) > len(node_states(waits)) == 3
    assert expected(shrinks).useful > expected(waits).useful


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"every_s": (9_000.0,)}, "between checkpoints"),
        ({"work_s": 1 * DAY}, "too few failures (about 8)"),
        (
            {
                "hazards": (Hazard(name="any", per_s=1 / HOUR, notice_s=1800, restart_s=600),),
                "every_s": (60.0,),
            },
            "in a recovery",
        ),
        ({"slow_per_s": 1e-5, "slow_spell_s": 1e5, "slowdown": 2.0}, "slow for"),
    ],
)
def test_outside_its_validity_the_closed_form_says_so(changed: dict[str, object], word: str) -> None:
    """Every limit has a sentence."""
    assert why_invalid(plain()) == ""
    assert word in why_invalid(plain(**changed))


def test_runs_that_do_not_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy failures in every interval: no checkpoint is reached, and the simulation says so."""
    monkeypatch.setattr(simulate_module, "_MOST_EVENTS", 1000)
    stuck = plain(
        work_s=DAY, every_s=(2 * HOUR,), hazards=(Hazard(name="any", per_s=1e-2, notice_s=1, restart_s=1),)
    )
    with pytest.raises(InputError, match="do not end"):
        simulate(stuck, 2)


def test_one_seed_is_one_answer() -> None:
    """The same campaigns, number by number."""
    first, again = (simulate(plain(), 20, seed=5) for _ in range(2))
    other = simulate(plain(), 20, seed=6)
    assert first.wall_s.tolist() == again.wall_s.tolist() != other.wall_s.tolist()


def test_without_failures_the_clock_shows_work_and_stalls() -> None:
    """A rate that strikes in no run leaves exactly the checkpoints."""
    course = plain(
        hazards=(Hazard(name="any", per_s=1e-15, notice_s=1, restart_s=1),), work_s=1000.0, every_s=(300.0,)
    )
    assert simulate(course, 3).wall_s.tolist() == pytest.approx([1030.0] * 3)


def test_a_failure_in_a_stall_loses_the_interval_before_it() -> None:
    """A checkpoint counts once it is durable: after its stall and its latency."""
    cycles = Cycles(every=(10.0,), stalls=(2.0,), latencies=(3.0,))
    ones = np.ones(5)
    wall = np.array([9.0, 11.0, 14.9, 15.1, 27.1])
    assert cycles.durable(0, wall, ones).tolist() == [0.0, 0.0, 0.0, 10.0, 20.0]


@pytest.mark.parametrize("seed", range(5))
def test_work_and_clock_are_inverse(seed: int) -> None:
    """Through two nested levels, at any speed."""
    draw = np.random.default_rng(seed)
    cycles = Cycles(every=(7.0, 28.0), stalls=(0.5, 2.0), latencies=(0.0, 5.0))
    work, v = draw.uniform(0, 500, 100), draw.uniform(0.2, 1, 100)
    assert cycles.work(cycles.wall(work, v), v) == pytest.approx(work)


def test_a_thousand_campaigns_of_ninety_days_take_less_than_a_minute() -> None:
    """On 16,384 GPUs at the rate of Llama 3, one core."""
    course = plain(
        hazards=(
            Hazard(
                name="node",
                per_s=0.7 / (3.09 * HOUR),
                notice_s=30,
                restart_s=105,
                restart_sigma=0.4,
                loses="node",
            ),
            Hazard(name="software", per_s=0.3 / (3.09 * HOUR), notice_s=600, restart_s=105),
        ),
        spares=12,
        repair_s=DAY,
        every_s=(150.0,),
        levels=(CheckpointLevel(name="storage", stall_s=1.0, durable_s=57.0, load_s=60.0),),
    )
    started = time.process_time()
    runs = simulate(course, 1000)
    assert np.mean(runs.wall_s) > 90 * DAY
    assert time.process_time() - started < 60
