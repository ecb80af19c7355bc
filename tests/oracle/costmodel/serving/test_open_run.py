"""An open load followed in local variables, against the replica that performs one event after the other."""

from dataclasses import dataclass

import numpy as np
import pytest

from costmodel.serving.simulation.load import Lengths, Load, open_load, outputs_of, prompts_of
from costmodel.serving.simulation.open_run import OpenRun
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.requests import NEVER
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.window import Window
from costmodel.serving.step_table import AttentionGrid, StepTimes
from tests.counts import tries

SEEN = (
    "first_token_s", "finish_s", "admitted_s", "finished", "entered", "steps", "preemptions", "restarts",
    "prefilled_tokens", "peak_kv", "busy_s", "clock",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a replica is, and what it is sent."""

    times: StepTimes
    rules: Scheduler
    load: Load


def drawn(seed: int) -> Case:
    """Any engine, ranks and stages; caches that are full now and then; prompts of many chunks or of one."""
    rng = np.random.default_rng(seed)
    ranks, stages = (int(rng.choice(of)) for of in ((1, 1, 1, 4), (1, 1, 2, 3)))
    tight = rng.random() < 0.3  # long prompts in small chunks, and a cache of a few requests
    max_batch, budget = int(rng.choice([4, 16, 64])), 64 if tight else int(rng.choice([64, 512, 4096]))
    linear = np.cumsum(rng.uniform(0, 2e-5, budget + 2 * max_batch)) + rng.uniform(1e-4, 1e-2)
    shared = linear * 0.4 if rng.random() < 0.3 else linear[:0]
    graph = np.cumsum(rng.uniform(0, 1e-4, max_batch + 1)) + 0.01
    query, past = (0.0, 10.0, 500.0, 4000.0, 2e4), (0.0, 64.0, 900.0, 5000.0, 3e4)
    grid = np.cumsum(np.cumsum(rng.uniform(0, 1e-3, (5, 5)), axis=0), axis=1)
    times = StepTimes(
        linear_s=tuple(linear.tolist()),
        shared_s=tuple(shared.tolist()),
        graph_linear_s=tuple(graph.tolist()),
        decode_attention_s=tuple(rng.uniform(1e-4, 1e-3, max_batch + 1).tolist()),
        decode_attention_s_per_token=tuple(rng.uniform(1e-8, 1e-7, max_batch + 1).tolist()),
        prefill_attention=AttentionGrid(
            query_tokens=query, past_tokens=past, seconds=tuple(tuple(row) for row in grid.tolist())
        ),
        ranks=ranks,
        tokens_per_step=float(rng.choice([1.0, 1.0, 2.5])),
        stages=stages,
        passing=stages - 1.0,
    )
    most_in, most_out = int(rng.choice([200, 1500, 20_000])), int(rng.choice([1, 30, 400]))
    most_in, most_out = (1500, 1200) if tight else (most_in, most_out)
    load = open_load(
        rate_per_s=float(rng.choice([0.5, 3.0, 20.0])),
        count=150,
        inputs=Lengths(mean=most_in / 4, p99=most_in / 2),
        outputs=Lengths(mean=max(most_out / 4, 1), p99=most_out / 2),
        cached_share=0.0 if tight else float(rng.choice([0.0, 0.0, 0.5, 1.0])),
        seed=seed,
    )
    load = Load(
        input_tokens=load.input_tokens, output_tokens=load.output_tokens, cached_tokens=load.cached_tokens,
        arrival_s=load.arrival_s, filling=int(rng.choice([0, 40])),
    )  # fmt: skip
    load = (load, load, prompts_of(load), outputs_of(load))[0 if tight else int(rng.integers(4))]
    longest = int((load.input_tokens + load.output_tokens).max())
    room = longest * float(rng.choice([1.2, 3.0, 3.0 if tight else 50.0])) + 64
    rules = Scheduler(
        token_budget=budget,
        max_batch=max_batch,
        kv_capacity_tokens=int(room),
        mixed=bool(rng.integers(2)),
        chunked=bool(rng.integers(4)),
        output_reserve=float(rng.choice([0.0, 0.3, 1.0])),
        lagged=bool(rng.integers(2)),
        spare_blocks=int(rng.integers(2)),
        balance_steps=int(rng.choice([0, 0, 20])),
        gather_steps=int(rng.choice([0, 5])),
    )
    return Case(times=times, rules=rules, load=load)


def by_events(case: Case, order: list[int], sent_s: list[float], window: Window) -> Replica:
    """The replica told of every request at its time, and to perform one event after the other."""
    replica = Replica(case.times, case.rules, case.load)
    upcoming = 0
    while len(replica.finished) < len(order):
        while sent_s[upcoming] <= replica.clock:
            replica.waiting.append(order[upcoming])
            upcoming += 1
        window.passes(upcoming, replica.clock, replica.busy_s)
        replica.advance(sent_s[upcoming])
    return replica


def sent(load: Load) -> tuple[list[int], list[float]]:
    """Every request a little after it was sent, so not all in their order."""
    ready = load.arrival_s + np.random.default_rng(1).uniform(0, 0.02, len(load))
    order = np.argsort(ready, kind="stable")
    return order.tolist(), [*ready[order].tolist(), NEVER]


@pytest.mark.parametrize("block", range(tries(8, 20)))
def test_every_number_is_that_of_one_event_after_the_other(block: int) -> None:
    """To the last bit, of latencies, steps, counts and averages; forty random replicas at a time."""
    for seed in range(40 * block, 40 * block + 40):
        case = drawn(seed)
        order, sent_s = sent(case.load)
        plain_window, window = Window(case.load), Window(case.load)
        plain = by_events(case, order, sent_s, plain_window)
        run = OpenRun(case.times, case.rules, case.load)
        assert run.serve(order, sent_s, window, lambda _: True)
        for name in SEEN:
            assert getattr(run, name) == getattr(plain, name), (seed, name)
        assert window.closed(run.busy_s, run.clock) == plain_window.closed(plain.busy_s, plain.clock), seed


def test_what_is_drawn_has_all_that_is_rare() -> None:
    """Full caches, prompts computed again, prompts of many chunks beside decoding requests, several stages."""
    seen = {"preempted": 0, "restarted": 0, "chunks": 0, "stages": 0, "ranks": 0, "single": 0, "computed": 0}
    seen["gathers"] = 0
    for seed in range(200):
        case = drawn(seed)
        run = OpenRun(case.times, case.rules, case.load)
        run.serve(*sent(case.load), Window(case.load), lambda _: True)
        seen["preempted"] += run.preemptions > 0
        seen["restarted"] += run.restarts > 0
        seen["chunks"] += bool(
            case.rules.chunked and case.load.input_tokens.max() > 4 * case.rules.token_budget
        )
        seen["stages"] += case.times.stages > 1
        waits = case.rules.balance_steps or case.rules.gather_steps
        seen["ranks"] += case.times.ranks > 1 and not waits
        seen["gathers"] += case.times.ranks > 1 and case.rules.gather_steps > case.rules.balance_steps
        seen["single"] += bool(case.load.output_tokens.max() == 1)
        seen["computed"] += bool((case.load.cached_tokens == case.load.input_tokens).all())
    assert min(seen.values()) >= 5, seen


def test_a_run_ends_where_it_is_hopeless() -> None:
    """As soon as it is said to be, with what was found so far."""
    case = drawn(3)
    run = OpenRun(case.times, case.rules, case.load)
    assert not run.serve(*sent(case.load), Window(case.load), lambda seen: len(seen.finished) < 50)
    assert 50 <= len(run.finished) < len(case.load)
