"""Whatever is planned without a word about engines can be launched: thirty questions, and the real parser."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import meshplan
from planner.launch.targets import export_plan
from planner.plan import Plan

ROOT = Path(__file__).parents[4]
CORE = "megatron-core==0.19.2"
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8b", {"gpus": 8, "gpu": "a100-sxm-80gb"}),
    ("8b", {"gpus": 8}),
    ("8b", {"gpus": 16, "stack": "torchtitan"}),
    ("8b", {"gpus": 16, "stack": "pytorch"}),
    ("8b", {"gpus": 8, "stack": "meshplan"}),
    ("8b", {"gpus": 16, "engine": "deepspeed"}),
    ("llama-2-13b", {"gpus": 8, "gpu": "a100-sxm-80gb", "seq": "4k"}),
    ("llama-2-13b", {"gpus": 16, "gpu": "a100-sxm-80gb", "seq": "4k", "engine": "accelerate"}),
    ("qwen3-8b", {"gpus": 16, "gpu": "b200-sxm", "precision": "mxfp8"}),
    ("qwen3-30b-a3b", {"gpus": 32}),
    ("qwen3-30b-a3b", {"gpus": 32, "stack": "torchtitan"}),
    ("qwen3-235b-a22b", {"gpus": 128}),
    ("mixtral-8x7b", {"gpus": 64}),
    ("mixtral-8x7b", {"gpus": 64, "precision": "fp16"}),
    ("mixtral-8x22b", {"gpus": 64, "gpu": "h200-sxm"}),
    ("70b", {"gpus": 32}),
    ("70b", {"gpus": 32, "precision": "fp8"}),
    ("70b", {"gpus": 64, "gpu": "a100-sxm-40gb"}),
    ("70b", {"gpus": 64, "gpu": "b200-sxm", "precision": "nvfp4"}),
    ("70b", {"gpus": 64, "stack": "megatron-bridge"}),
    ("70b", {"gpus": 64, "stack": "torchtitan"}),
    ("nemotron-4-340b", {"gpus": 256, "seq": "4k"}),
    ("gpt-oss-20b", {"gpus": 32, "seq": "64k", "batch": 64}),
    ("gpt-oss-120b", {"gpus": 64}),
    ("deepseek-v2-lite", {"gpus": 16}),
    ("gpt-3-175b", {"gpus": 128, "gpu": "a100-sxm-80gb", "seq": "2k"}),
    ("mistral-7b-v0.1", {"gpus": 8, "seq": "4k"}),
    ("qwen2.5-72b", {"gpus": 64, "seq": "32k"}),
    ("glm-4.5-air", {"gpus": 64}),
    ("405b", {"gpus": 512}),
)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """The best plan of each question."""
    return [meshplan.plan(name, top=1, **words) for name, words in QUESTIONS]


@pytest.mark.slow
def test_the_export_of_a_default_plan_is_the_plan(plans: list[Plan]) -> None:
    """Step time and memory of what is read back are the plan's to 1e-9, or `export_plan` would refuse."""
    assert [plan.request.engine for plan in plans if plan.request.engine == "any"] == []
    assert all(export_plan(plan, plan.request.engine).text for plan in plans)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python files of the megatron-core wheel, which carries Megatron-LM's parser."""
    folder = tmp_path_factory.mktemp("core")
    words = [
        "download",
        "-q",
        "--no-deps",
        "--python-version",
        "3.12",
        "--only-binary=:all:",
        "-d",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, CORE], check=False, capture_output=True, timeout=300
    )
    if done.returncode:
        pytest.skip(f"{CORE} cannot be had here")
    pytest.importorskip("torch", reason="Megatron-LM's parser imports torch")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".py")])
    return folder


@pytest.mark.slow
def test_megatron_accepts_every_default_plan(plans: list[Plan], core: Path) -> None:
    """Its own `validate_args`, in the environment that the export states and no other."""
    mine = [
        plan for plan in plans if plan.request.engine == "megatron" and plan.request.job.precision != "nvfp4"
    ]
    cases = []
    for plan in mine:
        text = export_plan(plan, "megatron").text
        inside = text[text.index("MEGATRON_ARGS=(") + 15 : text.rindex(")")]
        cases.append({
            "words": shlex.split(inside),
            "gpus": plan.layout.num_gpus,
            "capability": "10.0" if "b200" in plan.request.cluster.nodes[0].gpu else "9.0",
            "environment": dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE)),
        })  # fmt: skip
    program = [sys.executable, str(ROOT / "tests" / "parsers" / "megatron_arguments.py"), str(core)]
    done = subprocess.run(
        program, input=json.dumps(cases), check=True, capture_output=True, text=True, timeout=500
    )
    found = json.loads(done.stdout)
    assert [answer["error"] for answer in found if "error" in answer] == []
    degrees = [
        (
            answer["tensor_model_parallel_size"],
            answer["pipeline_model_parallel_size"],
            answer["data_parallel_size"],
        )
        for answer in found
    ]
    assert degrees == [(plan.layout.tp, plan.layout.pp, plan.layout.dp) for plan in mine]
    chunks = [answer["virtual_pipeline_model_parallel_size"] or 1 for answer in found]
    assert chunks == [plan.layout.virtual_stages for plan in mine]
