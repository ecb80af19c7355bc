"""The field's words: names that say nothing name nothing, and one public name means one thing."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.trees import trees

SILENT = frozenset({"again", "ails", "ask", "found", "judge", "near", "one", "own", "said", "told"})
"""Words that say nothing of what they hold (DESIGN §5, `docs/glossary.md`): no variable is called so."""
INSIDE = SILENT - {"one", "own"}
"""Nor is one of these part of a function's, class's, field's, constant's or file's name; there one and own are
also a number and a possessive."""
DEFINED = SILENT | {"ends"}
"""Nor are these all of such a name; a local may hold the ends of a link or of a range."""
EXEMPT: Mapping[tuple[str, str], str] = {
    ("planner/structure.py", "found"): "key of `plan verify --json`",
    ("planner/serving/plan.py", "found"): "key of `plan serve --json`",
    ("planner/serving/plan.py", "prompts_found"): "key of `plan serve --json`",
}
"""Names that stay, by file, each with its reason."""
FILES_EXEMPT = {file for file, _ in EXEMPT}
SAME: Mapping[str, str] = {
    "LatentAttention": "DeepSeek-V2's name: the cost model prices what the executor's module computes",
}
"""Classes that are called the same in several files because they are the same, each with its reason."""


def segments(name: str) -> set[str]:
    """Words of a name: of snake_case, of CamelCase.

    >>> sorted(segments("_slots_told")), sorted(segments("FoundCluster"))
    (['slots', 'told'], ['cluster', 'found'])
    """
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def names_of(tree: ast.Module) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
    """Bound and defined names with their lines.

    Bound are variables, parameters, attributes, captures and imports under another name; defined are functions,
    classes, their fields, and constants.
    """
    bound, defined = set[tuple[int, str]](), set[tuple[int, str]]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                bound.add((node.lineno, name))
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                bound.add((node.lineno, name))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add((node.lineno, name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add((node.lineno, name))
        if isinstance(node, ast.ClassDef | ast.Module):
            for part in node.body:
                targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
                defined |= {(part.lineno, target.id) for target in targets if isinstance(target, ast.Name)}
    return bound, defined


def silent_names(file: str, tree: ast.Module) -> list[str]:
    """Names of a file that say nothing, with their places; exempt ones left out."""
    bound, defined = names_of(tree)
    silent = {(line, name) for line, name in bound if name.strip("_").lower() in SILENT}
    for line, name in (*defined, (1, Path(file).stem)):
        if name.strip("_").lower() in DEFINED or segments(name) & INSIDE:
            silent.add((line, name))
    return [f"{file}:{line} {name}" for line, name in sorted(silent) if (file, name) not in EXEMPT]


class Survey(NamedTuple):
    """What one pass over the packages sees: names that say nothing, all defined names, homes of classes."""

    silent: list[str]
    defined: set[tuple[str, str]]
    shared_classes: dict[str, list[str]]


@functools.cache
def survey() -> Survey:
    """Every file of the packages, looked at once."""
    silent, defined, homes = list[str](), set[tuple[str, str]](), defaultdict[str, list[str]](list)
    for file, tree in trees():
        silent += silent_names(file, tree)
        defined |= {(file, name) for _, name in names_of(tree)[1]} if file in FILES_EXEMPT else set()
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(file)
    return Survey(silent, defined, {name: files for name, files in homes.items() if len(files) > 1})


def test_no_name_says_nothing() -> None:
    silent = survey().silent
    assert silent == [], "\n".join(("name what it holds, in a noun of docs/glossary.md:", *silent))


def test_one_class_has_one_meaning() -> None:
    """An engineer who greps for a class meets one idea."""
    assert {name: files for name, files in survey().shared_classes.items() if name not in SAME} == {}


def test_every_exemption_is_needed() -> None:
    assert EXEMPT.keys() <= survey().defined
    assert SAME.keys() <= survey().shared_classes.keys()


def test_the_lint_sees_what_it_forbids() -> None:
    text = """
import json as told
MOST_TOLD = 3
class FoundCluster:
    said: str
    kept: str
    def judge_all(self, near, *, again=None):
        self.found = [one for one in near]
        try:
            ask = lambda own: own
        except ValueError as ails:
            ends = 1
        match near:
            case {"x": found}: pass
def ends(): ...
def one_node(): ...
"""
    names = {place.rpartition(" ")[2] for place in silent_names("planner/told_words.py", ast.parse(text))}
    assert names == SILENT - {"judge"} | {"FoundCluster", "MOST_TOLD", "judge_all", "ends", "told_words"}
