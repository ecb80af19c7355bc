"""Whatever is planned without a word about engines can be launched: by the engines' own parsers, of thirty questions."""

from __future__ import annotations

from typing import Any

import pytest

import meshplan
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.launch.targets import engine_files, export_plan
from planner.parsers.client import PACKAGES, answers, case_of, faults, interpreter
from planner.plan import Plan
from tests.counts import tries

QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8b", {"gpus": 8, "gpu": "a100-sxm-80gb"}),
    ("8b", {"gpus": 16, "stack": "torchtitan"}),
    ("8b", {"gpus": 16, "stack": "pytorch"}),
    ("8b", {"gpus": 8, "stack": "meshplan"}),
    ("8b", {"gpus": 16, "engine": "deepspeed"}),
    ("llama-2-13b", {"gpus": 16, "gpu": "a100-sxm-80gb", "seq": "4k", "engine": "accelerate"}),
    ("qwen3-8b", {"gpus": 16, "gpu": "b200-sxm", "precision": "mxfp8"}),
    ("qwen3-30b-a3b", {"gpus": 32, "stack": "torchtitan"}),
    ("mixtral-8x7b", {"gpus": 64}),
    ("mixtral-8x7b", {"gpus": 64, "precision": "fp16"}),
    ("70b", {"gpus": 32, "precision": "fp8"}),
    ("70b", {"gpus": 64, "gpu": "b200-sxm", "precision": "nvfp4"}),
    ("70b", {"gpus": 64, "stack": "megatron-bridge"}),
    ("deepseek-v2-lite", {"gpus": 16}),
    ("qwen3-235b-a22b", {"gpus": 128}),
    ("70b", {"gpus": 32}),
    ("gpt-oss-20b", {"gpus": 32, "seq": "64k", "batch": 64}),
    ("mistral-7b-v0.1", {"gpus": 8, "seq": "4k"}),
    ("8b", {"gpus": 8}),
    ("llama-2-13b", {"gpus": 8, "gpu": "a100-sxm-80gb", "seq": "4k"}),
    ("qwen3-30b-a3b", {"gpus": 32}),
    ("mixtral-8x22b", {"gpus": 64, "gpu": "h200-sxm"}),
    ("70b", {"gpus": 64, "gpu": "a100-sxm-40gb"}),
    ("70b", {"gpus": 64, "stack": "torchtitan"}),
    ("nemotron-4-340b", {"gpus": 256, "seq": "4k"}),
    ("gpt-oss-120b", {"gpus": 64}),
    ("gpt-3-175b", {"gpus": 128, "gpu": "a100-sxm-80gb", "seq": "2k"}),
    ("qwen2.5-72b", {"gpus": 64, "seq": "32k"}),
    ("glm-4.5-air", {"gpus": 64}),
    ("405b", {"gpus": 512}),
)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """The best plan of each question."""
    return [meshplan.plan(name, top=1, **words) for name, words in QUESTIONS[: tries(14, len(QUESTIONS))]]


@pytest.mark.slow
def test_the_export_of_a_default_plan_is_the_plan(plans: list[Plan]) -> None:
    """Step time and memory of what is read back are the plan's to 1e-9, or `export_plan` would refuse."""
    assert [plan.request.engine for plan in plans if plan.request.engine == "any"] == []
    assert all(export_plan(plan, plan.request.engine).text for plan in plans)


@pytest.mark.slow
def test_the_engines_own_parsers_derive_the_default_plans(plans: list[Plan]) -> None:
    """In the environment that the export states and no other."""
    pythons = {engine: interpreter(engine) for engine in PACKAGES}
    found, asked = [], 0
    for engine, python in pythons.items():
        if python is None:
            continue
        mine = [plan for plan in plans if plan.request.engine == engine]
        facts, contract = [facts_of(plan) for plan in mine], CONTRACTS[engine]
        cases = [
            case_of(contract, engine_files(plan, contract).files, said, plan.problem.cluster.gpu)
            for plan, said in zip(mine, facts, strict=True)
        ]
        given = answers(engine, cases, python, timeout_s=600)
        found += [
            (plan.request.model.name, differs)
            for plan, said, answer in zip(mine, facts, given, strict=True)
            if (differs := faults(said, answer))
        ]
        asked += len(mine)
    if not asked:
        pytest.skip("no engine is installed")
    assert found == []
