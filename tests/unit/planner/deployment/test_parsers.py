"""Every command of sixty serving plans through the engine's own parser, which reads what the plan has."""

import json
import re
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from costmodel.serving.engine import scheduler_default, serving_stack
from planner.audit.server_flags import FLAGS
from planner.deployment.placement import servers_of
from planner.deployment.vllm_sglang import server_commands
from planner.parsers.client import VARIABLE, answers, interpreter
from planner.parsers.commands import ASKS_FLAGS
from planner.serving.plan import ServingPlan
from tests.unit.planner.deployment.fleets import SIXTY, resized, varied
from topology.base.decode import read_toml
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


def words_of_plans(engine: str) -> list[list[str]]:
    """Every command of those of the sixty plans that are for an engine."""
    return [
        words_of(engine, command)
        for plan in map(varied, SIXTY)
        if plan.request.engine == engine
        for one in servers_of(plan)
        for command in server_commands(plan, one).values()
    ]


def words_of_drafters(engine: str) -> list[list[str]]:
    """A command for whatever drafts."""
    plan, found = next(one for one in map(varied, SIXTY) if one.request.engine == engine), []
    for drafter in ("", "mtp", "eagle3", "llama-3.2-1b"):
        job = replace(plan.request.job, draft_tokens=3, acceptance=0.7, drafter=drafter)
        drafting = replace(plan, request=replace(plan.request, job=job))
        words = next(iter(server_commands(drafting, servers_of(drafting)[0]).values()))
        assert any(word.startswith("--speculative-") for word in words)
        found.append(words_of(engine, words))
    return found


def words_of_rack(engine: str) -> list[list[str]]:
    """256 experts on 72 GPUs, 32 of them twice."""
    plan = resized(engine, None, (1, 8))
    pool = replace(plan.decode, workers=1, layout=ServingLayout(attention_dp=72, ep=72))
    rack = replace(plan, decode=pool, request=replace(plan.request, model=model("deepseek-r1"), gpu="gb200"))
    words = next(iter(server_commands(rack, servers_of(rack)[0]).values()))
    assert any(word in ("32", '{"num_redundant_experts": 32}') for word in words)
    return [words_of(engine, words)]


def wrong_words(engine: str) -> list[list[str]]:
    """What the parser must refuse, or it would refuse nothing."""
    return [["m", "--no-such-flag"] if engine == "vllm" else ["--model-path", "m", "--enable-dp-attention"]]


@pytest.fixture(scope="module", params=STARTS)
def read(request: pytest.FixtureRequest) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """An engine, and what its parser reads in all of these: it is started once, which takes longest."""
    engine = request.param
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"no interpreter has {engine}: see {VARIABLE}")
    asked = {
        "plans": words_of_plans(engine), "drafters": words_of_drafters(engine), "rack": words_of_rack(engine),
        "wrong": wrong_words(engine),
    }  # fmt: skip
    answered = iter(
        answers(engine, [case_of_words(words) for each in asked.values() for words in each], python)
    )
    return engine, {name: list(islice(answered, len(each))) for name, each in asked.items()}


def test_engines_read_every_command_of_sixty_plans_as_it_is_meant(
    read: tuple[str, dict[str, list[dict[str, Any]]]],
) -> None:
    """No flag is unknown, shortened or deprecated, and degrees, limits and ports are the plan's."""
    engine, found = read
    plans = [plan for plan in map(varied, SIXTY) if plan.request.engine == engine]
    wanted = [want for plan in plans for want in expected(plan, engine)]
    assert len(found["plans"]) == len(wanted) > 60
    assert [one for one in found["plans"] if "error" in one] == []
    for one, want in zip(found["plans"], wanted, strict=True):
        assert {name: one["derived"][name] for name in want} == want
    assert "error" in found["wrong"][0]


def test_engines_read_every_drafter(read: tuple[str, dict[str, list[dict[str, Any]]]]) -> None:
    """The words that speculate are flags of the engine, whatever drafts."""
    _, found = read
    assert [one for one in found["drafters"] if "error" in one] == []


def test_engines_read_that_experts_of_a_rack_are_held_twice(
    read: tuple[str, dict[str, list[dict[str, Any]]]],
) -> None:
    """Of 256 experts on 72 GPUs, 32."""
    _, found = read
    assert [one for one in found["rack"] if "error" in one] == []


@pytest.mark.parametrize("engine", sorted(STARTS))
def test_the_flags_that_an_audit_knows_are_those_of_the_pinned_parser(engine: str) -> None:
    """Written by tools/write_server_flags.py."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"{VARIABLE} names no interpreter with {engine}")
    case = {"asks": ASKS_FLAGS, "files": {}, "gpus": 1, "environment": {}}
    (answer,) = answers(engine, [case], python)
    listed = read_toml(FLAGS)[engine]
    assert answer["derived"] == {kind: listed[kind] for kind in ("switches", "valued", "many")}
