"""`plan accuracy`: errors of measured runs, any table of them, figures, constants and anchors."""

import csv
import importlib
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from app.cli import run
from costmodel.accuracy import training
from costmodel.accuracy.constants_table import STACK_ORIGINS, UNSOURCED, every_constant
from costmodel.accuracy.training_runs import PUBLISHED_RUNS, shipped_runs
from costmodel.kernels.level import PARTS
from costmodel.kernels.tables import load_calibration
from costmodel.training.constants import described_constants
from tests.cli.documents import held_to_schema
from tests.counts import tries

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {row["source"] for row in shipped_runs()}
SERVING_ROW = {
    "id": "s1", "model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "input_tokens": "512",
    "output_tokens": "32", "concurrency": "4", "tp": "1", "ttft_s": "0.05", "tpot_s": "0.008",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors of a test never reach the user's folder."""
    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path / "data"))


@pytest.fixture
def rows() -> list[dict[str, str]]:
    """Eight runs of Korthikanti et al. 2022."""
    return [dict(row) for row in shipped_runs() if row["source"] == "korthikanti22_table5"]


@pytest.fixture
def of_all(tmp_path: Path) -> str:
    """A table of two published runs of every source and stack: predicted in a second."""
    kept: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in shipped_runs():
        kept.setdefault((row["source"], row["framework"]), []).append(dict(row))
    return table(tmp_path / "of-all.csv", [row for runs in kept.values() for row in runs[:2]])


def of_2021(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Those of them that one profile describes: selective recomputation came with the next version."""
    return [row for row in rows if row["recompute"] == "full"]


def table(path: Path, rows: list[dict[str, str]]) -> str:
    """Write rows as CSV; returns the path as text."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `plan accuracy --json` prints."""
    assert run(["accuracy", *arguments, "--json"]) == 0
    parsed: dict[str, Any] = held_to_schema("accuracy", capsys.readouterr().out)
    return parsed


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The three lines of a refused call."""
    assert run(["accuracy", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    return captured.err


def test_without_a_file_the_published_runs_are_predicted(capsys):
    """Every packaged row is expressed, and every source has its line; the last line is everything."""
    answer = document(capsys)
    assert {row["status"] for row in answer["rows"]} == {"ok"}
    assert {line["group"] for line in answer["summary"]} == {*SOURCES, "all"}
    assert answer["summary"][-1]["rows"] == len(answer["rows"]) == len(shipped_runs())


def test_a_row_states_measured_and_predicted_in_the_promised_units(capsys, tmp_path, rows):
    """Keys carry units, and the error is their quotient."""
    rows[0]["peak_memory_gib"] = "40"
    row = document(capsys, table(tmp_path / "runs.csv", rows))["rows"][0]
    assert row["measured_step_time_s"] == float(rows[0]["step_time_s"])
    assert row["measured_peak_memory_gib"] == 40
    assert row["step_time_error"] == pytest.approx(
        row["predicted_step_time_s"] / row["measured_step_time_s"] - 1
    )
    assert row["lower_s"] < row["predicted_step_time_s"] < row["upper_s"]
    assert 0 < row["predicted_peak_memory_gib"] < row["memory_upper_gib"]


def test_missing_optional_columns_are_fine(capsys, tmp_path, rows):
    """The eight required columns are enough."""
    required = (
        "num_layers", "hidden_size", "num_attention_heads", "sequence_length", "gpu", "num_gpus",
        "global_batch_size", "step_time_s",
    )  # fmt: skip
    small = {"num_gpus": "4", "num_layers": "2", "step_time_s": "1000"}
    few = [{**{name: row[name] for name in required}, **small} for row in rows]
    answer = document(capsys, table(tmp_path / "runs.csv", few))
    assert [row["status"] for row in answer["rows"]] == ["ok"] * len(rows)
    assert [row["id"] for row in answer["rows"][:2]] == ["row 1", "row 2"]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "h9000"}, "h9000"),
        ({"num_layers": "many"}, "num_layers = 'many' is not a positive number"),
        ({"num_layers": ""}, "no num_layers"),
        ({"tp": "3"}, "not"),
        ({"step_time_s": "-1"}, "step_time_s = '-1'"),
        ({"precision": "int2"}, "unknown precision 'int2'"),
        ({"schedule": "roundabout"}, "unknown schedule"),
        ({"pp": "1e6", "num_gpus": "1e6", "dp": "1", "tp": "1"}, "is more than the 1,024 that can be"),
        ({"hidden_size": "1e300"}, ""),
        ({"framework": "🙂"}, None),
    ],
)
def test_one_bad_row_is_a_reason_and_the_others_are_predicted(capsys, tmp_path, rows, cells, reason):
    """A bad cell costs its own row only, and says why; an engine nobody knows is a mixture of several."""
    rows[3] |= cells
    found = document(capsys, table(tmp_path / "runs.csv", rows))["rows"]
    assert [row["status"] for i, row in enumerate(found) if i != 3] == ["ok"] * (len(rows) - 1)
    if reason is None:
        assert (found[3]["status"], found[3]["stack"].split(" or ")[0]) == ("ok", "megatron-core")
        assert "is not known: priced as a mixture of megatron-core, " in found[3]["not_priced"]
    else:
        assert found[3]["status"] == "unsupported"
        assert reason in found[3]["reason"]
        assert found[3]["predicted_step_time_s"] is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header line"),
        (b"id,gpu\n1,h100-sxm\n", "no column num_layers"),
        (b"\x00\xff\xfe\x01" * 50, "not UTF-8"),
        (b"{}\n{}\n", "no column num_layers"),
        (PUBLISHED_RUNS.read_bytes().splitlines()[0] + b"\n", "no row below it"),
    ],
)
def test_a_file_that_holds_no_runs_is_refused_in_three_lines(capsys, tmp_path, content, said):
    """Exit 2 only when nothing could be read."""
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert said in refusal(capsys, str(path))


def test_a_directory_and_a_missing_file_are_refused(capsys, tmp_path):
    """The path is named."""
    assert "is a directory" in refusal(capsys, str(tmp_path))
    assert "does not exist" in refusal(capsys, str(tmp_path / "none.csv"))


def test_a_byte_order_mark_is_no_part_of_the_first_column(capsys, tmp_path):
    """As spreadsheets write it."""
    path = tmp_path / "runs.csv"
    head, first, *_ = PUBLISHED_RUNS.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\xef\xbb\xbf" + head + first)
    assert document(capsys, str(path))["rows"][0]["id"] == shipped_runs()[0]["id"]


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_answered(capsys, tmp_path, rows):
    """Memory and time grow with the rows, not with their square."""
    many = tries(5_000, 100_000)
    path = table(tmp_path / "runs.csv", [dict(rows[0], id=f"r{i}") for i in range(many)])
    assert run(["accuracy", path]) == 0
    assert f"{many:,} of {many:,} runs predicted" in capsys.readouterr().out


def test_the_whole_table_is_predicted(capsys, shared_dir):
    """1,973 measured runs."""
    assert run(["accuracy", str(shared_dir / "training_runs_v2.csv")]) == 0
    assert capsys.readouterr().out.startswith("1,972 of 1,973 runs predicted")


def test_an_interrupted_table_keeps_the_rows_that_are_done(monkeypatch, capsys, tmp_path):
    """Ctrl-C after two jobs: their rows are told, the others say that they were left, and the exit code is 130."""
    predict, jobs = training._predict_or_say, []

    def stopped_after_two(members, *rest):
        if len(jobs) == 2:
            raise KeyboardInterrupt
        jobs.append(len(members))
        return predict(members, *rest)

    monkeypatch.setattr(training, "_predict_or_say", stopped_after_two)
    target = tmp_path / "answer.json"
    assert run(["accuracy", "--output", str(target)]) == 130
    rows = json.loads(target.read_text(encoding="utf-8"))["rows"]
    assert sum(row["status"] == "ok" for row in rows) == sum(jobs)
    assert {row["reason"] for row in rows if row["status"] != "ok"} == {"stopped before its turn"}
    assert run(["accuracy"]) == 130
    assert "interrupted after 0 rows" in capsys.readouterr().out


def test_runs_are_grouped_by_the_columns_asked_for(capsys, tmp_path):
    """`--by` takes one or several columns, leniently; an unknown one is answered with the known."""
    one_of_each = {(row["gpu"], row["framework"]): dict(row) for row in shipped_runs()}
    path = table(tmp_path / "runs.csv", list(one_of_each.values()))
    by_gpu, both = document(capsys, path, "--by", "GPU"), document(capsys, path, "--by", "gpu,framework")
    assert {line["group"] for line in by_gpu["summary"]} == {*(gpu for gpu, _ in one_of_each), "all"}
    assert {line["group"] for line in both["summary"]} == {*map(" · ".join, one_of_each), "all"}
    assert "zodiac" in refusal(capsys, "--by", "zodiac")


def test_the_worst_rows_are_listed_worst_first(capsys, of_all):
    """As many as asked for, by the factor they are off."""
    assert run(["accuracy", of_all, "--worst", "3"]) == 0
    lines = capsys.readouterr().out.split("Furthest off\n")[1].split("\n\n")[0].splitlines()
    errors = [float(line.split("  ")[-2]) if line.split("  ")[-2] else 0.0 for line in lines[1:4]]
    assert len(errors) == 3
    assert len(lines) == 4


def test_the_figure_has_a_mark_for_every_run(capsys, tmp_path, of_all):
    """SVG without any library: one mark per timed run, and one per group in the legend."""
    target = tmp_path / "accuracy.svg"
    assert run(["accuracy", of_all, "--plot", str(target)]) == 0
    svg = ET.fromstring(target.read_text(encoding="utf-8"))  # noqa: S314 - we wrote it
    marks = [e for e in svg if e.tag.endswith("circle") or (e.tag.endswith("rect") and e.get("fill-opacity"))]
    drawn = csv.DictReader(Path(of_all).read_text(encoding="utf-8").splitlines())
    timed = [row for row in drawn if row["step_time_s"]]
    assert len(marks) == len(timed) + min(14, len(SOURCES))
    assert str(target) in capsys.readouterr().err


def test_a_figure_of_another_kind_or_nowhere_is_refused_first(capsys, tmp_path):
    """Before any prediction."""
    assert ".svg or .html" in refusal(capsys, "--plot", str(tmp_path / "a.bmp"))
    assert "folder does not exist" in refusal(capsys, "--plot", str(tmp_path / "none" / "a.svg"))


def test_every_constant_is_listed_with_unit_meaning_and_origin(capsys, rows, tmp_path):
    """At most forty were fitted on training runs."""
    listed = document(capsys, table(tmp_path / "runs.csv", rows), "--constants")["constants"]
    assert all(entry["unit"] and entry["meaning"] and entry["fitted_on"] for entry in listed)
    on_runs = [
        e for e in listed if not e["fitted_on"].startswith("fixed") and not e["name"].startswith("network.")
    ]
    assert 20 < len(on_runs) <= 40


def test_the_list_of_fitted_stack_properties_is_that_of_the_fit(monkeypatch):
    """Nothing is fitted in silence."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    fitted = importlib.import_module("fit_free").STACK_FIELDS
    assert set(fitted) == {name for name, origin in STACK_ORIGINS.items() if not origin.startswith("fixed")}


def test_constants_not_marked_as_fixed_are_those_of_the_fit(monkeypatch):
    """What every fold refits says on which runs; all else says that it is fixed, and why."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    refitted = importlib.import_module("fit_free").GLOBALS
    origins = {name: constant.fitted_on for name, constant in described_constants().items()}
    assert set(refitted) == {name for name, origin in origins.items() if not origin.startswith("fixed")}
    assert "fixed" not in origins.values()


def test_constants_at_the_end_of_their_range_say_so(monkeypatch):
    """A value that the fit would move further is not one that it found."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    ranges = importlib.import_module("fit_free").GLOBALS
    for name, (_, low, high) in ranges.items():
        constant = described_constants()[name]
        assert ("bound of its range" in constant.meaning) == (constant.value in (low, high)), name


def test_memory_of_the_stacks_is_listed_without_borrowed_sources():
    """A number that its profile's source does not give is not said to come from there."""
    listed = every_constant(load_calibration())
    assert listed["megatron-deepspeed.fragmentation"].value == 1.14
    for name in ("fragmentation", "context_bytes", "communicator_bytes", "loss_bytes_per_logit"):
        assert listed[f"megatron-core.{name}"].fitted_on == UNSOURCED


def test_an_anchor_corrects_the_level_and_says_what_changed(capsys, tmp_path, rows):
    """Runs that all take 10 % longer than predicted pull the step up, more than half of the way."""
    rows = of_2021(rows)
    plain = document(capsys, table(tmp_path / "runs.csv", rows))["rows"]
    for row, found in zip(rows, plain, strict=True):
        row["step_time_s"] = str(1.1 * found["predicted_step_time_s"])
    answer = document(capsys, "--anchor", table(tmp_path / "mine.csv", rows))
    (level,) = answer["anchor"]["levels"]
    moved = [
        after["predicted_step_time_s"] / before["predicted_step_time_s"]
        for after, before in zip(answer["rows"], plain, strict=True)
    ]
    assert 1.1**0.5 < sum(moved) / len(moved) < 1.1
    assert 1.1**0.5 < level["steps_factor"] < 1.1
    assert run(["accuracy", "--anchor", str(tmp_path / "mine.csv")]) == 0
    heads, line = capsys.readouterr().out.split("\nAnchor ")[1].splitlines()[1:3]
    assert "factor on them" in heads
    assert heads.index("factor on them") < heads.index("common part")
    assert line.index(f"×{level['steps_factor']:.3f}") < line.index(f"×{level['level']:.3f}")
    assert (level["stack"], level["runs"]) == ("megatron-lm-2021", len(rows))
    assert answer["summary_without_anchor"]["median_error"] == pytest.approx(1 - 1 / 1.1)
    assert answer["summary"][-1]["median_error"] < 0.5 * answer["summary_without_anchor"]["median_error"]
    width = [row["upper_s"] / row["lower_s"] for row in (answer["rows"][0], plain[0])]
    assert width[0] < width[1]


def test_an_anchor_is_remembered_under_its_name(capsys, tmp_path, rows, of_all):
    """Kept once, it corrects other runs of that stack and leaves other stacks alone."""
    mine = table(
        tmp_path / "mine.csv", [{**row, "step_time_s": str(2 * float(row["step_time_s"]))} for row in rows]
    )
    assert run(["accuracy", "--anchor", mine, "--name", "my-cluster"]) == 0
    assert "plan --anchor my-cluster" in capsys.readouterr().err
    before, after = document(capsys, of_all), document(capsys, of_all, "--anchor", "my-cluster")
    factor = {
        stack: {
            round(b["predicted_step_time_s"] / a["predicted_step_time_s"], 6)
            for a, b in zip(before["rows"], after["rows"], strict=True)
            if a["stack"] == stack
        }
        for stack in ("megatron-lm-2021", "megatron-core")
    }
    assert factor["megatron-core"] == {1.0}
    assert all(1.5 < each < 2.1 for each in factor["megatron-lm-2021"])


def test_an_unknown_anchor_and_an_empty_one_are_refused(capsys, tmp_path, rows):
    """With the known names, or the way to the reasons."""
    assert "no anchor is called mine" in refusal(capsys, "--anchor", "mine")
    assert "cannot name an anchor" in refusal(capsys, "--anchor", "a b")
    assert "without runs to fit one to" in refusal(capsys, "--name", "mine")
    useless = table(tmp_path / "mine.csv", [{**row, "gpu": "h9000"} for row in rows])
    assert "anchors nothing" in refusal(capsys, "--anchor", useless)


def test_serving_runs_are_told_by_their_columns(capsys, tmp_path):
    """The same command takes the schema of serving_runs.csv; a bad row is a reason there too."""
    bad = {**SERVING_ROW, "id": "s2", "model": "no-such-model"}
    answer = document(capsys, table(tmp_path / "serving.csv", [SERVING_ROW, bad]))
    assert [row["status"] for row in answer["rows"]] == ["ok", "unsupported"]
    assert answer["rows"][0]["measured_tpot_s"] == 0.008
    assert answer["rows"][0]["predicted_tpot_s"] > 0
    assert answer["rows"][0]["predicted_ttft_s"] > 0
    assert "not for serving runs" in refusal(capsys, str(tmp_path / "serving.csv"), "--anchor", "mine")


def test_a_plan_takes_the_level_of_its_anchor(
    capsys: pytest.CaptureFixture[str], rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """An anchor kept under a name corrects `plan estimate`; of another stack it is refused with the fix."""
    run_file = table(tmp_path / "own.csv", of_2021(rows))
    assert run(["accuracy", "--anchor", run_file, "--name", "mine", "--json"]) == 0
    (level,) = json.loads(capsys.readouterr().out)["anchor"]["levels"]
    question = ["estimate", "--model", "8b", "--gpus", "8", "--set", "tp=8", "--stack"]
    seconds = {}
    for anchor in ([], ["--anchor", "mine"], ["--anchor", run_file]):
        assert run([*question, level["stack"], *anchor, "--json"]) == 0
        seconds[" ".join(anchor[1:])] = json.loads(capsys.readouterr().out)["estimate"]["step_time_s"]
    parts = [level["level"] * level[part] for part in PARTS]
    assert min(parts) < seconds["mine"] / seconds[""] < max(parts)
    assert seconds[run_file] == seconds["mine"]
    assert run([*question, level["stack"], "--anchor", "mine"]) == 0
    assert f"{level['runs']} runs of your own (mine)" in capsys.readouterr().out
    assert run([*question, "torchtitan", "--anchor", "mine"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"plan for --stack {level['stack']}" in said.err


def test_a_path_in_a_table_is_opened_for_who_trusts_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    """A cluster file beside a table of one's own is read with --trust-paths, and not even looked at without."""
    spec = tmp_path / "mine.toml"
    gpus = int(rows[0]["num_gpus"])
    spec.write_text(f'[[nodes]]\ngpu = "a100-sxm-80gb"\ngpus_per_node = 8\ncount = {gpus // 8}\n')
    path = table(tmp_path / "runs.csv", [{**rows[0], "cluster": str(spec)}])
    (refused,) = document(capsys, path)["rows"]
    assert (refused["status"], "--trust-paths" in refused["reason"]) == ("unsupported", True)
    (read,) = document(capsys, path, "--trust-paths")["rows"]
    assert read["status"] == "ok"
