"""What a shell completes: commands, and names after the flags that take them."""

import pytest

from tests.cli.commands import plan
from topology.catalog import gpus


@pytest.fixture
def completed(monkeypatch):
    """Completions of a line, as the shell asks for them."""

    def asked(line: str, shell: str) -> list[str]:
        monkeypatch.setenv("_PLAN_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        if shell == "bash":
            monkeypatch.setenv("COMP_WORDS", line)
            monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        else:
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        return plan().stdout.split()

    return asked


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("plan diag", ["diagnose"]),
        ("plan --gpu b2", [name for name in gpus() if name.startswith("b2")]),
        ("plan gpus b2", [name for name in gpus() if name.startswith("b2")]),
        ("plan estimate --model deepseek-v9", []),
        ("plan serve --engine sg", ["sglang"]),
        ("plan --gpus 8 --for torcht", ["torchtitan"]),
        ("plan rule stage-b", ["stage-bound"]),
    ],
)
def test_names_are_completed_behind_the_flag_that_takes_them(completed, line, names):
    """The default command completes without being named."""
    assert completed(line, "bash") == [*names]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_every_shell_asks_in_its_own_way(completed, shell):
    """The same names."""
    assert "sglang" in " ".join(completed("plan serve --engine sg", shell))
