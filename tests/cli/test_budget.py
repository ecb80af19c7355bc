"""What a run may cost, asked of the command line and of the library: the chance of keeping it, failures included."""

import json
import math
import re

import pytest

import meshplan
from app.limits import kept_words
from costmodel.campaign.record import KEPT
from tests.cli.commands import plan

RUN = ("--model", "8b", "--gpus", "64", "--tokens", "1T", "--top", "1")


@pytest.mark.parametrize(("percentile", "chance"), [("p10", 0.1), ("p50", 0.5), ("p90", 0.9)])
def test_a_budget_is_kept_as_often_as_runs_cost_less(percentile: str, chance: float) -> None:
    """At each percentile of the dollars of the run, by definition; text and numbers say the same."""
    usd = json.loads(plan(*RUN, "--json").stdout)["campaign"]["usd"][percentile]
    asked = (*RUN, "--budget", f"{math.ceil(usd)}$")
    found = json.loads(plan(*asked, "--json").stdout)
    assert found["request"]["job"]["budget_usd"] == math.ceil(usd)
    assert found["campaign"]["budget_chance"] == pytest.approx(chance, abs=0.002)
    verdict = kept_words(found["campaign"]["budget_chance"])
    assert ("chance of" in verdict) == (percentile != "p90")
    assert " ".join(plan(*asked).stdout.split()).count(verdict) == 1
    assert " ".join(plan(*asked, "--full").stdout.split()).count(verdict) == 2  # headline, and the campaign


def test_the_library_asks_the_same() -> None:
    """As a number of dollars or as a text; a plan keeps its chance beside that of its deadline."""
    asked = {"gpus": 64, "tokens": "1T", "top": 1, "deadline": "40d"}
    number, text = (meshplan.plan("8b", **asked, budget=budget) for budget in (180_000.0, "$180k"))
    assert number.campaign is not None
    assert number.campaign == text.campaign
    assert number.campaign.budget_chance == number.campaign.chance_within_usd(180_000.0)
    assert (number.campaign.budget_chance >= KEPT) == (number.campaign.usd.p90 <= 180_000.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RUN, "--budget", "lots"), "--budget lots is not a possible number"),
        ((*RUN, "--budget", "-5"), "is not a possible number"),
        ((*RUN, "--budget", "2M€"), "is not a possible number"),
        ((*RUN, "--budget", "$"), "is not a possible number"),
        ((*RUN, "--budget", "1,2"), "--budget 1,2 is a list"),
        ((*RUN, "--budget", "9999T"), "is out of reach"),
        ((*RUN[:4], "--budget", "2M"), "a budget is that of a whole run"),
        ((*RUN, "--budget", "2M", "--cluster", "{unpriced}"), "a budget needs a price"),
    ],
)
def test_what_is_no_budget_is_refused(words: tuple[str, ...], said: str, tmp_path) -> None:
    """Nonsense, a list, no tokens, no price: three lines, and nothing is planned."""
    unpriced = tmp_path / "unpriced.toml"
    unpriced.write_text('name = "u"\n[[nodes]]\ngpu = "h100-sxm"\ncount = 8\ngpus_per_node = 8\n')
    words = tuple(word.replace("{unpriced}", str(unpriced)) for word in words)
    if str(unpriced) in words:
        words = tuple(word for word in words if word not in ("--gpus", "64"))
    answer = plan(*words)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert said in answer.stderr


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (("--deadline", "1d"), 1),
        (("--budget", "$100"), 1),
        (("--deadline", "1d", "--budget", "$100"), 1),
        (("--deadline", "400d"), 0),
        (("--budget", "$900M"), 0),
        (("--deadline", "400d", "--budget", "$100"), 1),
    ],
)
def test_a_limit_that_is_missed_is_no_success(limits: tuple[str, ...], code: int) -> None:
    """The fastest plan is shown all the same; a script reads the exit code, of every form of the answer."""
    answer = plan(*RUN, *limits)
    assert answer.returncode == code
    assert ("is missed: nine runs in ten take" in " ".join(answer.stdout.split())) == bool(code)
    written = plan(*RUN, *limits, "--json")
    assert written.returncode == code
    missed = json.loads(written.stdout)["missed"]
    assert bool(missed) == bool(code)
    assert {f"--{name}" for name in missed} <= {*limits}
    assert plan("explain", *RUN, *limits).returncode == code


def test_a_sweep_of_which_no_point_keeps_the_deadline_is_no_success() -> None:
    """A point that misses it says so in its row; one that keeps it is the answer."""
    small = ("sweep", "--model", "8b", "--gpus", "64,512", "--tokens", "1T", "--deadline")
    none, some = plan(*small, "1d"), plan(*small, "12d")
    assert (none.returncode, some.returncode) == (1, 0)
    assert none.stdout.count("missed") == 2
    assert some.stdout.count("missed") == 1


def test_what_is_said_to_keep_a_limit_keeps_it() -> None:
    """The later deadline, the larger budget, and the range of GPUs, each as it is typed."""
    told = " ".join(plan(*RUN, "--deadline", "10d", "--budget", "$100").stdout.split())
    later, budget = re.search(r"--deadline \d+d", told), re.search(r"--budget \d+", told)
    more = re.search(r"--objective gpus --gpus \.\.\d+", told)
    assert later
    assert budget
    assert more
    assert plan(*RUN, *later[0].split(), *budget[0].split()).returncode == 0
    assert plan(*RUN[:2], *RUN[4:], "--deadline", "10d", *more[0].split()).returncode == 0
    far = plan(*RUN, "--deadline", "1h").stdout
    assert "--objective gpus" not in far


def test_a_limit_that_may_be_kept_is_answered() -> None:
    """Between one and nine times in ten it is neither kept nor missed: the chance is said."""
    usd = json.loads(plan(*RUN, "--json").stdout)["campaign"]["usd"]["p50"]
    answer = plan(*RUN, "--budget", f"{math.ceil(usd)}$")
    assert answer.returncode == 0
    assert "is missed" not in answer.stdout
