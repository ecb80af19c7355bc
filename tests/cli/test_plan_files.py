"""A plan file is a claim: whoever reads one holds it against the cost model, and refuses what was edited."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshplan
from app.actions.dash import server_environment
from app.cli import run
from app.errors import three_lines
from app.requests.plan_file import read_plan
from app.requests.uploads import read_plan_upload
from costmodel.accuracy.training_runs import shipped_runs
from costmodel.training.constants import default_constants
from costmodel.training.estimate import estimate
from planner.plan import Plan, from_json, tables_of, to_json
from planner.pricing import split_of
from planner.search.verified import verified
from planner.search.verify import verify
from planner.structure import sound
from tests.counts import cases_of_run
from topology.base.errors import InputError
from topology.base.units import format_seconds

Document = dict[str, Any]


def _command(*words: str) -> Callable[[Path], None]:
    """A command that reads a plan, the file put where its name is `PLAN`."""

    def consume(path: Path) -> None:
        code = run([str(path) if word == "PLAN" else word for word in words])
        if code:
            raise SystemExit(code)

    return consume


def _library(verb: str) -> Callable[[Path], None]:
    return lambda path: getattr(meshplan, verb)(str(path))


CONSUMERS: dict[str, Callable[[Path], Any]] = {
    "export": _command("export", "PLAN", "--to", "megatron"),
    "run": _command("run", "PLAN", "--dry-run", "--device", "cpu", "--run-dir", "run"),
    "validate": _command("validate", "PLAN"),
    "explain": _command("explain", "PLAN"),
    "diff": _command("diff", "PLAN", "PLAN"),
    "bench": _command("bench", "--check", "PLAN"),
    "dashboard": lambda path: server_environment({}, plan=path, run=None, token=None),
    "upload": lambda path: read_plan_upload(path.name, path.read_bytes()),
    "library explain": _library("explain"),
    "library diff": lambda path: meshplan.diff(path, path),
    "library validate": _library("validate"),
}


def _set(*path: str | int, to: Any) -> Callable[[Document], None]:
    """An edit: the value at this place of the document becomes another."""

    def edit(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return edit


def _all(*edits: Callable[[Document], None]) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        for one in edits:
            one(document)

    return edit


EDITS: dict[str, Callable[[Document], None]] = {
    "four layers of eighty": _set("layers_of_stage", to=[1, 1, 1, 1]),
    "layers below none": _set("layers_of_stage", to=[-5, 85, 0, 0]),
    "one stage of four": _set("layers_of_stage", to=[80]),
    "85 layers of 80": _set("layers_of_stage", to=[20, 21, 22, 22]),
    "recomputed layers that are not there": _set("recompute_of_stage", to=[-1, 900, 0, 0]),
    "all ranks on one GPU": _set("mesh", "gpu_of_rank", to=[0] * 32),
    "ranks on GPUs of another cluster": _set("mesh", "gpu_of_rank", to=list(range(100, 132))),
    "ranks in other places": _set("mesh", "gpu_of_rank", to=list(range(31, -1, -1))),
    "axes of another mesh": _set("mesh", "axes", to=[["pp", 32]]),
    "a step of a second": _all(
        _set("estimate", "step_time_s", to=1.0), _set("optimality", "bound_s", to=1.0)
    ),
    "a step of nothing": _all(
        _set("estimate", "step_time_s", to=1e-9),
        _set("estimate", "lower_s", to=5.0),
        _set("estimate", "upper_s", to=1.0),
        _set("estimate", "peak_memory_bytes", to=-1.0),
    ),
    "a whole estimate of half the time": lambda document: document["estimate"].update(
        time={name: part / 2 for name, part in document["estimate"]["time"].items() if name != "hidden_s"},
        **{name: document["estimate"][name] / 2 for name in ("step_time_s", "lower_s", "upper_s")},
    ),
    "billions of ranks": _set("layout", "tp", to=2**31),
    "billions of stages": _set("layout", "pp", to=2**31),
    "billions of chunks": _set("layout", "virtual_stages", to=2**31),
    "a degree of nothing": _set("layout", "dp", to=0),
    "no such axis": _set("layout", "axis_order", to=["pp", "dp", "cp", "xx"]),
    "an axis twice": _set("layout", "axis_order", to=["pp", "dp", "tp", "tp"]),
    "too few axes": _set("layout", "axis_order", to=[]),
    "eight billion GPUs idle": _set("idle_gpus", to=8_000_000_000),
    "a proof of another gap": _set("optimality", "gap", to=0.5),
    "a bound above the step": _set("optimality", "bound_s", to=500.0),
    "a bound of another question": _set("request", "pins", to={"tp": 8}),
    "a faster runner-up": _set("alternatives", 0, "step_time_s", to=1.0),
    "a runner-up of other stages": _set("alternatives", 0, "layers_of_stage", to=[1]),
    "a runner-up of no GPUs": _set("alternatives", 0, "layout", "dp", to=-2),
    "memory of one stage": lambda document: document["estimate"]["memory_by_stage"].pop(),
    "less memory": lambda document: document["estimate"]["memory_by_stage"][0].update(weights_bytes=1.0),
    "a better price": _set("estimate", "usd_per_billion_tokens", to=1.0),
    "another source": _set("provenance", to=["measured"]),
    "nothing assumed": _set("assumptions", to=[]),
    "another model": _set("request", "model", "hidden_size", to=4096),
    "another simulation": _set("simulated_s", to=1.0),
}


UNEVEN = """
[[nodes]]
machine = "dgx-h100"
count = 3
switch = "a"
[[nodes]]
machine = "dgx-a100"
count = 2
switch = "b"
[[switches]]
name = "root"
[[switches]]
name = "a"
parent = "root"
uplink_bandwidth_bytes_per_s = "800 Gbit/s"
[[switches]]
name = "b"
parent = "root"
uplink_bandwidth_bytes_per_s = "400 Gbit/s"
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    """70B on 32 GPUs, as the issue of this file had it."""
    return meshplan.plan("70b", gpus=32, top=2)


OF_OTHER_PAIRS = [
    (edit, consumer)
    for place, edit in enumerate(EDITS)
    for reader, consumer in enumerate(CONSUMERS)
    if edit != "one stage of four" and (place + reader) % 4
]
"""The suite hands one edit to every reader, and each of the others to every fourth in turn."""


@pytest.mark.parametrize(
    ("edit", "consumer"), cases_of_run(itertools.product(EDITS, CONSUMERS), OF_OTHER_PAIRS)
)
def test_an_edited_plan_is_refused(
    consumer: str,
    edit: str,
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By everyone who reads one, in three lines, before anything is written or printed."""
    monkeypatch.chdir(tmp_path)
    path, document = tmp_path / "plan.json", plan.to_dict()
    EDITS[edit](document)
    path.write_text(json.dumps(document), encoding="utf-8")
    code, error = 0, ""
    try:
        CONSUMERS[consumer](path)
    except SystemExit as refused:
        code = int(str(refused.code))
    except InputError as refused:
        code, error = 2, three_lines(refused)
    said = capsys.readouterr()
    assert code in (1, 2)
    assert said.out == ""
    assert [line.split(":")[0] for line in (error or said.err).splitlines()] == ["error", "cause", "help"]
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.fixture(scope="module")
def older(plan: Plan) -> Plan:
    """The same plan as another version with other constants made it."""
    s, x = plan.problem, plan.layout
    split = split_of(s.model, x, plan.layers_of_stage, plan.recompute_of_stage)
    constants = replace(default_constants(), step_fixed_s=2.0)
    then = estimate(s.case, x, split, constants=constants)
    assert plan.origin is not None
    origin = replace(plan.origin, version="0.0.9", constants="0123456789abcdef")
    return replace(plan, estimate=then, simulated_s=None, alternatives=(), origin=origin)


def test_a_plan_of_other_tables_is_refused_with_both_numbers(
    older: Plan, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it was made with, what the file says, what is found here, and the way on; exit code 1."""
    assert run(["export", written(older, tmp_path), "--to", "megatron"]) == 1
    error, cause, fix = capsys.readouterr().err.splitlines()
    assert "made with other version, constants (meshplan 0.0.9, here 0.1.0)" in error
    then, now = (format_seconds(made.estimate.step_time_s) for made in (older, plan))
    assert then != now
    assert f"step time: {then} in the file, {now} here" in cause
    assert "--accept-changes" in fix


@pytest.mark.parametrize("consumer", ["export", "diff", "explain", "run"])
def test_accepted_changes_are_named_and_the_numbers_are_those_of_here(
    consumer: str,
    older: Plan,
    plan: Plan,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each on stderr with both numbers; what follows shows the new ones and claims no proof."""
    monkeypatch.chdir(tmp_path)
    words = {
        "export": ["export", "PLAN", "--to", "megatron"],
        "diff": ["diff", "PLAN", "PLAN", "--json"],
        "explain": ["explain", "PLAN", "--json"],
        "run": ["run", "PLAN", "--dry-run", "--device", "cpu", "--run-dir", "run"],
    }[consumer]
    path = written(older, tmp_path)
    if consumer == "run":
        pytest.importorskip("torch")
    assert run([path if word == "PLAN" else word for word in words] + ["--accept-changes"]) == 0
    said = capsys.readouterr()
    then, now = (format_seconds(made.estimate.step_time_s) for made in (older, plan))
    assert f"step time: {then} in the file, {now} here" in said.err
    assert "lower_s: " in said.err
    if consumer == "diff":
        steps = json.loads(said.out)["quantities"]["step_time_s"]
        assert steps["first"] == pytest.approx(plan.estimate.step_time_s, rel=1e-12)
    if consumer == "run":
        kept = from_json((tmp_path / "run" / "plan.json").read_text(encoding="utf-8"))
        assert kept.estimate == plan.estimate
        assert kept.optimality.status == "best-found"
        assert f"step time: {then} in the file, {now} here" in kept.assumptions[0]
        assert verified(kept, "the plan of the run") == kept


def test_a_plan_of_other_tables_with_the_same_numbers_says_so(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables of a GPU it does not use may differ: it is taken, and what it was made with is named."""
    assert plan.origin is not None
    same = replace(plan, origin=replace(plan.origin, tables="0" * 16))
    assert run(["export", written(same, tmp_path), "--to", "megatron"]) == 0
    assert "was made with other kernel tables" in capsys.readouterr().err


def test_a_plan_of_a_time_before_origins_is_estimated_anew(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version 3 of the document said nothing of what it was made with."""
    document = plan.to_dict() | {"schema_version": 3}
    del document["origin"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run(["export", str(path), "--to", "megatron"]) == 0
    assert "a version that did not say what it was made with" in capsys.readouterr().err


def test_an_edit_is_not_accepted_where_nothing_can_be_estimated(plan: Plan, tmp_path: Path) -> None:
    """Numbers may be accepted anew; stages that are not there may not."""
    path = written(replace(plan, layers_of_stage=(20, 21, 22, 22)), tmp_path)
    assert run(["export", path, "--to", "megatron", "--accept-changes"]) == 2


def test_a_training_job_refuses_a_plan_that_does_not_fit_together(plan: Plan) -> None:
    """What ranks read is judged without the cost model."""
    with pytest.raises(InputError, match="layers"):
        sound(replace(plan, layers_of_stage=(20, 21, 22, 22)), "plan.json")
    assert sound(plan, "plan.json") == plan


def written(plan: Plan, folder: Path) -> str:
    """A plan in a file; its path."""
    path = folder / "plan.json"
    path.write_text(to_json(plan), encoding="utf-8")
    return str(path)


QUESTIONS: tuple[list[str], ...] = (
    ["train", "--model", "8b", "--gpus", "8"],
    ["train", "--model", "8b", "--gpus", "4", "--objective", "cost", "--stack", "torchtitan"],
    ["train", "--model", "gpt-oss-20b", "--gpus", "8", "--gpu", "h200", "--objective", "memory"],
    ["train", "--model", "deepseek-v2-lite", "--gpus", "16", "--gpu", "b200", "--precision", "fp8"],
    ["train", "--model", "8b", "--gpus", "16", "--objective", "gpus", "--tokens", "100B", "--deadline", "30d"],
    ["train", "--model", "70b", "--gpus", "32", "--set", "layout.tp=8", "--set", "layout.recompute=full"],
    ["train", "--model", "8b", "--gpus", "16", "--gpu", "l40s", "--memory-headroom", "0.1", "--top", "1"],
    ["train", "--model", "8b", "--gpus", "8", "--gpu", "mi300x"],
    ["train", "--model", "8b", "--cluster", "UNEVEN"],
    ["train", "--model", "8b", "--gpus", "8", "--anchor", "RUNS", "--stack", "megatron-lm-2022"],
    ["estimate", "--model", "70b", "--gpus", "32", "--set", "layout.tp=8", "--set", "layout.pp=2"],
    ["estimate", "--model", "8b", "--gpus", "8", "--set", "layout.pp=2", "--set", "layout.recompute=full:2"],
    ["estimate", "--model", "405b", "--gpus", "8", "--set", "layout.tp=8"],
    ["estimate", "--model", "8b", "--gpus", "8", "--set", "layout.pp=4", "--set", "layout.virtual_stages=2"],
    ["estimate", "--model", "8b", "--gpus", "8", "--set", "layout.tp=2", "--set", "layout.axis_order=dp-pp-cp-tp"],
)  # fmt: skip


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_what_our_own_commands_write_every_reader_takes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan, an estimate, pins, anchors, mixed kinds, one that does not fit: none is refused for its numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "UNEVEN").with_suffix(".toml").write_text(UNEVEN, encoding="utf-8")
    rows = [row for row in shipped_runs() if row["source"] == "korthikanti22_table5"]
    with (tmp_path / "RUNS.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    files = {"UNEVEN": "UNEVEN.toml", "RUNS": "RUNS.csv"}
    fits = "405b" not in words
    assert run([*(files.get(word, word) for word in words), "--json", "-o", "plan.json"]) == (
        0 if fits else 1
    )
    path = tmp_path / "plan.json"
    capsys.readouterr()
    plan = read_plan(path, say=pytest.fail)
    assert read_plan_upload(path.name, path.read_bytes(), say=pytest.fail) == plan
    assert server_environment({}, plan=path, run=None, token=None)
    assert run(["diff", "plan.json", "plan.json"]) == 0
    assert sound(from_json(path.read_text(encoding="utf-8")), "plan.json") == plan
    assert verify(plan, tables_of(plan), proof=False).holds
