"""Every command of sixty serving plans through the engine's own parser, which reads what the plan has."""

import json
import re
from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from costmodel.serving.engine import scheduler_default, serving_stack
from executor.parsers.ask import VARIABLE, answers, interpreter
from planner.deployment.placement import servers_of
from planner.deployment.vllm_sglang import server_commands
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, resized, varied
from topology.base.units import GB, GIB
from topology.catalog import gpus

STARTS = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"]}


def words_of(engine: str, command: list[str]) -> list[str]:
    """The words that the engine's parser is given, addresses filled in."""
    start = STARTS[engine]
    at = next(i for i in range(len(command)) if command[i : i + len(start)] == start)
    return [re.sub(r"<address of node (\d+)>", r"10.0.0.\1", word) for word in command[at + len(start) :]]


def case_of_words(words: list[str]) -> dict[str, object]:
    """What the engine's interpreter is told."""
    return {
        "files": {"words.json": json.dumps(words)},
        "gpus": 1,
        "environment": {},
        "gpu": "",
        "capability": "",
    }


def expected(plan: ServingPlan, engine: str) -> list[dict[str, object]]:
    """What the parser must read in every command of a plan."""
    found = []
    for one in servers_of(plan):
        layout, ranks = one.pool.layout, one.pool.layout.attention_dp
        vllm = engine == "vllm"
        default = scheduler_default(serving_stack(engine), gpus()[plan.request.gpu])
        running = -(-one.pool.max_batch // ranks) if vllm else one.pool.max_batch
        tokens = one.pool.token_budget * (1 if vllm else ranks)
        common = {
            "tp": layout.tp if vllm else layout.stage_gpus,
            "pp": layout.pp,
            "attention_dp": ranks,
            "running": None if running == default.max_batch else running,
            "tokens": None if tokens == default.token_budget else tokens,
            "port": one.port,
            "transfer": bool(one.role) if vllm else one.role or "null",
            **({"dcp": layout.dcp} if vllm else {}),
            "host": plan.request.host_cache_bytes // (GIB if vllm else GB * layout.num_gpus),
            "adapters": plan.request.job.adapters,
            "rank": 32 if plan.request.job.adapters else 0,
        }
        found += [common] * len(server_commands(plan, one))
    return found


@pytest.mark.parametrize("engine", STARTS)
def test_engines_read_every_command_of_sixty_plans_as_it_is_meant(engine: str) -> None:
    """No flag is unknown, shortened or deprecated, and degrees, limits and ports are the plan's."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"no interpreter has {engine}: see {VARIABLE}")
    cases, wanted = [], []
    for plan in map(varied, SIXTY):
        if plan.request.engine == engine:
            for one in servers_of(plan):
                cases += [case_of_words(words_of(engine, c)) for c in server_commands(plan, one).values()]
            wanted += expected(plan, engine)
    assert len(cases) == len(wanted) > 60
    found = answers(engine, cases, python)
    assert [one for one in found if "error" in one] == []
    for one, want in zip(found, wanted, strict=True):
        assert {name: one["derived"][name] for name in want} == want
    unknown = ["m", "--no-such-flag"] if engine == "vllm" else ["--model-path", "m", "--enable-dp-attention"]
    assert "error" in answers(engine, [case_of_words(unknown)], python)[0]


@pytest.mark.parametrize("engine", STARTS)
def test_engines_read_every_drafter(engine: str) -> None:
    """The words that speculate are flags of the engine, whatever drafts."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"no interpreter has {engine}: see {VARIABLE}")
    plan = next(one for one in map(varied, SIXTY) if one.request.engine == engine)
    cases = []
    for drafter in ("", "mtp", "eagle3", "llama-3.2-1b"):
        job = replace(plan.request.job, draft_tokens=3, acceptance=0.7, drafter=drafter)
        drafting = replace(plan, request=replace(plan.request, job=job))
        words = next(iter(server_commands(drafting, servers_of(drafting)[0]).values()))
        assert any(word.startswith("--speculative-") for word in words)
        cases.append(case_of_words(words_of(engine, words)))
    assert [one for one in answers(engine, cases, python) if "error" in one] == []


@pytest.mark.parametrize("engine", STARTS)
def test_engines_read_that_experts_of_a_rack_are_held_twice(engine: str) -> None:
    """256 experts on 72 GPUs, 32 of them twice."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"no interpreter has {engine}: see {VARIABLE}")
    plan = resized(engine, None, (1, 8))
    pool = replace(plan.decode, workers=1, layout=ServingLayout(attention_dp=72, ep=72))
    rack = replace(plan, decode=pool, request=replace(plan.request, model=model("deepseek-r1"), gpu="gb200"))
    words = next(iter(server_commands(rack, servers_of(rack)[0]).values()))
    assert any(word in ("32", '{"num_redundant_experts": 32}') for word in words)
    assert "error" not in answers(engine, [case_of_words(words_of(engine, words))], python)[0]
