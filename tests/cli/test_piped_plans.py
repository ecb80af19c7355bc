"""A plan that is piped in is a plan in a file."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli import commands

Pipe = Callable[[bytes], None]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """Put bytes on standard input."""

    def piped(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return piped


def test_commands_read_a_piped_plan_as_they_read_a_file(tmp_path: Path, pipe: Pipe) -> None:
    """The same answer of each."""
    content = commands.plan("--model", "8b", "--gpus", "8", "--json").stdout.encode()
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    for words in (("explain",), ("export", "--to", "megatron")):
        pipe(content)
        found = commands.plan(*words, "-")
        assert (found.returncode, found.stdout) == (0, commands.plan(*words, str(file)).stdout)
    pipe(content)
    assert commands.plan("verify", "-").returncode == 0
    pipe(content)
    compared = commands.plan("diff", str(file), "-")
    assert (compared.returncode, "nothing" in compared.stdout) == (0, True)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"[1]"])
def test_what_is_piped_and_is_no_plan_is_refused(content: bytes, pipe: Pipe) -> None:
    """Three lines, as of a file."""
    pipe(content)
    found = commands.plan("explain", "-")
    assert found.returncode == 2
    assert [line.split(":")[0] for line in found.stderr.splitlines()[-3:]] == ["error", "cause", "help"]
