"""What a command prints: one answer, four formats, the same numbers."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.plan_diff import diff_answer
from app.cli import run
from app.reports.answer import Answer, Facts, Lines, Table, bar, choose_format, json_text, render
from app.reports.plan import plan_answer
from planner.analysis.diff import changed_choices, changed_quantities
from planner.plan import Plan, from_json
from tests.cli.commands import plan
from topology.base.counts import parse_count, parse_counts
from topology.base.errors import InputError

ANSWER = Answer(
    headline="Question",
    sections=(
        Facts(title="Facts", pairs=(("speed", "3 m/s"), ("long name", "x"))),
        Table(title="Table", columns=("name", "value"), rows=(("a", "1"), ("bb", "22")), note="a note"),
        Lines(title="Lines", lines=("one", "two")),
    ),
    document=lambda: '{"speed": 3}',
    records=({"a": 1}, {"a": 2, "b": "x,y"}),
)


def test_a_table_aligns_text_left_and_numbers_right():
    """The first column is left-aligned, others right-aligned, two spaces apart."""
    assert "  name  value\n  a         1\n  bb       22\n  a note" in render(ANSWER, "table")


def test_facts_share_one_column():
    """Values start at the same place whatever the length of their names."""
    assert "  speed      3 m/s\n  long name  x" in render(ANSWER, "table")


def test_csv_has_the_union_of_keys_and_quotes_commas():
    """Every record is a row; missing values are empty cells."""
    rows = list(csv.DictReader(io.StringIO(render(ANSWER, "csv"))))
    assert rows == [{"a": "1", "b": ""}, {"a": "2", "b": "x,y"}]


def test_markdown_escapes_the_pipes_of_cells():
    """A cell cannot break its table."""
    answer = Answer(
        headline="", sections=(Table(title="", columns=("a",), rows=(("x|y",),)),), document=lambda: "{}"
    )
    assert "| x\\|y |" in render(answer, "markdown")


def test_no_escape_codes_unless_colour_is_wanted():
    """Plain output has no ANSI code; coloured output has the same text between them."""
    plain, coloured = render(ANSWER, "table"), render(ANSWER, "table", colour=True)
    assert "\033" not in plain
    assert re.sub(r"\033\[[0-9;]*m", "", coloured) == plain


def test_long_lines_wrap_to_the_screen():
    """No wrapped line is longer than the terminal."""
    answer = Answer(headline="", sections=(Lines(title="", lines=("word " * 60,)),), document=lambda: "{}")
    assert max(len(line) for line in render(answer, "table", width=60).splitlines()) <= 60


@given(
    cells=st.lists(st.lists(st.integers(1, 30), min_size=7, max_size=7), min_size=1, max_size=45),
    width=st.integers(60, 120),
)
@settings(max_examples=25)
def test_a_table_folds_to_the_screen(cells, width):
    """No row is wider than the screen, each part of it says which row it is, and no cell is lost."""
    rows = tuple((f"row {i}", *(letter * size for letter, size in zip("abcdefg", row, strict=True)))
                 for i, row in enumerate(cells))  # fmt: skip
    table = Table(title="", columns=("name", *(f"head of {letter}" for letter in "abcdefg")), rows=rows)
    answer = Answer(headline="", sections=(table,), document=lambda: "{}")
    text = render(answer, "table", width=width, folds=True)
    assert max(map(len, text.splitlines())) <= width
    for name, *others in rows:
        of_row = [line for line in text.splitlines() if re.match(rf"  {name}(\s|$)", line)]
        assert [word for line in of_row for word in line.split()[2:]] == others


def test_a_row_stays_a_line_in_a_pipe():
    """What reads lines finds a row on one, however wide."""
    table = Table(title="", columns=("a", "b"), rows=(("x" * 90, "y" * 90),))
    answer = Answer(headline="", sections=(table,), document=lambda: "{}")
    assert any("xy" in line.replace(" ", "") for line in render(answer, "table", width=80).splitlines())


def test_json_refuses_nan():
    """No reader of JSON accepts NaN, so none is written."""
    with pytest.raises(ValueError, match="JSON"):
        json_text({"x": float("nan")})


@pytest.mark.parametrize(
    ("wanted", "as_json", "output", "chosen"),
    [
        (None, False, None, "table"),
        (None, True, None, "json"),
        ("csv", False, Path("x.json"), "csv"),
        (None, False, Path("x.json"), "json"),
        (None, False, Path("x.md"), "markdown"),
        (None, False, Path("x.CSV"), "csv"),
    ],
)
def test_the_format_is_the_one_asked_for_or_that_of_the_file(wanted, as_json, output, chosen):
    """`--format` wins over the ending of `--output`."""
    assert choose_format(wanted=wanted, as_json=as_json, output=output) == chosen


def test_two_formats_are_one_too_many():
    """`--json --format csv` is a contradiction."""
    with pytest.raises(InputError):
        choose_format(wanted="csv", as_json=True, output=None)


def test_a_bar_is_as_long_as_its_fraction():
    """Full is `width` blocks; out-of-range fractions are clipped."""
    assert [bar(0, 4), bar(0.25, 4), bar(1, 4), bar(7, 4)] == ["", "█", "████", "████"]


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "nan", "inf", "", "eight", "1e400", "9" * 40, "0x10"])
def test_a_count_is_a_positive_whole_number(text):
    """Everything else is refused in three lines."""
    with pytest.raises(InputError):
        parse_count(text, "--gpus", largest=10**6)


def test_ranges_double():
    """`8..100` is 8, 16, 32, 64; lists keep their order and lose repetitions."""
    assert parse_counts("8..100,12,8", "--gpus") == (8, 16, 32, 64, 12)


def test_the_plan_table_states_the_numbers_of_the_plan(example_plan: Plan):
    """Headline, time parts, memory, proof and ties are all there."""
    text = render(plan_answer(example_plan), "table")
    for expected in (
        "llama-3.1-70b on 32 × h100-sxm",
        "10 s · 80 % band 9 – 11 s",
        "53 GiB of 79.6 GiB (66.5 %) on stage 0",
        "$60 per billion tokens",
        "tp inside a node · pp across 4 nodes",
        "proven optimal",
        "5,000 layouts enumerated · 4,990 dismissed · 10 solved",
        "-2.0 % (tie)",
        "GPUs run at their boost clock",
    ):
        assert expected in text


def test_the_plan_document_reads_back_as_the_plan(example_plan: Plan):
    """`--json` loses nothing."""
    assert from_json(plan_answer(example_plan).document()) == example_plan


def test_the_plan_records_have_one_row_per_plan(example_plan: Plan):
    """Rank 0 is the plan, the alternatives follow."""
    records = plan_answer(example_plan).records
    assert [(row["rank"], row["tp"], row["tied"]) for row in records] == [(0, 8, False), (1, 4, True)]


def test_a_plan_does_not_differ_from_itself(example_plan: Plan):
    """No choice differs and every ratio is zero."""
    assert changed_choices(example_plan, example_plan) == {}
    assert {change.relative for change in changed_quantities(example_plan, example_plan)} <= {0.0, None}


def test_a_diff_names_what_was_chosen_differently(example_plan: Plan):
    """Only the changed fields are listed, and the document says the same."""
    from dataclasses import replace

    other = replace(example_plan, layout=replace(example_plan.layout, tp=4, pp=8))
    assert changed_choices(example_plan, other) == {"tp": (8, 4), "pp": (4, 8)}
    assert json.loads(diff_answer(example_plan, other).document())["choices"]["tp"] == {
        "first": 8,
        "second": 4,
    }


def test_only_changes_that_help_are_said_to_help(example_plan: Plan, monkeypatch: pytest.MonkeyPatch):
    """A change that lengthens the step stands below the table, not in it."""
    from app.reports import explain as explain_report
    from planner.analysis.explain import Explanation, WhatIf

    changes = tuple(
        WhatIf(change=name, flag="", step_time_s=10 * (1 - gain), faster_by=gain, layout=example_plan.layout)
        for name, gain in (("faster NICs", 0.2), ("microbatches of 2", -0.033), ("fewer bolts", 0.0))
    )
    found = Explanation(shares=(), memory="", links=(), runner_up=None, what_if=changes)
    monkeypatch.setattr(explain_report, "explain", lambda _: found)
    table = explain_report.explain_answer(example_plan).sections[-1]
    assert isinstance(table, Table)
    assert [(row[0], row[2]) for row in table.rows] == [("faster NICs", "+20.0 %")]
    assert table.note == "would not help: microbatches of 2 (-3.3 %) · fewer bolts (+0.0 %)"


def test_both_ends_of_a_band_have_the_unit_of_the_step(example_plan: Plan):
    """A step around two hours has its band in hours, one around a second in one unit too."""
    from dataclasses import replace

    from app.reports.plan_headline import band_text

    def text(step_s: float, lower_s: float, upper_s: float) -> str:
        return band_text(replace(example_plan.estimate, step_time_s=step_s, lower_s=lower_s, upper_s=upper_s))

    assert text(7200, 5004, 7812) == "1.39 – 2.17 h"
    assert text(7000, 5003, 7812) == "83.4 – 130 min"
    assert text(0.95, 0.9, 1.1) == "900 – 1100 ms"


def test_the_printed_formula_of_mfu_gives_the_printed_mfu(example_plan: Plan):
    """Who types the numbers into a calculator gets the same percentage."""
    from dataclasses import replace

    from app.reports.plan_headline import mfu_text

    estimate = replace(example_plan.estimate, step_time_s=112.56, tokens_per_s_per_gpu=1164.4, mfu=0.52918)
    request = replace(example_plan.request, job=replace(example_plan.request.job, global_batch_size=512))
    text = mfu_text(request, estimate)
    flop, step_s, gpus, tera = re.search(  # type: ignore[union-attr]
        r"= (\S+) / \((\S+) s × (\d+) × (\d+) TFLOP/s\)", text
    ).groups()
    assert float(flop) / (float(step_s) * int(gpus) * float(tera) * 1e12) == pytest.approx(0.52918, rel=5e-4)
    assert text.startswith("52.9 %")


def test_the_formula_of_mfu_is_that_of_the_estimate(example_plan):
    """MFU prints the GPUs that its estimate counted, whatever the request says."""
    from dataclasses import replace

    from app.reports.plan_headline import mfu_text
    from topology.builders import default_cluster

    twice = replace(example_plan.request, cluster=default_cluster("h100-sxm", 64).spec)
    assert "× 32 ×" in mfu_text(example_plan.request, example_plan.estimate)
    assert mfu_text(twice, example_plan.estimate) == mfu_text(example_plan.request, example_plan.estimate)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (("--adapter", "lora:r=16"), "bf16 · lora:r=16,targets=attention+mlp ·"),
        (("--set", "job.optimizer=muon"), "bf16 · muon ·"),
        (("--offload", "optimizer:0.5"), "bf16 · offload optimizer:0.5 ·"),
        (("--set", "job.gradient_compression=fp16"), "bf16 · gradients as fp16 ·"),
        ((), "bf16 · megatron-core"),
    ],
)
def test_the_headline_names_what_few_jobs_have(said, named):
    """Two plans of unlike jobs are told apart by their headline."""
    done = plan("--model", "8b", "--gpus", "8", *said)
    headline = " ".join(done.stdout.partition("\n\n")[0].split())
    assert headline.startswith("llama-3.1-8b on")
    assert named in headline


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--model", "405b", "--gpus", "8", "--json"], 1),
        (["serve", "--model", "405b", "--gpus", "1", "--gpu", "h100-sxm", "--rate", "1/s", "--json"], 1),
        (["estimate", "--model", "8b", "--gpus", "6", "--set", "layout.tp=4"], 2),
        (["--model", "nothing", "--gpus", "8", "--json"], 2),
        (["ladder", "--model", "8b", "--gpus", "8", "--nothing", "1", "--json"], 2),
    ],
)
def test_a_refusal_is_written_to_the_file_of_its_answer(
    words: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No document of an earlier run stays in its place; the three lines are told all the same."""
    path = tmp_path / "answer.json"
    path.write_text("{}", encoding="utf-8")
    assert run([*words, "-o", str(path)]) == code
    out, told = capsys.readouterr()
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["exit_code"], out) == (code, "")
    assert document["error"] in told


def test_a_file_that_is_read_is_not_written_over_by_a_refusal(tmp_path: Path) -> None:
    """A plan that is damaged is not lost."""
    path = tmp_path / "plan.json"
    path.write_text("{", encoding="utf-8")
    assert run(["explain", str(path), "--json", "-o", str(path)]) == 2
    assert path.read_text(encoding="utf-8") == "{"


@pytest.mark.parametrize("ending", ["md", "csv", "txt"])
def test_no_older_answer_stays_under_the_name_of_a_refusal(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the form of the file: a program that reads it afterwards reads the refusal."""
    path = tmp_path / f"answer.{ending}"
    path.write_text("layout of yesterday", encoding="utf-8")
    assert run(["audit", str(tmp_path / "nothing.sh"), "-o", str(path)]) == 2
    error = capsys.readouterr().err.splitlines()[0].removeprefix("error: ")
    written = path.read_text(encoding="utf-8")
    assert error in written
    assert "yesterday" not in written


def test_a_file_that_is_no_answer_is_left_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun train.py\n", encoding="utf-8")
    assert run(["--model", "nothing", "--gpus", "8", "-o", str(script)]) == 2
    assert script.read_text(encoding="utf-8") == "torchrun train.py\n"
