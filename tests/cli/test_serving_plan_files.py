"""A plan of servers is told from a plan of training by every door that reads one."""

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
