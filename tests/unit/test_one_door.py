"""Files that somebody names are opened in one place, which looks at what they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.trees import files, nodes_of

ROOT = Path(__file__).resolve().parents[2]
DOOR = "topology/base/files.py"
OPENS = frozenset(
    (
        "open",
        "read_text",
        "read_bytes",
        "fromfile",
        "memmap",
        "load",
        "safe_open",
        "memory_map",
        "ParquetFile",
        "input_stream",
    )
)
"""Names of calls that open a file by its path."""
NOT_FILES = {
    "load": ("json", "dcp", "pickle", "tomllib", "cls", "yaml", "cookies"),
    "open": ("webbrowser", "browser", "ipc"),
}
"""Of these names, what is called on something that is open already, or that is no file."""
LOOKED_AT = frozenset(("require_regular", "open_regular"))
"""What a function calls on a path that a library opens then."""
READS_ELSEWHERE = {
    "topology/discover/here.py": "the kernel's own files under /sys",
    "executor/parallel/affinity.py": "the kernel's own files under /sys",
    "executor/launch/host_room.py": "the kernel's own file of memory under /proc",
    "executor/launch/node_state.py": "the kernel's own files under /proc and /sys",
    "executor/launch/rank_source.py": "the kernel's own list of children under /proc",
    "planner/parsers": "files that the same process has just written in a folder of its own",
    "planner/rehearsal": "files that the same process has just written in a folder of its own",
    "executor/bench/local_ranks.py": "files of a temporary folder of its own",
    "app/actions/rehearse.py": "logs of a temporary folder of its own",
    "app/terminal/streams.py": "/dev/null",
    "app/entry/other_words.py": "a table of the package",
    "app/pages/question/history.py": "parts of the package",
    "app/pages/base/take_pictures.py": "parts of the package",
    "app/pages/base/reachable.py": "a part of the package",
    "planner/search/origin.py": "files of the package",
    "planner/launch/cloud.py": "text of a program that is written, not run",
    "costmodel/kernels/tables.py": "tables of the package",
    "costmodel/accuracy/snapshot.py": "a table of the package",
    "costmodel/evidence/table.py": "a table of the package",
    "costmodel/runs/bridge_recipes.py": "a table of the package",
    "planner/audit/published.py": "a table of the package",
    "executor/launch/run_lock.py": "a lock, whose kind is looked at once it is open",
    "topology/base/atomic.py": "the one way out",
}
"""Where files are opened that nobody else names, and which those are."""


def openings(each: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Lines and names of calls that open a path which nothing in their function has looked at."""
    functions = [node for node in each if isinstance(node, ast.FunctionDef)]
    looked = {
        id(call)
        for function in functions
        if any(_name(call) in LOOKED_AT for call in ast.walk(function) if isinstance(call, ast.Call))
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
    }
    for call in each:
        if not isinstance(call, ast.Call) or id(call) in looked:
            continue
        name = _name(call)
        if name in OPENS and not _is_no_file(call, name) and not _writes(call):
            yield call.lineno, name


def _name(call: ast.Call) -> str:
    """The last part of what is called."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_no_file(call: ast.Call, name: str) -> bool:
    """Whether it is called on what is no path, or is our own function of the name."""
    if not isinstance(call.func, ast.Attribute):
        return name in ("read_text", "read_bytes", "load")  # the door's own functions, or a module's
    receiver = call.func.value
    last = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return last in NOT_FILES.get(name, ())


def _writes(call: ast.Call) -> bool:
    """Whether a file is made by it: what is written is looked at by the writers of each folder."""
    modes = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    return any(isinstance(mode, str) and set(mode) & set("wx") and len(mode) <= 3 for mode in modes)


def test_nothing_opens_a_file_beside_the_door() -> None:
    """A library that opens a path itself is given one that `require_regular` has looked at."""
    outside = []
    for path in files():
        place = path.relative_to(ROOT).as_posix()
        if place == DOOR or any(place.startswith(known) for known in READS_ELSEWHERE):
            continue
        outside += [f"{place}:{line} {name}" for line, name in openings(nodes_of(path))]
    assert not outside, "\n".join(outside)


@pytest.mark.parametrize("place", READS_ELSEWHERE)
def test_every_exception_is_needed(place: str) -> None:
    """What opens nothing any more is no exception."""
    at = ROOT / place
    paths = sorted(at.rglob("*.py")) if at.is_dir() else [at]
    assert any(True for path in paths for _ in openings(nodes_of(path))) or place in WRITES_ALONE


WRITES_ALONE = ("topology/base/atomic.py", "planner/launch/cloud.py")


@pytest.mark.parametrize(
    "source",
    [
        "def f(p):\n    return p.read_text()",
        "def f(p):\n    with open(p) as s:\n        return s.read()",
        "def f(p):\n    return np.load(p)",
        "def f(p):\n    with safe_open(p, framework='pt') as s:\n        return s",
        "def f(p):\n    with p.open('a') as s:\n        s.write('x')",
    ],
)
def test_a_planted_opening_is_seen(source: str) -> None:
    """Of each kind."""
    assert len(list(openings(list(ast.walk(ast.parse(source)))))) == 1


def test_a_path_that_was_looked_at_may_be_opened() -> None:
    """By a library."""
    source = "def f(p):\n    return np.load(require_regular(p))"
    assert list(openings(list(ast.walk(ast.parse(source))))) == []
