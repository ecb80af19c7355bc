"""`plan mcp` as an agent meets it: the official client over standard input and output, friendly and hostile."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.errors import INTERNAL_ERROR
from app.flags.program import COMMANDS
from app.mcp import server
from app.mcp.server import called
from app.mcp.tools import MOST_CHARACTERS, NO_PARTS, TOOLS, parts_of, schema_of, words_of
from tests.cli.commands import plan
from topology.base.errors import InputError

pytest.importorskip("mcp")

Call = tuple[str, Mapping[str, Any]]


def answers(root: Path, calls: list[Call]) -> tuple[list[str], list[tuple[dict[str, Any], bool]]]:
    """Names of the tools, and the document of every call with whether it is an error, of one server."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def ask() -> tuple[list[str], list[tuple[dict[str, Any], bool]]]:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "app", "mcp", "--root", str(root)],
            env={"PYTHONPATH": str(Path(__file__).parents[3])},
        )  # fmt: skip
        async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            results = [await session.call_tool(name, dict(given)) for name, given in calls]
            return names, [(json.loads(each.content[0].text), bool(each.is_error)) for each in results]

    return asyncio.run(asyncio.wait_for(ask(), timeout=100))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a job in it, and a secret beside it."""
    root = tmp_path / "jobs"
    root.mkdir()
    (tmp_path / "secret.sh").write_text("torchrun --nproc-per-node 8 secret.py\n", encoding="utf-8")
    (root / "link.sh").symlink_to(tmp_path / "secret.sh")
    (root / "linked").mkdir()
    (root / "linked" / "config.json").symlink_to(tmp_path / "secret.sh")
    (root / "linked" / "job.sh").symlink_to(tmp_path / "secret.sh")
    return root


def test_an_agent_asks(folder: Path) -> None:
    """The same numbers as on the command line; an expected no is an answer; a mistake has its three lines."""
    question = {"model": "8b", "gpus": 8, "set": ["layout.tp=2"]}
    names, found = answers(
        folder,
        [
            ("estimate", question),
            ("train", {"model": "70b", "gpus": 2}),
            ("train", {"model": "70x", "gpus": 8}),
            ("models", {}),
        ],
    )
    assert names == list(TOOLS)
    (estimate, failed), (refused, is_error), (mistaken, is_mistake), (listed, _) = found
    here = json.loads(
        plan("estimate", "--model", "8b", "--gpus", "8", "--set", "layout.tp=2", "--json").stdout
    )
    assert estimate["estimate"]["step_time_s"] == here["estimate"]["step_time_s"]
    assert estimate["exit_code"] == 0
    assert not failed
    assert (refused["exit_code"], is_error) == (1, False)
    no = json.loads(plan("train", "--model", "70b", "--gpus", "2", "--json").stdout)
    assert {key: refused[key] for key in no} == no
    assert (mistaken["exit_code"], is_mistake) == (2, True)
    assert "70x" in mistaken["error"]
    assert len(json.dumps(listed)) > 1000


@pytest.mark.parametrize("tool", TOOLS)
def test_a_schema_is_the_flags_that_only_read(tool: str) -> None:
    """Every property is a flag or an argument of the command, described; none writes, listens or runs code."""
    schema = schema_of(tool)
    assert tool in COMMANDS
    assert schema["additionalProperties"] is False
    for name, part in parts_of(tool).items():
        assert part.text, name
        assert part.flag not in NO_PARTS or (tool, part.flag) in {("serve", "--input"), ("audit", "--input")}


def test_nothing_of_the_folder_is_executed(folder: Path) -> None:
    """Files that are named as modules of ours, or of a library, are no modules of a call; a crash is no answer."""
    marker = folder / "executed"
    for name in ("typer.py", "numpy.py", "app/__init__.py", "app/__main__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"open({str(marker)!r}, 'w')\n", encoding="utf-8")
    document, failed = asyncio.run(called("engines", {}, folder))
    assert not failed
    assert document["exit_code"] == 0
    assert not marker.exists()


def test_a_crash_is_no_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own failure leaves with the code of a plan that is impossible."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(server.sys, "executable", "/bin/false")
    document, failed = asyncio.run(called("models", {}, folder))
    assert failed
    assert document["exit_code"] == INTERNAL_ERROR


HOSTILE: list[Call] = [
    ("rm", {}),
    ("run", {"model": "8b"}),
    ("train", {"output": "x"}),
    ("train", {"module": "os:system"}),
    ("train", {"model": ["8b"]}),
    ("train", {"model": True}),
    ("train", {"model": {"a": 1}}),
    ("train", {"model": "x" * (MOST_CHARACTERS + 1)}),
    ("train", {"model": "8b\0"}),
    ("train", {"set": ["layout.tp=1"] * 65}),
    ("train", {"model": "/etc/passwd"}),
    ("train", {"cluster": "../secret.sh"}),
    ("train", {"model": "~/config.json"}),
    ("audit", {"files": ["link.sh"]}),
    ("train", {"model": "linked"}),
    ("audit", {"files": ["linked/job.sh"]}),
    ("audit", {"files": ["../secret.sh"]}),
    ("audit", {"files": ["-"]}),
    ("audit", {"files": ["--help"]}),
    ("audit", {}),
    ("explain", {"set": ["x=/etc/shadow"]}),
    ("serve", {"trace": "./../secret.sh"}),
    ("serve", {"save_dir": "x"}),
    ("accuracy", {"trust_paths": True}),
]


@pytest.mark.parametrize("call", HOSTILE, ids=lambda call: f"{call[0]} {str(call[1])[:40]}")
def test_a_hostile_call_is_refused_before_it_runs(call: Call, folder: Path) -> None:
    """Unknown tools and properties, other types, long values, flags as values, files outside the folder."""
    with pytest.raises(InputError):
        words_of(call[0], call[1], folder)


def test_a_value_is_never_a_flag(folder: Path) -> None:
    """What begins with two dashes stays the value of its flag; an argument stands behind them."""
    assert words_of("train", {"model": "--output=x", "gpus": 8}, folder) == [
        "train", "--model=--output=x", "--gpus=8", "--json",
    ]  # fmt: skip
    (folder / "train.sh").write_text("true\n", encoding="utf-8")
    assert words_of("audit", {"files": ["train.sh"]}, folder) == ["audit", "--json", "--", "train.sh"]
    assert (
        words_of("train", {"model": "meta-llama/Llama-3.1-8B"}, folder)[1]
        == "--model=meta-llama/Llama-3.1-8B"
    )
