"""The simulation of continuous batching conserves requests and tokens.

And agrees with queueing theory in its limits.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.serving.simulation.disaggregated import Fleet, PoolRules, Transfer, simulate_pools
from costmodel.serving.simulation.load import Lengths, Load, closed_load, open_load
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import simulate
from costmodel.serving.step_table import AttentionGrid, StepTimes
from tests.counts import tries

NO_ATTENTION = AttentionGrid(query_tokens=(0, 10**6), past_tokens=(0, 10**6), seconds=((0, 0), (0, 0)))


def step_times(
    *, max_batch: int = 64, per_prompt_token_s: float = 1e-5, decode_s: float = 0.01, ranks: int = 1
) -> StepTimes:
    return StepTimes(
        linear_s=tuple(per_prompt_token_s * tokens for tokens in range(20_001)),
        graph_linear_s=tuple(decode_s + 1e-5 * b for b in range(max_batch + 1)),
        decode_attention_s=(1e-4,) * (max_batch + 1),
        decode_attention_s_per_token=(1e-8,) * (max_batch + 1),
        prefill_attention=NO_ATTENTION,
        ranks=ranks,
    )


def given_lengths(inputs: list[int], outputs: list[int], gaps: list[float]) -> Load:
    return Load(
        input_tokens=np.array(inputs),
        output_tokens=np.array(outputs),
        cached_tokens=np.zeros(len(inputs), dtype=np.int64),
        arrival_s=np.cumsum(gaps),
    )


requests = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 400), st.floats(0, 0.5)), min_size=1, max_size=60
)


@settings(max_examples=tries(35, 100), deadline=None)
@given(
    requests,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from((0.0, 0.3, 1.0)),
    st.sampled_from((1, 4)),
    st.sampled_from((0, 1)),
    st.sampled_from((0, 20)),
    st.sampled_from((0, 5)),
)
def test_every_request_and_every_token_is_served_exactly_once(
    drawn: list[tuple[int, int, float]],
    mixed: bool,
    chunked: bool,
    lagged: bool,
    reserve: float,
    ranks: int,
    spare_blocks: int,
    balance_steps: int,
    gather_steps: int,
) -> None:
    """No scheduler loses or repeats a request, a prompt token or an output token, nor overfills the cache."""
    load = given_lengths([i for i, _, _ in drawn], [o for _, o, _ in drawn], [g for _, _, g in drawn])
    rules = Scheduler(
        token_budget=512, max_batch=8, kv_capacity_tokens=6000, mixed=mixed, chunked=chunked,
        output_reserve=reserve, lagged=lagged, spare_blocks=spare_blocks, balance_steps=balance_steps,
        gather_steps=gather_steps,
    )  # fmt: skip
    done = simulate(step_times(max_batch=8, ranks=ranks), rules, load)
    assert np.isfinite(done.finish_s).all()
    assert (done.first_token_s > done.arrival_s).all()
    assert (done.finish_s >= done.first_token_s).all()
    assert done.peak_kv_tokens <= rules.kv_capacity_tokens
    decoded = int((done.step_batch * done.step_count).sum())
    if done.preemptions == 0:
        assert done.prefilled_tokens == int(load.input_tokens.sum())
        assert decoded == int((load.output_tokens - 1).sum())
    else:
        assert done.prefilled_tokens > int(load.input_tokens.sum())
        assert decoded == int((load.output_tokens - 1).sum()) - (done.preemptions - done.restarts)


def test_prompts_wait_until_every_attention_rank_has_one() -> None:
    """Of four ranks that decode: for the fourth prompt, for the steps allowed at most, never where one idles."""
    rules = Scheduler(token_budget=512, max_batch=16, kv_capacity_tokens=60_000, balance_steps=20)
    times, step_s = step_times(max_batch=16, ranks=4), 0.0102
    decoding, late = [100] * 4, 8 * step_s

    def first_tokens(later: list[float], *, running: int = 4) -> list[float]:
        """Seconds from sending prompts, at `later` after the first ones have begun to decode, to their tokens."""
        inputs = decoding[:running] + [100] * len(later)
        sent = [0.0] * running + [1.0 + at for at in later]
        load = given_lengths(inputs, [1000] * len(inputs), np.diff([0.0, *sent]).tolist())
        return simulate(times, rules, load).ttft_s[running:].tolist()

    together = first_tokens([0.0, 0.0, 0.0, late])
    assert together[:3] == pytest.approx([late] * 3, abs=3 * step_s)
    assert together[3] < 3 * step_s
    alone = first_tokens([0.0])
    assert alone[0] == pytest.approx(20 * step_s, abs=3 * step_s)
    assert first_tokens([0.0], running=3)[0] < 3 * step_s


@pytest.mark.parametrize("gather_steps", [0, 10])
@pytest.mark.parametrize("balance_steps", [0, 20])
def test_prompts_of_all_ranks_wait_for_others_as_long_as_is_said(
    gather_steps: int, balance_steps: int
) -> None:
    """Of four ranks that decode: a prompt on each, and one more that comes within the wait and joins them.

    Alone it waits for prompts of the other ranks, unless they are not waited for: TensorRT-LLM counts both apart.
    """
    rules = Scheduler(
        token_budget=512, max_batch=16, kv_capacity_tokens=60_000, balance_steps=balance_steps,
        gather_steps=gather_steps,
    )  # fmt: skip
    times, step_s = step_times(max_batch=16, ranks=4), 0.0102
    later = [1.0] * 4 + [1.0 + 5 * step_s]
    load = given_lengths([100] * 9, [1000] * 9, np.diff([0.0, *[0.0] * 4, *later]).tolist())
    found = simulate(times, rules, load).ttft_s[4:]
    assert found[:4] == pytest.approx([gather_steps * step_s] * 4, abs=3 * step_s)
    if gather_steps:
        assert found[4] == pytest.approx(found[0] - 5 * step_s, abs=1e-9)
    else:
        assert found[4] == pytest.approx(balance_steps * step_s, abs=3 * step_s)


@settings(max_examples=tries(15, 40), deadline=None)
@given(requests, st.integers(1, 3), st.integers(1, 3))
def test_two_pools_serve_every_request_once(
    drawn: list[tuple[int, int, float]], prompts: int, outputs: int
) -> None:
    """A disaggregated fleet loses nothing between its pools."""
    load = given_lengths([i for i, _, _ in drawn], [o for _, o, _ in drawn], [g for _, _, g in drawn])
    rules = Scheduler(token_budget=512, max_batch=8, kv_capacity_tokens=6000)
    times = step_times(max_batch=8)
    done = simulate_pools(
        PoolRules(workers=prompts, times=times, rules=rules),
        PoolRules(workers=outputs, times=times, rules=rules),
        Transfer(latency_s=0.01, s_per_token=1e-7),
        load,
    )
    assert np.isfinite(done.finish_s).all()
    assert (done.finish_s >= done.first_token_s).all()
    several = load.output_tokens > 1
    assert (done.finish_s[several] >= done.first_token_s[several] + 0.01).all()
    if done.preemptions == 0:
        assert done.prefilled_tokens == int(load.input_tokens.sum())


@settings(max_examples=tries(15, 40), deadline=None)
@given(requests, st.integers(1, 3), st.integers(1, 3), st.sampled_from((0.01, 3.0)), st.booleans())
def test_prefill_workers_never_hold_more_than_their_cache(
    drawn: list[tuple[int, int, float]], prompts: int, outputs: int, latency_s: float, holds_slot: bool
) -> None:
    """However slowly caches move, and however full the decode pool is, all requests are served in the end."""
    load = given_lengths([i for i, _, _ in drawn], [o for _, o, _ in drawn], [g for _, _, g in drawn])
    rules = Scheduler(token_budget=512, max_batch=4, kv_capacity_tokens=3500, holds_slot=holds_slot)
    pools = [
        PoolRules(workers=count, times=step_times(max_batch=4), rules=rules) for count in (prompts, outputs)
    ]
    fleet = Fleet(pools[0], pools[1], Transfer(latency_s=latency_s, s_per_token=1e-7), load)
    fleet.run()
    for worker in fleet.prefill:
        assert worker.peak_kv <= rules.kv_capacity_tokens
        assert (worker._kv, worker._running) == (0.0, 0)
    assert fleet.done == len(load)


@pytest.mark.parametrize(
    ("cache", "slots", "holds_slot", "waits"),
    [(1100, 8, False, True), (10_000, 1, True, True), (10_000, 1, False, False), (10_000, 8, True, False)],
)
def test_a_prompt_waits_for_the_cache_and_the_slot_of_one_that_is_still_to_move(
    cache: int, slots: int, holds_slot: bool, waits: bool
) -> None:
    """Room for one prompt, of which each takes 0.01 s and two seconds to move: the second starts when it has."""
    rules = Scheduler(token_budget=2000, max_batch=slots, kv_capacity_tokens=cache, holds_slot=holds_slot)
    free = Scheduler(token_budget=2000, max_batch=8, kv_capacity_tokens=10_000)
    done = simulate_pools(
        PoolRules(workers=1, times=step_times(), rules=rules), PoolRules(workers=1, times=step_times(), rules=free),
        Transfer(latency_s=2.0, s_per_token=0.0), given_lengths([1000, 1000], [2, 2], [0.0, 0.005]),
    )  # fmt: skip
    second = 2.02 if waits else 0.02
    assert (done.first_token_s - 2.0).tolist() == pytest.approx([0.01, second], abs=1e-3)


@pytest.mark.parametrize("places", [1, 2])
def test_a_first_token_is_seen_where_outputs_are_decoded(places: int) -> None:
    """Two prompts computed after 0.02 s and fetched after 0.3 more: the second waits for a place where there is one."""
    rules, few = (
        Scheduler(token_budget=2000, max_batch=most, kv_capacity_tokens=10_000) for most in (8, places)
    )
    done = simulate_pools(
        PoolRules(workers=1, times=step_times(), rules=rules), PoolRules(workers=1, times=step_times(), rules=few),
        Transfer(latency_s=0.3, s_per_token=0.0), given_lengths([1000, 1000], [11, 11], [0.0, 0.0]),
    )  # fmt: skip
    first, second = done.first_token_s.tolist()
    assert first == pytest.approx(0.32)
    assert second == pytest.approx(first if places == 2 else done.finish_s[0])


@settings(max_examples=tries(10, 25), deadline=None)
@given(st.integers(1, 32), st.integers(2, 60))
def test_a_closed_loop_keeps_exactly_its_concurrency_in_flight(concurrency: int, count: int) -> None:
    """Never more requests are in flight than the client keeps, and at some time as many."""
    load = closed_load(
        concurrency=concurrency, count=count, inputs=Lengths(mean=100), outputs=Lengths(mean=20)
    )
    done = simulate(step_times(), Scheduler(token_budget=512, max_batch=64, kv_capacity_tokens=100_000), load)
    order = np.argsort(done.arrival_s, kind="stable")
    in_flight = [int(((done.arrival_s <= t) & (done.finish_s > t)).sum()) for t in done.arrival_s[order]]
    assert max(in_flight) == min(concurrency, count)


@pytest.mark.parametrize("load_share", [0.3, 0.6, 0.8])
def test_one_prompt_at_a_time_is_an_m_d_1_queue(load_share: float) -> None:
    """Constant service, Poisson arrivals: mean wait ρ·s/(2(1 − ρ)) (Pollaczek–Khinchine)."""
    service = 0.02
    load = open_load(
        rate_per_s=load_share / service,
        count=60_000,
        inputs=Lengths(mean=2000),
        outputs=Lengths(mean=1),
        seed=3,
    )
    done = simulate(step_times(), Scheduler(token_budget=2000, max_batch=1, kv_capacity_tokens=10**9), load)
    wait = float((done.first_token_s - done.arrival_s).mean()) - service
    assert wait == pytest.approx(load_share * service / (2 * (1 - load_share)), rel=0.08)


def test_random_prompts_one_at_a_time_are_an_m_g_1_queue() -> None:
    """Mean wait λ·E[s²]/(2(1 − ρ)) for log-normal service."""
    inputs = Lengths(mean=1000, p99=3000)
    rate = 60.0
    load = open_load(rate_per_s=rate, count=80_000, inputs=inputs, outputs=Lengths(mean=1), seed=5)
    done = simulate(step_times(), Scheduler(token_budget=10**6, max_batch=1, kv_capacity_tokens=10**9), load)
    service = load.input_tokens * 1e-5
    expected = rate * float((service**2).mean()) / (2 * (1 - rate * float(service.mean())))
    wait = float((done.first_token_s - done.arrival_s - service).mean())
    assert wait == pytest.approx(expected, rel=0.1)


def test_an_idle_replica_serves_at_once() -> None:
    """Far apart, every request takes its own prefill and its own steps and nothing else."""
    times = step_times()
    load = given_lengths([1000, 1000], [11, 11], [1.0, 100.0])
    done = simulate(times, Scheduler(token_budget=2000, max_batch=8, kv_capacity_tokens=10_000), load)
    context = 1000 + np.arange(10)
    steps = sum(times.decode_s(1, float(k)) for k in context)
    assert done.ttft_s.tolist() == pytest.approx([0.01, 0.01])
    assert (done.finish_s - done.first_token_s).tolist() == pytest.approx([steps, steps])


def test_speculation_divides_the_steps() -> None:
    """At two tokens a step, 21 output tokens after the first take half the steps."""
    from dataclasses import replace

    times = step_times()
    load = given_lengths([100], [21], [0.0])
    rules = Scheduler(token_budget=2000, max_batch=8, kv_capacity_tokens=10_000)
    plain = simulate(times, rules, load)
    fast = simulate(replace(times, tokens_per_step=2.0), rules, load)
    assert plain.step_count.sum() == 20
    assert fast.step_count.sum() == 10


def test_a_request_that_never_fits_is_refused() -> None:
    """A request longer than the whole cache would wait for ever, so it is an error."""
    from topology.base.errors import InputError

    load = given_lengths([5000], [2000], [0.0])
    with pytest.raises(InputError, match="the KV cache cannot hold one request"):
        simulate(step_times(), Scheduler(token_budget=512, max_batch=8, kv_capacity_tokens=6000), load)
