"""The search for a serving fleet: bounds, proofs, monotonicity, and the worked scenarios of the serving notes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.bands import AGGREGATED, evidence_of
from costmodel.serving.deployment import Deployment, ServingLayout, stage_layers
from costmodel.serving.engine import serving_stack
from costmodel.serving.held import MOST_BATCH
from costmodel.serving.memory import kv_bytes_per_token
from costmodel.serving.simulation.simulator import simulate
from planner.deployment.vllm_sglang import commands
from planner.serving.board import enumerate_options, lower
from planner.serving.capacity import best_chunk, capacity_per_s, load_at, meets
from planner.serving.fleet import run_closed
from planner.serving.limit_checks import chance_kept
from planner.serving.plan import (
    ServingInfeasible,
    ServingPlan,
    ServingRequest,
    serving_from_json,
    serving_to_json,
)
from planner.serving.replica import (
    PROMPT_ONLY,
    Option,
    rate_bound_per_s,
    token_budgets,
    with_chunks,
)
from planner.serving.search import best_selection, fleet_certificate, search_serving
from planner.serving.space import deployment_of
from tests.counts import IS_NIGHTLY, cases_of_run
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.catalog import cluster

CAL = load_calibration()
ROOT = Path(__file__).resolve().parents[4]


def ask(name: str, gpu: str, num_gpus: int | None, **changes: object) -> ServingPlan | ServingInfeasible:
    """Ask for a fleet; keywords that are fields of the request go there, the others to the job."""
    fields = {
        key: changes.pop(key)
        for key in ("weights", "modes", "pins", "usd_per_gpu_hour", "engine")
        if key in changes
    }
    job = ServingJob(**{"input_tokens": 1000, "output_tokens": 200, **changes})  # type: ignore[arg-type]  # test keywords
    request = ServingRequest(model=model(name), job=job, gpu=gpu, num_gpus=num_gpus, **fields)  # type: ignore[arg-type]  # same
    return search_serving(CAL, request, default_cluster(gpu, num_gpus or 64).hierarchy)


def fleet(*arguments: object, **changes: object) -> ServingPlan:
    """Ask for a fleet that exists."""
    plan = ask(*arguments, **changes)  # type: ignore[arg-type]  # passed through
    assert isinstance(plan, ServingPlan), plan
    return plan


def options(name: str, num_gpus: int, **job: object) -> list[Option]:
    request = ServingRequest(
        model=model(name),
        job=ServingJob(**{"input_tokens": 1000, "output_tokens": 200, **job}),  # type: ignore[arg-type]  # test keywords
        gpu="h100-sxm",
        num_gpus=num_gpus,
    )
    return enumerate_options(CAL, request, default_cluster("h100-sxm", num_gpus).hierarchy).options


def kept_at(option: Option, rate_per_s: float) -> bool:
    """Whether a replica keeps its limits at a rate, all requests simulated."""
    load = load_at(option, rate_per_s)
    return meets(option, load, simulate(option.times, option.rules, load))


def test_the_capacity_found_by_simulation_never_exceeds_its_bound() -> None:
    """What prunes a search is admissible."""
    for option in options("8b", 4, ttft_s=1.0):
        bound = rate_bound_per_s(option)
        assert capacity_per_s(option, most_per_s=2 * bound, precision=0.1) <= bound


def test_chunk_sizes_are_searched_where_prompts_may_be_cut() -> None:
    """The GPU's default first, then 2,048 and 8,192 tokens; the capacity is that of the best of them."""
    option = next(o for o in options("8b", 1, ttft_s=2.0, input_tokens=4000))
    choices = with_chunks(option)
    assert [one.rules.token_budget for one in choices] == [8192, 2048]
    most = rate_bound_per_s(option)
    best, capacity = best_chunk(option, most_per_s=most)
    each = [capacity_per_s(one, most_per_s=most) for one in choices]
    assert best.rules.token_budget in (2048, 8192)
    assert capacity >= max(each) / (1 + 0.02)
    job = ServingJob(input_tokens=1000, output_tokens=200)
    for engine, gpu, phase, wanted in (
        ("trtllm", "h100-sxm", "whole", (2048,)),
        ("sglang", "h100-sxm", "whole", (8192, 2048)),
        ("sglang", "rtx-4090", "whole", (4096, 2048, 8192)),
        ("vllm", "b200-sxm", "prefill", (16384, 2048, 8192)),
        ("vllm", "b200-sxm", "decode", (2048,)),
        ("vllm", "a100-sxm-80gb", "whole", (2048, 8192)),
    ):
        hierarchy = default_cluster(gpu, 1).hierarchy
        layout = ServingLayout()
        one = Deployment(model=model("8b"), hierarchy=hierarchy, layout=layout, stack=serving_stack(engine))
        assert token_budgets(one, job, phase) == wanted


def test_prompts_are_batched_whatever_the_limit_on_output_tokens() -> None:
    """A worker that decodes too slowly for the limit may still hold many prompts: it decodes none."""
    job = ServingJob(input_tokens=4000, output_tokens=500, ttft_s=2.0, tpot_s=0.03)
    hierarchy = default_cluster("h100-sxm", 8).hierarchy
    request = ServingRequest(
        model=model("70b"), job=job, gpu="h100-sxm", num_gpus=8, pins={"tp": 1, "pp": 4}, modes=("disaggregated",),
        engine="trtllm",
    )  # fmt: skip
    board = enumerate_options(CAL, request, hierarchy)
    (prompts,) = board.options
    assert prompts.phase == PROMPT_ONLY
    assert board.pruned == {"time per output token": 1}
    assert prompts.rules.max_batch == prompts.times.max_batch > 1


@pytest.mark.parametrize(
    ("engine", "kept"),
    [("vllm", set()), ("sglang", {("prefill", 2)}), ("trtllm", {("prefill", 2), ("decode", 2)})],
)
def test_pools_have_stages_where_the_connector_moves_their_cache(
    engine: str, kept: set[tuple[str, int]]
) -> None:
    """That of vLLM pulls from the first stage alone; whole replicas have stages on every engine."""
    request = ServingRequest(
        model=model("8b"), job=ServingJob(input_tokens=1000, output_tokens=100), gpu="h100-sxm", num_gpus=8,
        pins={"tp": 1}, modes=("aggregated", "disaggregated"), engine=engine,
    )  # fmt: skip
    board = enumerate_options(CAL, request, default_cluster("h100-sxm", 8).hierarchy)
    found = {(option.phase, option.deployment.layout.pp) for option in board.options}
    assert {one for one in found if one[0] != "whole" and one[1] == 2} == kept
    assert ("whole", 2) in found


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_first_tokens_of_a_pool_are_seen_when_its_engine_shows_them(engine: str) -> None:
    """A step later where the next one is prepared meanwhile, which TensorRT-LLM's context servers do not."""
    request = ServingRequest(
        model=model("8b"), job=ServingJob(input_tokens=1000, output_tokens=100), gpu="h100-sxm", num_gpus=1,
        modes=("aggregated", "disaggregated"), engine=engine,
    )  # fmt: skip
    board = enumerate_options(CAL, request, default_cluster("h100-sxm", 1).hierarchy)
    later = {option.phase: option.rules.lagged for option in board.options}
    assert later == {"whole": True, "prefill": engine != "trtllm", "decode": True}


@pytest.mark.parametrize("phase", ["prefill", "decode", "whole"])
def test_the_requests_that_try_a_replica_do_not_depend_on_its_limits(phase: str) -> None:
    """Or a looser limit, tried by other requests, could be found harder to keep."""
    loads = []
    for limits in ({"ttft_s": 0.3, "tpot_s": 0.02}, {"ttft_s": 3.0, "tpot_s": 0.2}, {}):
        option = replace(options("8b", 1)[0], phase=phase)
        option = replace(option, job=replace(option.job, **limits))
        loads.append(load_at(option, 5.0))
    assert len({load.arrival_s.tobytes() for load in loads}) == 1


def test_a_capacity_keeps_the_limits_and_a_tenth_more_breaks_them() -> None:
    """The capacity is where the limits are met."""
    option = next(o for o in options("8b", 1, ttft_s=0.3, tpot_s=0.02))
    capacity = capacity_per_s(option, most_per_s=rate_bound_per_s(option))
    assert kept_at(option, capacity)
    assert not kept_at(option, 1.1 * capacity)


def test_a_queue_that_grows_evenly_is_no_capacity() -> None:
    """Without limits too: at a rate far beyond what its steps can emit a replica does not serve."""
    option = next(o for o in options("8b", 1))
    bound = rate_bound_per_s(option)
    assert not kept_at(option, 3 * bound)


@pytest.mark.parametrize(
    ("name", "gpus"), cases_of_run([("8b", 2), ("70b", 4), ("mixtral-8x7b", 4)], [("70b", 4)])
)
def test_twice_the_gpus_never_serve_less_than_two_copies(name: str, gpus: int) -> None:
    """Tokens per second per GPU do not fall when the fleet doubles."""
    limits = {"ttft_s": 2.0, "tpot_s": 0.05}
    one, two = (fleet(name, "h100-sxm", size, **limits) for size in (gpus, 2 * gpus))
    assert two.estimate.tokens_per_s_per_gpu >= one.estimate.tokens_per_s_per_gpu * (1 - 1e-9)


def test_a_looser_limit_never_needs_more_gpus() -> None:
    """The fleet for a rate shrinks, or stays, as the limit on the first token is relaxed."""
    sizes = [
        fleet("70b", "h100-sxm", None, weights=("fp8",), request_rate_per_s=20.0, ttft_s=limit).num_gpus
        for limit in (0.3, 0.6, 2.0)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_a_fleet_for_a_rate_is_the_smallest_the_exhaustive_search_finds() -> None:
    """Oracle: the capacity of every option, and as many of each as the rate needs."""
    rate, limit = 30.0, 1.0
    plan = fleet("8b", "h100-sxm", 8, request_rate_per_s=rate, ttft_s=limit)
    needed = []
    for option in options("8b", 8, request_rate_per_s=rate, ttft_s=limit):
        count = next(
            (n for n in range(1, 9) if kept_at(option, rate / n)),
            None,
        )
        needed += [count * option.num_gpus] if count else []
    assert plan.num_gpus == min(needed)
    assert plan.optimality.status == "proven"


def test_a_plan_reads_back_exactly_and_twice_is_the_same() -> None:
    """JSON round-trips, and the same question has the same answer apart from the time it took."""
    one, two = (fleet("8b", "h100-sxm", 2, ttft_s=1.0) for _ in "ab")
    assert serving_from_json(serving_to_json(one)) == one
    assert replace(one, search_time_s=0.0) == replace(two, search_time_s=0.0)


def test_bytes_and_tokens_of_the_cache_are_one_count() -> None:
    """The printed bytes of the fullest GPU hold the printed tokens, up to a block."""
    plan = fleet("8b", "h100-sxm", 2, tpot_s=0.015)
    pool = plan.decode
    option = next(o for o in options("8b", 2, tpot_s=0.015) if o.deployment.layout == pool.layout)
    token = kv_bytes_per_token(option.deployment, 1200)
    held = pool.kv_capacity_tokens / pool.layout.attention_dp
    assert pool.max_batch < MOST_BATCH
    assert 0 <= pool.memory.kv_cache_bytes / token - held < 16


def test_costs_are_the_fleets_hours_shared_by_its_queries() -> None:
    """Dollars of a query times queries an hour are the dollars of an hour; tokens share a query's cost."""
    plan = fleet("8b", "h100-sxm", 1, request_rate_per_s=5.0, usd_per_gpu_hour=3.0)
    estimate = plan.estimate
    assert estimate.usd_per_hour == 3.0
    assert estimate.usd_per_query == pytest.approx(3.0 / (5.0 * 3600))
    assert estimate.usd_per_million_input_tokens is not None
    assert estimate.usd_per_million_output_tokens is not None
    tokens = 1000 * estimate.usd_per_million_input_tokens + 200 * estimate.usd_per_million_output_tokens
    assert tokens / 1e6 == pytest.approx(estimate.usd_per_query)


def test_tokens_share_the_cost_at_the_batch_that_was_simulated() -> None:
    """A loaded engine reads its weights for many requests at once, so outputs take less of its time."""
    quiet, loaded = (
        fleet("8b", "h100-sxm", 1, concurrency=load, usd_per_gpu_hour=3.0).estimate for load in (1, 64)
    )
    shares = []
    for estimate in (quiet, loaded):
        assert estimate.usd_per_million_input_tokens is not None
        assert estimate.usd_per_query is not None
        shares.append(1000 * estimate.usd_per_million_input_tokens / 1e6 / estimate.usd_per_query)
    assert 5 * shares[0] < shares[1]


def test_limits_below_an_empty_engine_say_what_is_achievable() -> None:
    """Ten milliseconds are less than one prefill."""
    miss = ask("70b", "h100-sxm", 8, ttft_s=0.010)
    assert isinstance(miss, ServingInfeasible)
    assert miss.best_ttft_s is not None
    assert miss.best_ttft_s > 0.010
    assert "--ttft" in miss.fix


def test_the_limit_that_is_broken_is_named() -> None:
    """Output tokens alone take longer than the end-to-end limit; the other two limits are loose."""
    miss = ask("70b", "h100-sxm", 8, ttft_s=5.0, tpot_s=1.0, end_to_end_s=0.3)
    assert isinstance(miss, ServingInfeasible)
    assert miss.fix.startswith("relax --e2e to ")
    assert "the whole" in miss.cause


def test_only_weights_that_the_gpu_has_and_that_fit_are_proposed() -> None:
    """An A100 has no eight-bit floats; 405B in eight bits fits neither on eight nor, in four, on two."""
    fixes = {}
    for gpu, size in (("a100-sxm-80gb", 4), ("h100-sxm", 8), ("a100-sxm-80gb", 2)):
        miss = ask("405b", gpu, size, concurrency=8)
        assert isinstance(miss, ServingInfeasible)
        fixes[gpu, size] = miss.fix
    assert fixes["a100-sxm-80gb", 4].endswith("--weights int4")
    assert fixes["h100-sxm", 8].endswith("--weights fp8 or int8 or int4")
    assert fixes["a100-sxm-80gb", 2] == "use more or larger GPUs"


def test_overload_says_what_the_fleet_serves_and_what_breaks() -> None:
    """The refused rate has a capacity beside it that is one: asked for alone it is served, 3 % more is not."""
    limits = {"ttft_s": 2.0, "tpot_s": 0.1, "input_tokens": 2000, "output_tokens": 300}
    miss = ask("70b", "h100-sxm", 8, request_rate_per_s=12.0, pins={"tp": 4, "pp": 1}, **limits)
    assert isinstance(miss, ServingInfeasible)
    capacity = miss.capacity_requests_per_s
    assert capacity is not None
    words = re.fullmatch(r"they serve (.*)/s \(2 × tp4 bf16\); at 12/s p99 .* breaks?", miss.cause)
    assert words is not None
    assert float(words[1]) == pytest.approx(capacity, rel=0.01)
    served = fleet(
        "70b", "h100-sxm", 8, request_rate_per_s=0.999 * capacity, pins={"tp": 4, "pp": 1}, **limits
    )
    assert served.num_gpus == 8
    more = ask("70b", "h100-sxm", 8, request_rate_per_s=1.03 * capacity, pins={"tp": 4, "pp": 1}, **limits)
    assert isinstance(more, ServingInfeasible)


def test_runners_up_of_a_closed_loop_are_the_other_fleets_that_were_simulated() -> None:
    """Never the winner, and by its simulated rate, not by a bound."""
    plan = fleet("8b", "h100-sxm", 4, concurrency=32)
    assert plan.alternatives
    for other in plan.alternatives:
        assert not other.label.startswith(f"{plan.label} ")
        assert other.capacity_requests_per_s <= plan.estimate.request_rate_per_s
        assert "at least" not in other.why


def test_runners_up_that_were_not_simulated_lose_by_at_least_what_their_bound_says() -> None:
    """The bounds of most replicas are below what the winner serves, so one other alone was simulated."""
    plan = fleet("8b", "h100-sxm", 4, ttft_s=1.0, input_tokens=80)
    assert plan.optimality.simulated == 2 < plan.optimality.enumerated
    fewer = [
        re.fullmatch(r"serves at least (\d+\.\d) % fewer requests within the limits", other.why)
        for other in plan.alternatives
    ]
    losses = [float(found[1]) for found in fewer if found is not None]
    assert len(losses) == len(plan.alternatives) == 2
    assert losses[0] == 2.0  # it failed a resolution above the winner
    assert losses[1] > 10


@pytest.mark.parametrize("rate", [5.0, 8.0])
def test_of_fleets_at_one_bill_the_measured_one_of_the_highest_chance_is_proposed(rate: float) -> None:
    """The equals are simulated: none was measured and keeps its limits more surely."""
    plan = fleet("70b", "h100-sxm", None, weights=("fp8",), request_rate_per_s=rate, input_tokens=2000,
                 output_tokens=300, ttft_s=1.0, tpot_s=0.04)  # fmt: skip
    equals = [other.why for other in plan.alternatives if other.num_gpus == plan.num_gpus]
    assert equals
    for why in equals:
        assert why.startswith("same bill"), why
        chances = re.search(r"limits (\d+)%, of the chosen one (\d+)%", why)
        assert chances is None or (int(chances[1]) < int(chances[2]) == round(100 * plan.chance))
    assert plan.evidence.rows or not any("no measured runs" in why for why in equals)


def test_of_a_runner_up_that_was_not_simulated_whole_it_is_said_what_stands_behind_it() -> None:
    """Workers that carry the rate alone are not called as good: nobody saw them together, or measured them."""
    for gpu, rate, runs in (("h100-sxm", 20.0, r"\d+ measured runs"), ("l40s", 16.0, "no measured runs")):
        plan = fleet("8b", gpu, None, weights=("fp8",), modes=("aggregated", "disaggregated"), input_tokens=2000,
                     request_rate_per_s=rate, output_tokens=300, pins={"pp": 1, "tp": 1})  # fmt: skip
        (other,) = plan.alternatives
        assert other.num_gpus == plan.num_gpus
        alone = "as many GPUs, of workers that were simulated alone, not as a fleet"
        assert re.fullmatch(f"{alone}; {runs}", other.why)


def test_a_runner_up_that_no_bound_tells_from_the_winner_is_simulated() -> None:
    """No fleet of the same worth is shown that nobody looked at."""
    plan = fleet("deepseek-r1", "h200-sxm", 16, weights=("fp8",), modes=("aggregated", "disaggregated"),
                 input_tokens=4000, output_tokens=1000, ttft_s=3.0, tpot_s=0.05)  # fmt: skip
    assert plan.alternatives
    assert all("not simulated" not in other.why for other in plan.alternatives)


def test_a_limit_inside_the_error_band_is_told_with_its_probability() -> None:
    """The fleet of a rate keeps its limits as predicted; how likely in truth follows from the band."""
    plan = fleet("70b", "h100-sxm", 8, input_tokens=4000, output_tokens=500, ttft_s=1.0, tpot_s=0.03)
    check = plan.estimate.limits["tpot"]
    hierarchy = default_cluster("h100-sxm", 8).hierarchy
    deployed = deployment_of(plan.request, hierarchy, plan.weights, plan.decode.layout)
    band = evidence_of(deployed, AGGREGATED).tpot
    assert check.predicted_s == pytest.approx(plan.estimate.tpot.p99_s)
    assert check.upper_s == pytest.approx(check.predicted_s * band.upper)
    assert check.in_band == (check.limit_s < check.upper_s)
    assert 0.5 <= check.chance <= 1
    assert chance_kept(check.upper_s, check.predicted_s, band) == pytest.approx(0.9)
    assert chance_kept(check.predicted_s * band.lower, check.predicted_s, band) == pytest.approx(0.1)


def test_a_fleet_with_pipeline_stages_says_that_none_were_measured() -> None:
    """And the best fleet without them stands beside it; one without has nothing beside it."""
    question = {"input_tokens": 4000, "output_tokens": 500, "ttft_s": 1.0, "tpot_s": 0.03, "percentile": 50.0}
    plan = fleet("70b", "h100-sxm", 8, modes=("aggregated", "disaggregated"), engine="sglang", **question)
    pools = [pool for pool in (plan.decode, plan.prefill) if pool is not None]
    assert max(pool.layout.pp for pool in pools) > 1
    assert "pipeline stages" in plan.evidence.not_measured
    assert plan.evidence.rows == 0
    beside = plan.evidence.best_measured
    assert beside is not None
    assert "pp" not in beside.label
    assert beside.num_gpus <= 8
    assert 0 < beside.capacity_requests_per_s <= 1.01 * plan.estimate.served_per_s
    flat = fleet("qwen3-32b", "h100-sxm", 1, weights=("fp8",), **question)
    assert flat.evidence.best_measured is None
    assert flat.evidence.rows > 20
    assert flat.evidence.not_measured == ()


def test_requests_of_one_token_are_bound_by_their_prompts() -> None:
    """No decode step is blamed where there is none, and their prompts fill the cache."""
    plan = fleet("8b", "h100-sxm", 1, output_tokens=1, ttft_s=1.0)
    assert re.fullmatch(r"computing prompts \(100 % of the time\)", plan.estimate.bound_by)
    assert plan.estimate.kv_used_share > 0
    assert "reading" in fleet("8b", "h100-sxm", 1, output_tokens=500, tpot_s=0.02).estimate.bound_by


def test_a_search_whose_capacities_were_cut_proves_nothing() -> None:
    """What a fleet as a whole did not keep lowers its replicas' capacities, which then bound no fleet of a size.

    For a rate the ceilings are where replicas failed by themselves; those stand.
    """
    for rate, after in ((None, "best-found"), (30.0, "proven")):
        request = fleet("8b", "h100-sxm", 8, request_rate_per_s=rate, ttft_s=1.0).request
        board = enumerate_options(CAL, request, default_cluster("h100-sxm", 8).hierarchy)
        best = best_selection(request, board, board.ceilings_per_s)
        assert best is not None
        assert fleet_certificate(request, board, best).status == "proven"
        lower(board, best, 1.0)
        assert fleet_certificate(request, board, best).status == after


def test_the_capacity_of_a_plan_was_simulated() -> None:
    """None is known of a fleet sized for one rate; GPUs one has carry more, and it is said how far."""
    rate = {"request_rate_per_s": 30.0, "ttft_s": 1.0}
    sized_for_it = fleet("8b", "h100-sxm", None, **rate).estimate
    assert sized_for_it.capacity_requests_per_s is None
    assert sized_for_it.served_per_s == 30.0
    plan = fleet("8b", "h100-sxm", 8, **rate)
    room = plan.estimate.headroom
    assert room is not None
    assert 30.0 <= room.served_per_s == plan.estimate.capacity_requests_per_s
    assert 0 < room.failed_per_s / room.served_per_s - 1 <= 0.025
    assert set(room.broken) <= {"ttft", "queue"}
    assert room.broken


def test_the_capacity_of_a_fleet_is_kept_in_its_own_simulation_and_not_above() -> None:
    """Oracle: the replica simulated at its share of both rates."""
    plan = fleet(
        "8b", "h100-sxm", 2, request_rate_per_s=5.0, ttft_s=0.5, tpot_s=0.02, pins={"tp": 1, "pp": 1}
    )
    room = plan.estimate.headroom
    assert room is not None
    option = next(
        each
        for o in options("8b", 1, ttft_s=0.5, tpot_s=0.02)
        for each in with_chunks(o)
        if each.rules.token_budget == plan.decode.token_budget
    )
    kept = [kept_at(option, rate / plan.decode.workers) for rate in (room.served_per_s, room.failed_per_s)]
    assert kept == [True, False]


def test_eight_bit_floats_need_a_gpu_that_has_them() -> None:
    """Not on a V100, on which no engine widens them."""
    with pytest.raises(InputError, match="v100-sxm-32gb cannot serve fp8 weights") as refused:
        ask("8b", "v100-sxm-32gb", 8, weights=("fp8",))
    assert "--engine" not in str(refused.value)


def test_scenario_13b_needs_two_24_gb_gpus() -> None:
    """26 GB of weights do not fit on one; tensor parallel over two does."""
    alone = ask("llama-2-13b", "rtx-4090", 1)
    assert isinstance(alone, ServingInfeasible)
    assert "does not fit" in alone.what
    pair = fleet("llama-2-13b", "rtx-4090", 2)
    assert pair.decode.layout.tp == 2
    assert pair.decode.kv_capacity_tokens > 4 * 1200


def test_scenario_70b_over_two_nodes_is_a_balanced_pipeline() -> None:
    """Four GPUs in two nodes of two: two stages of forty layers, busy more than three quarters of the time.

    One request at a time keeps one of the two stages busy.
    """
    found = cluster(str(ROOT / "examples" / "two-small-nodes.toml"))
    job = ServingJob(input_tokens=1000, output_tokens=200, ttft_s=2.0)
    request = ServingRequest(model=model("70b"), job=job, gpu=found.gpu.name, num_gpus=4)
    plan = search_serving(CAL, request, found.hierarchy)
    assert isinstance(plan, ServingPlan)
    assert (plan.decode.layout.tp, plan.decode.layout.pp) == (2, 2)
    assert stage_layers(model("70b"), 2) == (40, 40)
    assert plan.estimate.utilisation > 0.75
    one_at_a_time = replace(request, job=replace(job, concurrency=1), pins={"tp": 2, "pp": 2})
    alone = search_serving(CAL, one_at_a_time, found.hierarchy)
    assert isinstance(alone, ServingPlan)
    assert alone.estimate.utilisation < 0.6


def test_scenario_70b_at_100_requests_a_second_is_cheaper_in_fewer_bits() -> None:
    """p99 of the first token under 500 ms: fp8 needs fewer GPUs than bf16."""
    plain, narrow = (
        fleet("70b", "h100-sxm", None, weights=(weights,), request_rate_per_s=100.0, ttft_s=0.5)
        for weights in ("bf16", "fp8")
    )
    assert narrow.num_gpus < plain.num_gpus
    assert plain.estimate.ttft.p99_s <= 0.5
    assert narrow.estimate.ttft.p99_s <= 0.5


def test_scenario_mixtral_on_sixteen_a100() -> None:
    """Mixtral-8x22B keeps 100 ms a token at 64 concurrent requests with experts split over a node."""
    plan = fleet(
        "mixtral-8x22b", "a100-sxm-80gb", 16, concurrency=64, tpot_s=0.1, input_tokens=2000, output_tokens=300
    )
    assert plan.estimate.tpot.p99_s <= 0.1
    assert plan.decode.layout.stage_gpus > 1


@pytest.mark.slow
@pytest.mark.skipif(not IS_NIGHTLY, reason="as of smaller models, in `make nightly`")
def test_scenario_deepseek_r1_aggregated_and_disaggregated() -> None:
    """On 32 H200 both ways serve; offering both never serves less than one of them."""
    common = {"weights": ("fp8",), "input_tokens": 4000, "output_tokens": 1000, "ttft_s": 3.0, "tpot_s": 0.05}
    whole = fleet("deepseek-r1", "h200-sxm", 32, **common)
    either = fleet("deepseek-r1", "h200-sxm", 32, modes=("aggregated", "disaggregated"), **common)
    assert whole.mode == "aggregated"
    assert either.estimate.request_rate_per_s >= 0.97 * whole.estimate.request_rate_per_s
    assert either.estimate.ttft.p99_s <= 3.0
    assert either.estimate.tpot.p99_s <= 0.05


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        (
            "vllm",
            ("vllm serve", "--tensor-parallel-size 8", "--max-num-seqs 512", "--max-model-len auto"),
        ),
        (
            "sglang",
            ("sglang.launch_server", "--tp-size 8", "--max-running-requests 512"),
        ),
        ("trtllm", ("trtllm-serve", "--tp_size 8", "--max_num_tokens", "--max_seq_len 1201")),
    ],
)
def test_commands_carry_the_plan(engine: str, flags: tuple[str, ...]) -> None:
    """Degrees, budgets and lengths of the plan are the engine's flags; the manifest asks for its GPUs."""
    request = ServingRequest(
        model=model("70b"),
        job=ServingJob(input_tokens=1000, output_tokens=200, concurrency=8),
        gpu="h100-sxm",
        num_gpus=8,
        engine=engine,
        pins={"tp": 8},
    )
    plan = search_serving(CAL, request, default_cluster("h100-sxm", 8).hierarchy)
    assert isinstance(plan, ServingPlan)
    found = commands(plan)
    assert all(flag in found["serve"] for flag in flags), found["serve"]
    assert "nvidia.com/gpu: 8" in found["kubernetes"]
    assert "--max-concurrency 8" in found["benchmark"]


def test_requests_that_only_queue_add_waiting_and_no_throughput() -> None:
    """Beyond the largest batch a closed loop serves as many a second, and each request stays n/X (Little)."""
    whole, more = (fleet("8b", "h100-sxm", 2, concurrency=load) for load in (100_000, 1_000_000))
    assert more.estimate.request_rate_per_s == pytest.approx(whole.estimate.request_rate_per_s, rel=1e-3)


@pytest.mark.parametrize("limits", cases_of_run([{}, {"tpot_s": 0.012}, {"ttft_s": 1.0}], [{"ttft_s": 1.0}]))
def test_any_number_of_requests_in_flight_is_answered_after_few_simulations(limits: dict[str, float]) -> None:
    """The fewest replicas are bisected for: some twelve runs for each kind, not one for each number."""
    found = ask("8b", "h100-sxm", None, concurrency=1_000_000, **limits)
    kinds = len(options("8b", 64))
    assert isinstance(found, ServingInfeasible) or found.optimality.simulated <= 13 * kinds


@pytest.mark.parametrize("limits", [{"tpot_s": 0.010}, {"ttft_s": 0.5}, {"tpot_s": 0.012, "ttft_s": 1.0}])
def test_bisection_finds_the_fewest_replicas_of_a_scan(limits: dict[str, float]) -> None:
    """Every smaller fleet of every kind breaks a limit."""
    plan = fleet("8b", "h100-sxm", None, concurrency=96, **limits)
    smaller = [
        run_closed(one, count, 96, which=0).kept
        for option in options("8b", 64, concurrency=96, **limits)
        for one in with_chunks(option)
        for count in range(1, (plan.num_gpus - 1) // one.num_gpus + 1)
    ]
    assert not any(smaller)
    assert smaller or plan.num_gpus == 1


def test_eight_bit_floats_on_a_gpu_without_them_are_weights_alone() -> None:
    """An engine widens them on an A100: their bytes as eight-bit integers have, bf16 arithmetic; others refuse."""
    found = {
        weights: fleet("8b", "a100-sxm-80gb", 1, request_rate_per_s=2.0, weights=(weights,))
        for weights in ("bf16", "int8", "fp8")
    }
    assert found["fp8"].decode.memory == found["int8"].decode.memory
    assert found["fp8"].estimate.tpot == found["int8"].estimate.tpot
    assert found["fp8"].estimate.tpot.p50_s < 0.8 * found["bf16"].estimate.tpot.p50_s
    assert found["fp8"].estimate.ttft.p50_s > 0.9 * found["bf16"].estimate.ttft.p50_s
    assert any("W8A16" in line for line in found["fp8"].assumptions)
    request = replace(found["fp8"].request, engine="trtllm")
    with pytest.raises(InputError, match="does not widen") as refused:
        search_serving(CAL, request, default_cluster("a100-sxm-80gb", 1).hierarchy)
    assert "--engine vllm" in str(refused.value)
