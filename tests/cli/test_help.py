"""Help that a stranger can use: groups, examples that run, values that are allowed, no line too long."""

import json
import re
import shlex
from pathlib import Path

import pytest

from app.cli import COMMANDS, GROUPS
from app.flags.examples import EXAMPLES
from app.flags.sections import OPTIONS, split
from planner.plan import OBJECTIVES
from planner.questions.training import RUN_OBJECTIVES
from tests.cli.commands import plan
from tests.counts import IS_NIGHTLY

SHORT, WIDE = 60, 80
"""Lines that help takes before `--full`, and characters of a line."""


def test_plan_alone_shows_what_to_type() -> None:
    """No error, but what it does, three first questions and every command under its heading."""
    done = plan()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == plan("--help").stdout == plan("-h").stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("  plan ")]) == 3
    places = [done.stdout.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    assert len(done.stdout.splitlines()) <= SHORT


def listed(text: str) -> list[tuple[str, ...]]:
    """The forms of every flag that a help explains."""
    lines = re.findall(r"^  (-[\w-]+(?:, -[\w-]+)*(?:/--[\w-]+)?)", text, re.MULTILINE)
    return [tuple(re.findall(r"--[\w-]+", line)) for line in lines]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str) -> None:
    """Short enough, no line cut or wide, with two examples; the whole of it explains every flag."""
    short, full = plan(name, "--help").stdout, plan(name, "--help", "--full").stdout
    assert len(short.splitlines()) <= SHORT
    assert max(map(len, full.splitlines())) <= WIDE
    assert short.count("\n  plan ") >= 2
    assert not re.search(r"<\w+( range)?>|TypeDescriptor|Sentinel", full)
    explained, shown = listed(full), listed(short)
    folded = frozenset(re.findall(r"--[\w-]+", short.partition("--help --full explains:")[2]))
    assert folded | {flag for forms in shown for flag in forms} <= {
        flag for forms in explained for flag in forms
    }
    assert len(explained) == len(shown) + len(folded)


def test_flags_of_a_question_stand_under_headings() -> None:
    """Those of the main question do not stand in one list."""
    text = plan("train", "--help").stdout
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["Examples", "Question", "Cluster", "Training", "Limits", "Output"]
    assert split(None) == (OPTIONS, False)


def test_the_objectives_of_the_help_are_those_that_are_known() -> None:
    """A list that is written once more beside the law is held to it."""
    named = re.search(r"--objective (\S+)", plan("train", "--help").stdout)
    assert named is not None
    assert set(named[1].split("|")) == {*OBJECTIVES, *RUN_OBJECTIVES} - {"time"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans and a job of another engine, by the names that examples give them."""
    folder = tmp_path_factory.mktemp("examples")
    for name, gpus in (("plan.json", "8"), ("other.json", "16")):
        done = plan("--model", "8b", "--gpus", gpus, "--json")
        (folder / name).write_text(done.stdout, encoding="utf-8")
    (folder / "train.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 "
        "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--use-distributed-optimizer --use-flash-attn --recompute-activations\n",
        encoding="utf-8",
    )
    (folder / "train.log").write_text(
        " iteration  2/ 10 | consumed samples: 128 | elapsed time per iteration (ms): 9000.0 |\n" * 3,
        encoding="utf-8",
    )
    return folder


NEEDS = {
    "train",
    "dash",
    "diagnose",
    "mcp",
    "run",
    "tokenize",
    "convert",
    "bench",
    "calibrate",
    "validate",
    "watch",
    "sweep",
}
"""Commands whose examples are run elsewhere, start servers or ranks, or read what a run has written."""


@pytest.mark.parametrize("line", [line for name in EXAMPLES if name not in NEEDS for line in EXAMPLES[name]])
def test_an_example_runs(line: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, answered: with 0, or with 1 where it estimates what does not fit.

    Fleets of every GPU kind, precision and mode are compared in the nightly run, and lengths tried; the suite asks
    for one of each, and tries fewer GPUs.
    """
    if "runs.csv" in line or "--here" in line:
        pytest.skip("needs a table of runs, or writes what it collects of this machine")
    monkeypatch.chdir(files)
    narrowed = ["--weights", "fp8", "--mode", "aggregated"] if line.startswith("plan serve") else []
    narrowed += ["--gpu", "h100-sxm"] if narrowed and "--gpu " not in line else []
    narrowed += ["--knob", "gpus"] if line.startswith("plan ladder") and "--knob" not in line else []
    done = plan(*shlex.split(line)[1:], *([] if IS_NIGHTLY else narrowed))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_an_example_is_understood(name: str) -> None:
    """Flags of the others are flags of their command."""
    known = plan(name, "--help", "--full").stdout
    for line in EXAMPLES[name]:
        assert line.startswith("plan --model" if name == "train" else f"plan {name}")
        for flag in re.findall(r"--[\w-]+", line):
            assert re.search(rf"{flag}\b", known), (line, flag)


def test_the_brief_says_what_the_whole_says(files: Path) -> None:
    """Fourteen lines of 80 columns; each figure of them is one of the whole answer, or of the document."""
    question = ("estimate", "--model", "8b", "--gpus", "8", "--set", "layout.tp=2")
    brief, full = plan(*question).stdout, plan(*question, "--full").stdout
    document = json.loads(plan(*question, "--json").stdout)
    assert len(brief.splitlines()) <= 14
    for part in ("memory", "money", "step"):
        line = re.search(rf"^  {part} +(.*)$", brief, re.MULTILINE)
        assert line is not None
        for number in re.findall(r"\$?[\d,.]+\d", line[1]):
            assert number in full, (part, number)
    assert document["estimate"]["fit"] in brief


@pytest.mark.parametrize("line", EXAMPLES["train"])
def test_the_brief_is_brief(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 14 lines of 80 columns under the headline, of one step as of a run with its deadline."""
    monkeypatch.setenv("COLUMNS", "80")
    done = plan(*shlex.split(line)[1:])
    headline, _, answer = done.stdout.partition("\n\n")
    assert done.returncode == 0
    assert len(answer.splitlines()) <= 14
    assert max(map(len, done.stdout.splitlines())) <= WIDE
    assert headline


def test_the_brief_says_which_layouts_its_proof_is_of() -> None:
    """Another headroom than the default leaves faster layouts out: the proof names it, as the whole answer does."""
    question = ("--model", "llama-3.2-1b", "--gpus", "8", "--memory-headroom", "0.3")
    words = "of layouts that leave 30 % of memory free"
    for answer in (plan(*question), plan(*question, "--full")):
        assert words in " ".join(answer.stdout.split())
    assert words not in " ".join(plan(*question[:4]).stdout.split())


@pytest.mark.parametrize("name", ["train", "estimate", "explain", "ladder"])
def test_help_promises_a_range_where_one_is_taken(name: str) -> None:
    """The search takes the best of a range; an estimate has one number of GPUs and of sequences."""
    text = " ".join(plan(name, "--help").stdout.split())
    assert ("..576: up to so many" in text, "256..1024 takes the best" in text) == (name == "train",) * 2
