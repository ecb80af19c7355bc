"""What a change can break, in three minutes: lint, types, contracts, and the tests that reach what changed.

A test reaches a file if a chain of imports leads there. A command's name in a test of the command line and a
module's name in a text count as imports; a file of data is the modules that name it. The nearest tests run
first, slow ones and those of a browser never. What the time leaves out is said; `make test` runs everything.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("topology", "costmodel", "planner", "executor", "app", "meshplan", "tests")
COMMAND_LINE: Final = "app.cli"
SECONDS: Final = 180.0
FIRST_GROUP: Final = 4
"""Files of tests that the first call of pytest reads."""
NOTHING_SELECTED: Final = 5
"""Exit status of pytest where marks leave out every test."""
QUICK: Final = "not slow and not browser and not gpu"
LONGEST_NAMING: Final = 200
"""Characters of a text that names something; longer ones are prose."""


def main() -> int:
    """Check what changed since a commit; 0 when nothing that ran is red."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", default="HEAD", help="a commit; its successors and the working tree count")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of wall clock, lint included")
    parser.add_argument("--list", action="store_true", help="print the tests, nearest first, and run nothing")
    asked = parser.parse_args()
    began = time.monotonic()
    changed = changed_files(asked.since)
    tests = nearest_tests(changed)
    if asked.list:
        sys.stdout.write("".join(f"{test}\n" for test in tests))
        return 0
    if not changed:
        sys.stdout.write(f"nothing changed since {asked.since}\n")
        return 0
    return max(_lint(), _test([*_doctests(changed), *tests], asked.seconds - (time.monotonic() - began)))


def changed_files(since: str) -> list[str]:
    """Paths of what changed since a commit, untracked files too."""
    git = ["git", "-C", str(ROOT)]
    ways = (["diff", "--name-only", since, "--"], ["ls-files", "--others", "--exclude-standard"])
    return sorted(
        {
            line
            for way in ways
            for line in subprocess.run(
                [*git, *way], check=True, capture_output=True, text=True
            ).stdout.splitlines()
        }
    )


def nearest_tests(changed: Iterable[str]) -> list[str]:
    """Files of tests whose imports reach a changed file, those with the shortest chain first."""
    importers, words = _house()
    distance = {module: 0 for path in changed for module in _homes(path, words)}
    waiting = deque(distance)
    while waiting:
        module = waiting.popleft()
        for importer in importers.get(module, ()):
            if importer not in distance:
                distance[importer] = distance[module] + 1
                waiting.append(importer)
    tests = [module for module in distance if module.rpartition(".")[2].startswith("test_")]
    return [_path_of(module) for module in sorted(tests, key=lambda module: (distance[module], module))]


@cache
def _house() -> tuple[dict[str, set[str]], dict[str, AbstractSet[str]]]:
    """Who imports each module, and the words of its texts."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    words = {module: _words(ROOT / _path_of(module)) for module in graph.modules}
    return _importers(graph, words), words


def _importers(graph: grimp.ImportGraph, words: Mapping[str, AbstractSet[str]]) -> dict[str, set[str]]:
    """The modules that import each module, or that name it in a text."""
    importers = {module: set(graph.find_modules_that_directly_import(module)) for module in graph.modules}
    command = {
        module.rpartition(".")[2].replace("_", "-"): module
        for module in graph.modules
        if module.startswith("app.commands.")
    }
    speakers = graph.find_modules_that_directly_import(COMMAND_LINE)
    for module, said in words.items():
        for name in said & importers.keys():
            importers[name].add(module)
        for name in said & command.keys() if module in speakers else ():
            importers[command[name]].add(module)
    return importers


def _words(path: Path) -> frozenset[str]:
    """Words in texts of a file that may name a module, a file or a command; of a path the last part too."""
    if not path.is_file():
        return frozenset()  # a folder of tests has no file of its own
    texts = (
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < LONGEST_NAMING
    )
    found = {word for text in texts for word in re.findall(r"[\w./-]+", text)}
    return frozenset(found | {word.rpartition("/")[2] for word in found})


def _homes(path: str, words: Mapping[str, AbstractSet[str]]) -> list[str]:
    """The modules that a change of a file changes: itself, or those that name a file of data or text."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    if path.endswith(".py") and module in words:
        return [module]
    naming = [module for module, said in words.items() if Path(path).name in said]
    if naming or "/data/" not in path:
        return naming
    wing = path.partition("/data/")[0].replace("/", ".")
    return [module for module in words if module.startswith(f"{wing}.")]


def _path_of(module: str) -> str:
    """A module's file, from the root."""
    file = Path(*module.split("."))
    inside = file / "__init__.py"
    return str(inside if (ROOT / inside).is_file() else file.with_suffix(".py"))


def _doctests(changed: Sequence[str]) -> list[str]:
    """Changed files whose examples are run."""
    return [
        path
        for path in changed
        if path.endswith(".py") and path.partition("/")[0] in PACKAGES[:-1] and (ROOT / path).is_file()
    ]


def _lint() -> int:
    """Style, types and contracts; 0 when all hold."""
    worst = 0
    for words in (
        ["ruff", "check", "-q", "."],
        ["ruff", "format", "-q", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    ):
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
        sys.stdout.write(f"{'ok' if done.returncode == 0 else 'RED'}  {' '.join(words)}\n")
        if done.returncode:
            sys.stdout.write(done.stdout + done.stderr)
            worst = 1
    return worst


def _test(files: Sequence[str], seconds: float) -> int:
    """Run tests in this order for so long; 0 when none that ran is red."""
    if not files:
        sys.stdout.write("no test reaches what changed\n")
        return 0
    red, left = run_in_groups(files, seconds, ["-q", "-m", QUICK])
    if left:
        sys.stdout.write(f"{len(left)} of {len(files)} files were left out for time: `make test` runs them\n")
    return int(red)


def run_in_groups(
    files: Sequence[str], seconds: float, options: Sequence[str], *, tree: Path = ROOT, quiet: bool = False
) -> tuple[bool, list[str]]:
    """Whether a test is red, and the files that time left out.

    Files are run in groups, each twice as large as the one before: pytest reads all files of a call before it
    runs the first. A group that the end of the time interrupts counts as left out.

    Args:
        files: Of tests or doctests, in the order in which they run.
        seconds: Of wall clock for all of them.
        options: Of pytest.
        tree: The checkout they are in.
        quiet: Print nothing.
    """
    ends, size, left = time.monotonic() + seconds, FIRST_GROUP, list(files)
    out = subprocess.DEVNULL if quiet else None
    while left and (rest := ends - time.monotonic()) > 0:
        words = [sys.executable, "-m", "pytest", *options, *left[:size]]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        running = subprocess.Popen(
            words, cwd=tree, stdout=out, stderr=out, start_new_session=True, env=environment
        )
        try:
            status = running.wait(rest)
        except subprocess.TimeoutExpired:
            return False, left
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        if status not in (0, NOTHING_SELECTED):
            return True, left[size:]
        left, size = left[size:], 2 * size
    return False, left


if __name__ == "__main__":
    sys.exit(main())
