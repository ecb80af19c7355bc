"""The library's face: lazy names, words as on the command line, values as full as the command line's."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

import meshplan
from meshplan.guard import ForeignPackageError, require_own_packages
from planner.plan import Plan, from_json
from planner.search.infeasible import Infeasible
from tests.cli import commands
from topology.base.errors import InputError

ROOT = Path(__file__).parents[3]
SMALL = {"gpus": 8, "seq": "4k", "batch": 64, "top": 2}
CLOCKS = {"search_time_s"}


def python(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run another Python, in which nothing of ours is loaded yet."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def answer(*words: str) -> dict[str, object]:
    """What the command line prints as JSON, without what a clock says."""
    done = commands.plan(*words, "--json")
    assert done.returncode == 0, done.stderr
    return timeless(json.loads(done.stdout))


def timeless(document: dict[str, object]) -> dict[str, object]:
    """A document without what a clock says."""
    return {name: value for name, value in document.items() if name not in CLOCKS}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A small plan with alternatives."""
    return meshplan.plan("8b", gpus=8, seq="4k", batch=64, top=2)


def test_importing_the_face_loads_nothing_else() -> None:
    """No dependency and no package of ours before a name is used; every name is offered."""
    heavy = ("numpy", "ortools", "pandas", "torch", "streamlit", "typer", "cattrs", "networkx", "plotly")
    ours = ("app", "planner", "costmodel", "topology", "executor")
    code = f"import sys, meshplan; print([n for n in {heavy + ours} if n in sys.modules], dir(meshplan))"
    assert python("-c", code).stdout.strip() == f"[] {sorted(meshplan.__all__)}"


def test_planning_loads_no_torch_and_no_page() -> None:
    """What trains or draws is not needed to ask, nor is the program that reads flags."""
    code = (
        "import sys, meshplan; meshplan.plan, meshplan.serve; "
        "print([n for n in ('torch', 'streamlit', 'plotly', 'pandas', 'typer', 'app') if n in sys.modules])"
    )
    assert python("-c", code).stdout.strip() == "[]"


def test_every_name_is_there_and_documented() -> None:
    """What is promised can be imported, says what it is, and nothing else is a name."""
    for name in meshplan.__all__:
        assert getattr(meshplan, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'planet'"):
        _ = meshplan.planet  # type: ignore[attr-defined]


def test_words_give_the_plan_of_the_command_line(plan: Plan) -> None:
    """Names, counts and units are understood as flags are, to the last byte of the document."""
    said = answer("--model", "8b", "--gpus", "8", "-s", "4k", "-b", "64", "--top", "2")
    assert timeless(plan.to_dict()) == said


def test_values_give_the_plan_of_words(plan: Plan) -> None:
    """A model, a cluster and a job as values ask the same question."""
    job = meshplan.TrainingJob(sequence_length=4096, global_batch_size=64)
    cluster = meshplan.plan("8b", gpus=8, top=1).request.cluster
    stack = meshplan.stack("megatron-core")
    found = meshplan.plan(meshplan.model("8b"), cluster=cluster, job=job, stack=stack, top=2)
    assert timeless(found.to_dict()) == timeless(plan.to_dict())
    again = meshplan.plan(found.request)
    assert timeless(again.to_dict()) == timeless(plan.to_dict())


def test_settings_pin_and_override_as_on_the_command_line() -> None:
    """`set` takes values of every group, as `--set` does; a layout that is a value is pinned whole."""
    found = meshplan.plan("8b", gpus=8, top=1, set={"layout.tp": 2, "job.global_batch_size": 128})
    assert (found.layout.tp, found.request.job.global_batch_size) == (2, 128)
    given = meshplan.estimate("8b", gpus=8, layout=found.layout)
    assert given.layout == found.layout


def test_an_estimate_is_the_command_lines_and_as_rich_as_a_plan() -> None:
    """Simulation, provenance and assumptions are there for a layout that was given."""
    given = meshplan.estimate("8b", gpus=8, set={"layout.tp": 2, "layout.pp": 2})
    said = answer("estimate", "--model", "8b", "--gpus", "8", "--set", "tp=2", "--set", "pp=2")
    assert timeless(given.to_dict()) == said
    assert given.simulated_s is not None
    assert given.provenance
    assert set(given.estimate.assumptions) <= set(given.assumptions)


def test_there_being_no_plan_is_an_error_that_carries_the_answer() -> None:
    """The three lines for people, rules and nearest changes for programs; a copy of it too."""
    with pytest.raises(meshplan.NoFeasiblePlanError, match="no layout of") as caught:
        meshplan.plan("405b", gpus=8)
    assert isinstance(caught.value, meshplan.InputError)
    assert isinstance(caught.value.answer, Infeasible)
    assert caught.value.answer.nearest
    assert isinstance(copy.copy(caught.value).answer, Infeasible)
    with pytest.raises(meshplan.NoFeasiblePlanError) as illegal:
        meshplan.estimate("8b", gpus=8, set={"layout.tp": 3, "layout.dp": 2})
    assert isinstance(illegal.value.answer, tuple)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu_s": 8}, "did you mean gpus"),
        ({"gpus": 8, "seq": "4 k tokens"}, "--sequence-length"),
        (
            {"gpus": 8, "seq": 4096, "job": meshplan.TrainingJob(sequence_length=1, global_batch_size=8)},
            "two jobs",
        ),
        (
            {"gpus": 8, "stack": replace(meshplan.stack("torchtitan"), description="my own")},
            "not the profile",
        ),
        ({"gpus": 8, "objective": "speed"}, "objective"),
    ],
)
def test_a_wrong_word_is_answered_in_three_lines(words: dict[str, object], said: str) -> None:
    """What, why and the change that fixes it; never a TypeError from below."""
    with pytest.raises(InputError) as caught:
        meshplan.plan("8b", **words)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert str(caught.value).count("\n") == 2


def test_a_sweep_is_a_table() -> None:
    """One row a point, those without a plan too."""
    points = meshplan.sweep("8b", gpus=[1, 8], seq="4k")
    rows = [point.row() for point in points]
    assert [row["num_gpus"] for row in rows] == [1, 8]
    assert [row["status"] for row in rows] == ["infeasible", "proven"]
    assert rows[0]["reason"]


def test_plans_are_compared_and_explained(plan: Plan, tmp_path: Path) -> None:
    """From a value or from a file, with the same answer."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_dict()), encoding="utf-8")
    other = meshplan.estimate(replace(plan.request, pins={"tp": 8}))
    found = meshplan.diff(file, other)
    assert found == meshplan.diff(plan, other)
    assert found.choices["tp"] == (plan.layout.tp, 8)
    assert found.rows()[0]["name"] == "step_time_s"
    assert meshplan.explain(file).shares[0].part == "compute"


def test_a_fleet_is_the_command_lines() -> None:
    """Serving in words and with a job as a value; the document is that of `plan serve`."""
    load = {"input": 1000, "output": 100, "ttft": 1, "tpot": "50ms"}
    found = meshplan.serve("8b", gpu="h100-sxm", rate=2, **load)  # type: ignore[arg-type]
    flags = ["--input", "1000", "--output", "100", "--ttft", "1s", "--tpot", "50ms", "--rate", "2/s"]
    said = answer("serve", "--model", "8b", "--gpu", "h100-sxm", *flags)
    assert said["num_gpus"] == found.num_gpus
    assert said["estimate"] == found.to_dict()["estimate"]
    again = meshplan.serve(meshplan.model("8b"), gpu=["h100-sxm"], job=found.request.job)
    assert again.estimate == found.estimate


def test_a_plan_is_one_line_a_document_and_rows(plan: Plan) -> None:
    """Short `repr`; `to_dict` reads back as the plan; a row for the plan and each alternative."""
    assert repr(plan).startswith("Plan(llama-3.1-8b on 8 × h100-sxm: ")
    assert "\n" not in repr(plan)
    assert len(repr(plan)) < 160
    assert from_json(json.dumps(plan.to_dict())) == plan
    rows = plan.rows()
    assert len(rows) == 1 + len(plan.alternatives)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[0]["step_time_s"] == plan.estimate.step_time_s
    frame = pytest.importorskip("pandas").DataFrame(rows)
    assert list(frame["rank"]) == list(range(len(rows)))


def test_a_notebook_shows_what_the_command_line_prints(plan: Plan) -> None:
    """Markdown is `--format markdown`; HTML has the same facts, escaped, and the dashboard's pictures."""
    from app.reports.answer import render
    from app.reports.plan import plan_answer

    assert plan._repr_markdown_() == render(plan_answer(plan), "markdown")
    html = plan._repr_html_()
    assert html is not None
    assert "<h3>llama-3.1-8b on 8 × h100-sxm" in html
    assert "proven optimal" in html
    pytest.importorskip("plotly")
    assert html.count("plotly-graph-div") >= 2


def test_html_never_trusts_a_name(plan: Plan) -> None:
    """A model read from a file may be called anything."""
    named = replace(plan, request=replace(plan.request, model=replace(plan.request.model, name="<script>x")))
    html = named._repr_html_()
    assert html is not None
    assert "<script>x" not in html


def test_validate_needs_what_the_command_needs(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch it says which extra is missing."""
    import importlib.util

    import app.extras

    monkeypatch.setattr(
        app.extras, "find_spec", lambda name: None if name == "torch" else importlib.util.find_spec(name)
    )
    with pytest.raises(InputError, match=r"meshplan\.validate needs torch"):
        meshplan.validate(plan)


def shadowed(folder: Path, names: Sequence[str] = ("app",)) -> Path:
    """A folder in which a package of someone else has our name."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("", encoding="utf-8")
    return folder


def test_another_package_of_our_name_is_named(tmp_path: Path) -> None:
    """Three lines and exit code 2 from the program, an ImportError from the library; no traceback of ours."""
    done = python("-m", "meshplan", "--version", folder=shadowed(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    what, cause, fix = done.stderr.strip().split("\n")
    assert what == "error: the package app that Python finds is not meshplan's"
    assert str(tmp_path / "app") in cause
    assert str(ROOT / "app") in cause
    assert fix.startswith("help:  start from a folder without app")
    used = python(
        "-c", "import meshplan\ntry: meshplan.plan\nexcept ImportError as e: print(e)", folder=tmp_path
    )
    assert used.stdout.strip() == done.stderr.strip()


@pytest.mark.parametrize(
    ("words", "path"),
    [(["-m", "app"], ""), (["-P", "-c", "from meshplan.__main__ import main; main()"], ".")],
)
def test_however_the_program_is_started(tmp_path: Path, words: list[str], path: str) -> None:
    """As a module in such a folder, or as `plan` with that folder on the path: named, not run."""
    shadowed(tmp_path, ["planner"])
    (tmp_path / "planner" / "__init__.py").write_text("print('somebody else ran')", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))}
    done = subprocess.run(
        [sys.executable, *words, "--model", "8b", "--gpus", "8"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the package planner that Python finds is not meshplan's\n")


def test_another_distribution_of_our_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed can be uninstalled, so it is called by its name."""
    shadowed(tmp_path, ["planner"])
    info = tmp_path / "holiday-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holiday\nVersion: 1.0\n", encoding="utf-8")
    (info / "top_level.txt").write_text("planner\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planner")
    with pytest.raises(ForeignPackageError, match="of the distribution holiday") as caught:
        require_own_packages(["planner"])
    assert "uninstall holiday" in str(caught.value)


def test_a_missing_package_is_named() -> None:
    """A broken installation says so."""
    with pytest.raises(ForeignPackageError, match="there is no package nowhere_at_all"):
        require_own_packages(["nowhere_at_all"])


def test_the_words_are_those_of_the_flags() -> None:
    """Every flag of `plan train` and `plan serve` has a word; a sweep takes those that a point of it answers."""
    from meshplan.serving import LoadWords
    from planner.questions.flags import Flags, ServeFlags
    from planner.questions.serving.services import FIELD_OF_WORD
    from planner.questions.words import _FIELD_OF_WORD as NAMES
    from planner.questions.words import GridWords, SearchWords

    words = set(SearchWords.__annotations__)
    said = {NAMES.get(word, word) for word in words} - {"job", "layout", "set", "failures", "min_gpus"}
    assert said == {field.name for field in fields(Flags)} - {"model", "settings"}
    assert set(GridWords.__annotations__) == words - {"job", "top", "budget", "failures", "min_gpus"}
    load = {FIELD_OF_WORD.get(word, word) for word in LoadWords.__annotations__} - {"job", "layout", "set"}
    assert load == {field.name for field in fields(ServeFlags)} - {"model", "settings"}
