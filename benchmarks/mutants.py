"""Which seeded faults the suite finds: `python benchmarks/mutants.py --faults 100 --seed 1`.

A fault is one operator, comparison or constant of the code, changed in a copy of the checkout. The tests
that reach it by imports run, its own examples and the nearest first, until one is red or their CPU seconds
(`--seconds`) are spent: other load on the machine decides nothing. A red test counts if it is red again
with the fault and green without it. Survivors may meet the whole suite (`--whole 10`). The same seed gives
the same faults wherever the code is the same.

`--against REVISION` draws faults in functions that stand alike in that revision, and tries each in both:
two suites are compared by the same faults. `--output FILE` holds a line of JSON for each verdict; what
stands there is not tried again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("quick", ROOT / "tools" / "quick.py")
if _SPEC is None or _SPEC.loader is None:
    raise ImportError(name="tools/quick.py")
quick = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(quick)

WINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "cost model": (
        "costmodel/kernels",
        "costmodel/ops",
        "costmodel/memory",
        "costmodel/training",
        "costmodel/pipeline",
    ),
    "search": ("planner/search", "planner/bounds", "planner/stages", "planner/space"),
    "rules": ("planner/rules",),
    "exporters": ("planner/engines", "planner/launch", "planner/deployment"),
    "executor": (
        "executor/parallel",
        "executor/training",
        "executor/model",
        "executor/data",
        "executor/comm",
    ),
}
SECONDS: Final = 120.0
WHOLE_SECONDS: Final = 5400.0
PATIENCE: Final = 20
"""Seconds of wall clock for each CPU second: what waits longer hangs."""
REST_S: Final = 0.5
TESTED: Final = "not browser and not gpu"
ARITHMETIC: Final = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
COMPARISONS: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
Site = ast.BinOp | ast.Compare | ast.BoolOp | ast.Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One change of one file, and what became of it: killed, survived, or unreached by any test."""

    number: int
    part: str
    file: str
    line: int
    was: str
    became: str
    tree: str = "head"
    outcome: str = ""
    test: str = ""
    cpu_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Tree:
    """A copy of the checkout at a revision, with an interpreter that imports it and not this checkout."""

    name: str
    folder: Path
    python: Path
    red: set[str] = field(default_factory=set)
    """Tests that are red without a fault."""


def main() -> int:
    """Draw faults, run what reaches each, print what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="CPU seconds for the tests of a fault (default: %(default)g)",
    )
    parser.add_argument("--against", metavar="REVISION", help="another revision that the same faults meet")
    parser.add_argument("--whole", type=int, default=0, help="survivors that meet the whole suite")
    parser.add_argument(
        "--output", type=Path, help="a line of JSON for each verdict; a run goes on behind them"
    )
    asked = parser.parse_args()
    judged = _known(asked.output)
    with tempfile.TemporaryDirectory() as folder:
        trees = [grown("head", "HEAD", Path(folder))]
        if asked.against:
            trees.append(grown(asked.against, asked.against, Path(folder)))
        drawings: list[list[Fault]] = []
        for number in range(asked.faults):
            drawings.append(drawn(number, asked.seed, trees, drawings))
        nearest = {
            tree.name: nearest_tests(tree, [faults[place].file for faults in drawings])
            for place, tree in enumerate(trees)
        }
        for faults in drawings:
            for tree, fault in zip(trees, faults, strict=True):
                if (fault.number, tree.name) in judged:
                    continue
                judged[fault.number, tree.name] = done = tried(
                    fault, tree, nearest[tree.name][fault.file], asked.seconds
                )
                _write(done, asked.output)
        for fault in [fault for fault in judged.values() if fault.outcome != "killed"][: asked.whole]:
            tree = next(tree for tree in trees if tree.name == fault.tree)
            _write(tried(fault, tree, ["tests"], WHOLE_SECONDS), None)
    for tree in trees:
        verdicts = [fault.outcome for fault in judged.values() if fault.tree == tree.name]
        sys.stdout.write(f"{tree.name}: {verdicts.count('killed')} of {len(verdicts)} faults killed\n")
    return 0


def _known(output: Path | None) -> dict[tuple[int, str], Fault]:
    """Verdicts of an earlier run, by number and tree."""
    if output is None or not output.is_file():
        return {}
    faults = [Fault(**json.loads(line)) for line in output.read_text(encoding="utf-8").splitlines()]
    return {(fault.number, fault.tree): fault for fault in faults}


def _write(fault: Fault, output: Path | None) -> None:
    line = json.dumps(asdict(fault))
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if output is not None:
        with output.open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")


def grown(name: str, revision: str, folder: Path) -> Tree:
    """A clone of the checkout at a revision, `shared` beside it, and its interpreter."""
    home = folder / re.sub(r"\W", "_", name)
    tree = home / "tree"
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", revision], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([*git, "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(tree)], check=True)
    subprocess.run(["git", "-C", str(tree), "checkout", "-q", "--detach", commit], check=True)
    (home / "shared").symlink_to(ROOT.parent / "shared")
    shutil.copy(
        ROOT / "tools" / "quick.py", tree / ".git" / "quick.py"
    )  # one that reads this tree, and is none of it
    venv.create(home / "venv", symlinks=True)
    (packages,) = (home / "venv").glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "tree.pth").write_text("".join(f"{path}\n" for path in (tree, *places)), encoding="utf-8")
    return Tree(name=name, folder=tree, python=home / "venv" / "bin" / "python")


def _environment(tree: Tree) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(tree.folder),
        "PATH": os.pathsep.join([str(tree.python.parent), os.environ["PATH"]]),
    }


def nearest_tests(tree: Tree, files: Sequence[str]) -> dict[str, list[str]]:
    """Files of tests that reach each file, nearest first, as the tree itself imports."""
    code = (
        "import json, sys; sys.path.insert(0, '.git'); import quick; "
        "print(json.dumps({file: quick.nearest_tests([file]) for file in sys.argv[1:]}))"
    )
    words = [str(tree.python), "-c", code, *files]
    done = subprocess.run(
        words, cwd=tree.folder, env=_environment(tree), check=True, capture_output=True, text=True
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def drawn(number: int, seed: int, trees: Sequence[Tree], earlier: Sequence[Sequence[Fault]]) -> list[Fault]:
    """The fault of a number as it stands in each tree, none that was drawn before."""
    taken = {(faults[0].file, faults[0].line, faults[0].was) for faults in earlier}
    chance = random.Random(f"{seed} {number}")
    part = list(WINGS)[number % len(WINGS)]
    every = [functions(tree.folder, WINGS[part] if tree is trees[0] else quick.PACKAGES) for tree in trees]
    alike = [key for key in every[0] if all(key in others for others in every[1:])]
    by_file: dict[str, list[str]] = defaultdict(list)
    for key in alike:
        by_file[every[0][key][0]].append(key)
    while True:
        keys = by_file[chance.choice(sorted(by_file))]
        _, function = every[0][chance.choice(keys)]
        key = _key(function)
        place, draw = chance.randrange(len(list(sites(function)))), chance.random()
        faults = []
        for tree, known in zip(trees, every, strict=True):
            file, there = known[key]
            site = list(sites(there))[place]
            was = ast.unparse(site)
            became = ast.unparse(changed(site, draw))
            faults.append(
                Fault(
                    number=number,
                    part=part,
                    file=file,
                    line=site.lineno,
                    was=was,
                    became=became,
                    tree=tree.name,
                )
            )
            try:
                ast.parse(faulty_text(tree, faults[-1]))
            except SyntaxError:  # a number of a pattern
                break
        else:
            if (faults[0].file, faults[0].line, faults[0].was) not in taken:
                return faults


@cache
def functions(folder: Path, wings: tuple[str, ...]) -> dict[str, tuple[str, ast.FunctionDef]]:
    """File and tree of each function that can be changed, by what it computes, where it stands once."""
    found: dict[str, list[tuple[str, ast.FunctionDef]]] = defaultdict(list)
    for path in sorted(path for wing in wings for path in (folder / wing).rglob("*.py")):
        file = str(path.relative_to(folder))
        if file.startswith("tests/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(True for _ in sites(node)):
                found[_key(node)].append((file, node))
    return {key: places[0] for key, places in found.items() if not places[1:]}


def _key(function: ast.FunctionDef) -> str:
    """A function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return " ".join([function.name, ast.dump(function.args), *(ast.dump(node) for node in body)])


def sites(function: ast.FunctionDef) -> Iterator[Site]:
    """What can be changed: in the body, not in texts or types."""
    for statement in function.body:
        for node in _walked(statement):
            match node:
                case ast.BinOp() if type(node.op) in ARITHMETIC and not _of_text(node):
                    yield node
                case ast.Compare() if type(node.ops[0]) in COMPARISONS:
                    yield node
                case ast.BoolOp() | ast.Constant(value=bool() | int() | float()):
                    yield node


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what it holds, without texts: places of what stands in them are not known."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr):
            yield from _walked(child)


def _of_text(node: ast.BinOp) -> bool:
    """Whether a text is built here."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def changed(site: Site, draw: float) -> Site:
    """The same made wrong; `draw` in [0, 1) decides which way."""
    match site:
        case ast.BinOp():
            return ast.BinOp(site.left, ARITHMETIC[type(site.op)](), site.right)
        case ast.Compare():
            return ast.Compare(site.left, [COMPARISONS[type(site.ops[0])](), *site.ops[1:]], site.comparators)
        case ast.BoolOp():
            return ast.BoolOp(ast.Or() if isinstance(site.op, ast.And) else ast.And(), site.values)
        case ast.Constant(value=bool()):
            return ast.Constant(not site.value)
    assert isinstance(site.value, int | float)
    return ast.Constant(site.value + (-1 if draw < 0.5 else 1) if site.value else 1)


def faulty_text(tree: Tree, fault: Fault) -> str:
    """The file with the fault; every other letter stays."""
    text = (tree.folder / fault.file).read_text(encoding="utf-8")
    site = next(
        site
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for site in sites(node)
        if site.lineno == fault.line and ast.unparse(site) == fault.was
    )
    assert site.end_lineno is not None
    assert site.end_col_offset is not None
    lines = text.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: site.lineno - 1])) + site.col_offset
    end = sum(map(len, lines[: site.end_lineno - 1])) + site.end_col_offset
    whole = text.encode()
    return (whole[:begin] + f"({fault.became})".encode() + whole[end:]).decode()


def tried(fault: Fault, tree: Tree, tests: Sequence[str], seconds: float) -> Fault:
    """The fault with what became of it, in a copy that is whole again afterwards."""
    if not tests:
        return replace(fault, outcome="unreached")
    path = tree.folder / fault.file
    whole, faulty = path.read_text(encoding="utf-8"), faulty_text(tree, fault)
    left, size, spent = [fault.file, *tests], quick.FIRST_GROUP, 0.0
    try:
        while left and spent < seconds:
            path.write_text(faulty, encoding="utf-8")
            run = tested(tree, left[:size], seconds - spent)
            spent += run.cpu_s
            if run.verdict == "green":
                left, size = left[size:], 2 * size
                continue
            again = tested(tree, [run.test], seconds)
            if run.verdict == "unended" and again.verdict == "green":
                break  # the seconds are spent, and not by one test
            path.write_text(whole, encoding="utf-8")
            if again.verdict != "green" and tested(tree, [run.test], seconds).verdict == "green":
                return replace(fault, outcome="killed", test=run.test, cpu_s=round(spent, 1))
            tree.red.add(run.test)  # it fails now and then, or always: it judges nothing here
    finally:
        path.write_text(whole, encoding="utf-8")
    return replace(fault, outcome="survived", cpu_s=round(spent, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What tests say: `green`; `red` and the first that is; `unended` and the one that ran at the end."""

    verdict: str
    test: str
    cpu_s: float


def tested(tree: Tree, tests: Sequence[str], seconds: float) -> Run:
    """Run tests, which may be files, until the first is red or so many CPU seconds are spent."""
    known = [word for red in sorted(tree.red) for word in ("--deselect", red)]
    options = ["-n", "0", "-v", "-rfE", "-x", "--tb=no", "-m", TESTED]
    words = [str(tree.python), "-m", "pytest", *options, *known, *tests]
    with tempfile.TemporaryFile("w+") as out:
        running = subprocess.Popen(
            words, cwd=tree.folder, stdout=out, stderr=out, start_new_session=True, env=_environment(tree)
        )
        began_s, cpu_s = time.monotonic(), 0.0
        try:
            while running.poll() is None and cpu_s < seconds:
                time.sleep(REST_S)
                cpu_s = max(cpu_s, _computed(running.pid))
                if time.monotonic() - began_s > PATIENCE * seconds:
                    break
            ended = running.poll() is not None
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        out.seek(0)
        said = out.read()
    if ended and running.returncode in (0, quick.NOTHING_SELECTED):
        return Run(verdict="green", test="", cpu_s=cpu_s)
    if not ended:
        begun = said.rpartition("\n")[2].strip()
        return Run(verdict="unended", test=begun if "::" in begun else tests[0], cpu_s=cpu_s)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return Run(verdict="red", test=failed[1] if failed else tests[0], cpu_s=cpu_s)


def _computed(session: int) -> float:
    """CPU seconds of a session: its processes, and those that they have waited for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(words[3]) == session:
            ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
