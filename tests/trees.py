"""The packages' files as syntax trees, parsed and walked once a process for every test that reads the code."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("topology", "costmodel", "planner", "executor", "app", "meshplan")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a file, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file of the packages."""
    return tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def name_of(path: Path) -> str:
    """A file by its place in the repository."""
    return path.relative_to(ROOT).as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every file of the packages with its tree."""
    for path in files():
        yield name_of(path), tree_of(path)


def nodes() -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """Every file of the packages with its nodes."""
    for path in files():
        yield name_of(path), nodes_of(path)
