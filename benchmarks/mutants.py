"""Which seeded faults the suite finds: `python benchmarks/mutants.py --faults 100 --seed 1`.

A fault is one operator, comparison or constant of the code, changed in a copy of the checkout. The tests that
reach it by imports run, nearest first, until one is red or two minutes (`--seconds`) are over. Survivors may
meet the whole suite (`--whole 10`). The same seed gives the same faults wherever the code is the same.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One change of one file, and what became of it: killed, survived, or unreached by any test."""

    number: int
    part: str
    file: str
    line: int
    was: str
    became: str
    outcome: str = ""
    seconds: float = 0.0


def main() -> int:
    """Draw faults, run what reaches each, print what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="most for the tests of a fault (default: %(default)g)"
    )
    parser.add_argument("--whole", type=int, default=0, help="survivors that meet the whole suite")
    parser.add_argument("--output", type=Path, help="a line of JSON for each fault")
    asked = parser.parse_args()
    faults: list[Fault] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(tree)], check=True)
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        for number in range(asked.faults):
            fault, text = drawn(number, asked.seed)
            done = tried(fault, text, tree, asked.seconds)
            faults.append(done)
            line = json.dumps(asdict(done))
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if asked.output is not None:
                with asked.output.open("a", encoding="utf-8") as lines:
                    lines.write(f"{line}\n")
        for fault in [fault for fault in faults if fault.outcome != "killed"][: asked.whole]:
            _, text = drawn(fault.number, asked.seed)
            found = outcome(fault.file, text, tree, ["tests"], WHOLE_SECONDS)
            sys.stdout.write(f"whole suite: {fault.number} {found}\n")
    survivors = sum(fault.outcome != "killed" for fault in faults)
    sys.stdout.write(f"{len(faults) - survivors} of {len(faults)} faults killed\n")
    return 0


def drawn(number: int, seed: int) -> tuple[Fault, str]:
    """The fault of a number, and the whole text of its file with it."""
    chance = random.Random(f"{seed} {number}")
    part = list(WINGS)[number % len(WINGS)]
    files = sorted(
        path
        for wing in WINGS[part]
        for path in (ROOT / wing).rglob("*.py")
        if any(True for _ in sites(ast.parse(path.read_text(encoding="utf-8"))))
    )
    path = chance.choice(files)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    site = chance.choice(list(sites(tree)))
    was, line = ast.unparse(site), site.lineno
    change(site, chance)
    fault = Fault(
        number=number,
        part=part,
        file=str(path.relative_to(ROOT)),
        line=line,
        was=was,
        became=ast.unparse(site),
    )
    return fault, ast.unparse(tree)


def sites(tree: ast.Module) -> Iterator[ast.BinOp | ast.Compare | ast.BoolOp | ast.Constant]:
    """What can be changed: in bodies of functions, not in texts or types."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    match node:
                        case ast.BinOp() if type(node.op) in ARITHMETIC and not _of_text(node):
                            yield node
                        case ast.Compare() if type(node.ops[0]) in COMPARISONS:
                            yield node
                        case ast.BoolOp() | ast.Constant(value=bool() | int() | float()):
                            yield node


def _of_text(node: ast.BinOp) -> bool:
    """Whether a text is built here."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def change(site: ast.BinOp | ast.Compare | ast.BoolOp | ast.Constant, chance: random.Random) -> None:
    """Make it wrong."""
    if isinstance(site, ast.BinOp):
        site.op = ARITHMETIC[type(site.op)]()
    elif isinstance(site, ast.Compare):
        site.ops[0] = COMPARISONS[type(site.ops[0])]()
    elif isinstance(site, ast.BoolOp):
        site.op = ast.Or() if isinstance(site.op, ast.And) else ast.And()
    elif isinstance(site.value, bool):
        site.value = not site.value
    else:
        site.value = site.value + chance.choice((-1, 1)) if site.value else 1


def tried(fault: Fault, text: str, tree: Path, seconds: float) -> Fault:
    """The fault with what became of it."""
    began = time.monotonic()
    tests = quick.nearest_tests([fault.file])
    found = outcome(fault.file, text, tree, tests, seconds) if tests else "unreached"
    return replace(fault, outcome=found, seconds=round(time.monotonic() - began, 1))


def outcome(file: str, text: str, tree: Path, tests: list[str], seconds: float) -> str:
    """Killed or survived, in a copy of the checkout with the fault; the copy is whole again afterwards."""
    path = tree / file
    before = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        red, _ = quick.run_in_groups(tests, seconds, ["-q", "-x"], tree=tree, quiet=True)
    finally:
        path.write_text(before, encoding="utf-8")
    return "killed" if red else "survived"


if __name__ == "__main__":
    sys.exit(main())
