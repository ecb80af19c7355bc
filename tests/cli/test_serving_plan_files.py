"""A plan of servers is told from a plan of training by every door that reads one."""

import json
from pathlib import Path

import pytest

import meshplan
from app.cli import run
from planner.serving.plan import serving_to_json
from tests.unit.planner.deployment.test_serving_flags import planned


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The file of a plan of servers."""
    path = tmp_path / "fleet.json"
    path.write_text(serving_to_json(planned("vllm", "pipelined bf16")))
    return path


@pytest.mark.parametrize(
    "words",
    [["audit"], ["verify"], ["explain"], ["validate"], ["export", "--to", "torchtitan"], ["diff", "{}"]],
    ids=lambda words: words[0],
)
def test_every_command_says_what_a_plan_of_servers_is_read_by(
    capsys: pytest.CaptureFixture[str], fleet: Path, words: list[str]
) -> None:
    """The advice is a command that takes the file."""
    assert run([*(word.format(fleet) for word in words), str(fleet)]) == 2
    assert f"plan serve --predict {fleet}" in capsys.readouterr().err
    assert run(["serve", "--predict", str(fleet)]) == 0


def test_the_library_reads_the_same_file(fleet: Path) -> None:
    """A path is as good as the value that it holds."""
    by_path, by_value = meshplan.predict(fleet), meshplan.predict(planned("vllm", "pipelined bf16"))
    assert by_path.requests_per_s == by_value.requests_per_s


@pytest.mark.parametrize(
    ("limits", "said", "told"),
    [
        ([], "requests/s (no limits given)", None),
        (["--tpot", "80ms"], "within 80 ms a token (p99)", {"ttft_s": None, "tpot_s": 0.08}),
        (
            ["--ttft", "4s", "--tpot", "80ms"],
            "within 4 s to the first token and 80 ms a token (p99)",
            {"ttft_s": 4.0, "tpot_s": 0.08},
        ),
    ],
    ids=["none", "one", "two"],
)
def test_a_rate_is_carried_within_what_is_said(
    capsys: pytest.CaptureFixture[str],
    fleet: Path,
    limits: list[str],
    said: str,
    told: dict[str, float | None] | None,
) -> None:
    """The limits of a plan, or those that are asked, stand beside the rate; so do none."""
    words = ["serve", "--predict", str(fleet), "--rate", "1/s", *limits]
    assert run(words) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert run([*words, "--json"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    shown = load["predicted"]["limits"]
    assert shown == (told and {**told, "end_to_end_s": None, "percentile": 99.0})
