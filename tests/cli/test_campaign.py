"""`plan --tokens` answers with a finished run; without tokens nothing of it is loaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import plan

RUN = ("--model", "405b", "--gpus", "16384", "--tokens", "15T")


def test_a_plan_with_tokens_says_when_it_is_finished() -> None:
    """Finish, dollars and useful share as bands; interval, spares; shares that make one; what changes bring."""
    said = plan(*RUN, "--json")
    found = json.loads(said.stdout)["campaign"]
    for key in ("useful_share", "days", "usd", "interruptions"):
        assert set(found[key]) == {"p10", "p50", "p90"}
        assert 0 < found[key]["p10"] <= found[key]["p50"] <= found[key]["p90"]
    assert found["mean_useful_share"] + sum(found["lost_share"].values()) == pytest.approx(1, abs=1e-9)
    assert found["checkpoint_interval_s"] > 0
    assert found["spare_nodes"] > 0
    assert found["mean_useful_share"] <= found["bound_useful_share"]


def test_the_text_says_it_in_words() -> None:
    """A band of days, the share that is useful, where the rest goes, whose failures they are."""
    said = plan(*RUN, "--full").stdout
    for words in (
        "finished in",
        "% useful",
        "checkpoint",
        "spares",
        "lost work",
        "restart time saves",
        "Llama 3",
    ):
        assert words in said


def test_a_plan_without_tokens_loads_no_campaign() -> None:
    """Only the nouns of it, which a plan file may hold."""
    check = (
        "import atexit, runpy, sys; sys.argv = ['plan', '--model', '70b', '--gpus', '32']; "
        "loaded = lambda: sorted(m for m in sys.modules if m.startswith('costmodel.campaign.')); "
        "atexit.register(lambda: print(loaded(), file=sys.stderr)); "
        "runpy.run_module('meshplan', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.splitlines()[-1] == "['costmodel.campaign.record']"


def test_ones_own_failures_change_the_answer(tmp_path: Path) -> None:
    """More failures, and a requeue after each, leave less that is useful."""
    file = tmp_path / "failures.toml"
    file.write_text('site = "rsc-1"\nrestart = "requeue"\n', encoding="utf-8")
    shares = [
        json.loads(plan(*RUN, "--json", *more).stdout)["campaign"]["mean_useful_share"]
        for more in ((), ("--failures", str(file)))
    ]
    assert shares[1] < shares[0] - 0.02


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('site = "rsc-1"\n[times.swap]\nseconds = 90000\n', "comes back"),
        (
            '[storage]\nname = "nfs"\nwrite_bytes_per_s = 1e8\nread_bytes_per_s = 1e8\n',
            "storage.write_bytes_per_s above",
        ),
        ("nonsense = 1\n", "nonsense"),
    ],
)
def test_a_world_in_which_no_run_ends_is_refused_in_three_lines(
    tmp_path: Path, text: str, cause: str
) -> None:
    """Exit code 2, with the number that would do."""
    file = tmp_path / "failures.toml"
    file.write_text(text, encoding="utf-8")
    done = plan(*RUN, "--failures", str(file))
    assert done.returncode == 2
    assert cause in done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()[-3:]] == ["error", "cause", "help"]


def test_failures_without_tokens_are_refused() -> None:
    """A campaign needs an end."""
    done = plan("--model", "8b", "--gpus", "8", "--failures", "nowhere.toml")
    assert done.returncode == 2
    assert "a campaign needs an end" in done.stderr
