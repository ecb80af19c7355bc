"""No name of a GPU or of a generation decides anything: what each can do is data, read by its traits."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.counts import IS_NIGHTLY
from tests.trees import nodes
from topology.hardware.datasheets import UNLISTED, generations, gpu_aliases, gpu_sheets

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("topology", "costmodel", "planner")
SHORTEST_PREFIX = 4
"""Characters from which a literal that begins a name is taken for its prefix; ``amp`` is also a precision."""

ANSWERS = """
import json, sys
from dataclasses import asdict, replace

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.kernels.stand_ins import stand_in
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.serving.engine import scheduler_default, serving_stacks
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.launch.targets import export_plan
from planner.plan import Problem, Plan, PlanRequest
from planner.rules.check import check
from planner.search.search import search
from planner.serving.infeasible import serves_weights
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.hardware.datasheets import gpu_sheets

cal, found, searched, plans = load_calibration(), {}, set(), "plans" in sys.argv
ENGINES, apart = ("megatron", "torchtitan"), 1 if "every" in sys.argv else 2  # the next GPU is of the next engine
CASES = (
    ("llama-3.1-8b", ParallelLayout(tp=2, dp=4, sequence_parallel=True)),
    ("mixtral-8x7b", ParallelLayout(tp=2, dp=4, ep=4, zero_stage=1, sequence_parallel=True)),
    ("llama-3.1-8b", ParallelLayout(dp=8, zero_stage=2)),
    ("llama-3.1-8b", ParallelLayout(tp=2, dp=4, zero_stage=3, sequence_parallel=True)),
)
for place, (name, sheet) in enumerate(gpu_sheets().items()):
    cluster, gpu, first = default_cluster(name, 8), sheet.gpu(), sheet.architecture not in searched
    for precision in TRAINING if first else ():
        job = TrainingJob(sequence_length=4096, global_batch_size=64, precision=precision)
        for engine, contract in CONTRACTS.items():
            for number, (of, layout) in enumerate(CASES):
                case = Case(model=model(of), cluster=cluster, job=job, stack=stack(contract.stacks[0]), cal=cal)
                broken = check(Problem(case=case, engine=engine), layout)
                found[f"{name} {precision} {engine} {number}"] = [f"{b.rule}: {b.message}; {b.hint}" for b in broken]
    job = TrainingJob(sequence_length=4096, global_batch_size=64)
    for number, (of, layout) in enumerate(CASES[:2]):
        case = Case(model=model(of), cluster=cluster, job=job, stack=stack("megatron-core"), cal=cal)
        answer = estimate(case, layout)
        found[f"{name} times {number}"] = [answer.step_time_s, answer.peak_memory_bytes]
        found[f"bands of {name} times {number}"] = [answer.lower_s, answer.upper_s]
    found[f"{name} kernels"] = stand_in(cal, gpu)
    for engine, profile in serving_stacks().items():
        taken = scheduler_default(profile, gpu)
        found[f"{name} {engine} served"] = [
            taken.token_budget, taken.max_batch, serves_weights(profile, gpu, "fp8")]
    if plans and (first or not sheet.bridge_deepep):
        searched.add(sheet.architecture)
        job = TrainingJob(sequence_length=4096, global_batch_size=64)
        for engine in ENGINES[place % apart :: apart]:
            request = PlanRequest(model=model("llama-3.2-1b"), cluster=cluster.spec, job=job, engine=engine,
                                  stack=CONTRACTS[engine].stacks[0], memory_headroom=0.1, top=1)
            try:
                plan = search(request)
                if not isinstance(plan, Plan):
                    found[f"{name} {engine} plan"] = str(replace(plan, search_time_s=0.0))
                    continue
                text = export_plan(plan, engine).text
                needed = [v.name for v in CONTRACTS[engine].environment if v.needed(facts_of(plan), gpu)]
                found[f"{name} {engine} plan"] = [asdict(plan.layout), plan.estimate.step_time_s, text, needed]
            except InputError as error:
                found[f"{name} {engine} plan"] = [error.what, error.cause]
print(json.dumps(found, default=str))
"""


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with whole names replaced."""
    if not names:
        return text
    anyone = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.-])({anyone})(?![\w-])", lambda match: names[match[1]], text)


def house(root: Path, generations_of: Mapping[str, str], gpus: Mapping[str, str], evidence: bool) -> Path:
    """A copy of the packages whose data calls generations and GPUs otherwise."""
    for package in COPIED:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [path for package in COPIED for path in (root / package).rglob("*")]:
        if path.suffix in {".toml", ".json", ".csv"} and path.parent.name in {"data", "kernels"}:
            names = {**gpus, **(generations_of if evidence or path.parent.parent.name == "topology" else {})}
            path.write_text(renamed(path.read_text(encoding="utf-8"), names), encoding="utf-8")
        elif path.suffix == ".npz":
            stem = path.stem.removeprefix("moe-")
            path.rename(path.with_name(path.name.replace(stem, gpus.get(stem, stem))))
    return root


def answers(root: Path, *, plans: bool = True) -> dict[str, object]:
    """What the packages of a folder answer; without plans only what layouts may be, take and need.

    Plans are of both engines in the nightly run; in the suite of one for each GPU, by turns.
    """
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, *(["plans"] if plans else []), *(["every"] if IS_NIGHTLY else [])],
        cwd=root, env={"PYTHONPATH": str(root), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def as_shipped() -> dict[str, object]:
    """What the packages answer as they are."""
    return answers(ROOT)


def test_another_name_of_every_generation_and_gpu_gives_the_same_answers(
    tmp_path: Path, as_shipped: dict[str, object]
) -> None:
    """Limits, times, bands, plans, exports and environment, of every engine and precision, but for the names.

    Every generation is called after one of them, so that a name that begins alike decides nothing either.
    """
    generation = {name: f"blackwell-{n}x" for n, name in enumerate(generations()) if name != UNLISTED}
    gpus = {name: f"part{n:02d}" for n, name in enumerate(gpu_sheets())}
    back = {new: old for old, new in (generation | gpus).items()}
    again = answers(house(tmp_path, generation, gpus, evidence=True))
    assert len(again) > 1000
    told = json.loads(
        renamed(json.dumps(again), back | {new.upper(): old.upper() for new, old in back.items()})
    )
    assert told == as_shipped


@pytest.mark.skipif(not IS_NIGHTLY, reason="without evidence too, in `make nightly`")
def test_a_generation_of_another_name_has_the_same_limits_and_times(
    tmp_path: Path, as_shipped: dict[str, object]
) -> None:
    """Its traits are copied, its name is not; only evidence, which is of named generations, may differ."""
    generation = {name: f"blackwell-{n}x" for n, name in enumerate(generations()) if name != UNLISTED}
    back = {new: old for old, new in generation.items()}
    again = answers(house(tmp_path, generation, {}, evidence=False), plans=IS_NIGHTLY)
    told: dict[str, object] = json.loads(renamed(json.dumps(again), back))
    same = [
        key
        for key in as_shipped
        if not key.startswith("bands of") and (IS_NIGHTLY or not key.endswith(" plan"))
    ]
    assert len(same) > 1000
    assert {key: told[key] for key in same} == {key: as_shipped[key] for key in same}


def named_in(each: Sequence[ast.AST], names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Literals of code, docstrings apart, that are such a name or begin one."""
    prose = {id(node.value) for node in each if isinstance(node, ast.Expr)}
    for node in each:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            word = node.value.lower()
            begins = len(word) >= SHORTEST_PREFIX and any(name.startswith(word) for name in names)
            if word in names or begins:
                yield node.lineno, node.value


NAMES = frozenset({*generations(), *gpu_sheets(), *gpu_aliases()}) - {UNLISTED}
"""Names of the catalog; "other" is no name of a generation but of all that are not listed."""


def test_no_literal_of_the_code_is_the_name_of_a_gpu_or_of_a_generation() -> None:
    """Not even a default: those are data, too."""
    found = [f"{file}:{line}: {word!r}" for file, each in nodes() for line, word in named_in(each, NAMES)]
    assert found == []


@pytest.mark.parametrize(
    "code", ['if gpu.architecture == "ada": pass', 'x.startswith(("hopp", "zz"))', 'D = {"H100-SXM": 1}']
)
def test_a_name_in_the_code_is_seen(code: str) -> None:
    """The lint finds what it is for."""
    assert list(named_in(list(ast.walk(ast.parse(code))), NAMES))
