"""One noun per question: a `Case` or a `Problem` is handed on, not its parts, and each is built in one place."""

from __future__ import annotations

import ast

from tests.trees import nodes

PARTS = {
    "ModelSpec": "model",
    "Cluster": "cluster",
    "TrainingJob": "job",
    "ServingJob": "job",
    "SoftwareStack": "stack",
    "ParallelLayout": "layout",
    "LayoutTable": "layout",
    "Calibration": "cal",
}
"""What a question is made of, by the type that says it."""
MANY = 3
MOST_OF_PARTS = 0
"""Functions that take as many parts one by one."""
MOST_BUILT = 4
"""Calls that build a `Problem` from a request, outside the file that defines it."""
HOME = "planner/plan.py"


def names_in(node: ast.expr) -> set[str]:
    """Names and attributes in an annotation."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def parts_taken(function: ast.FunctionDef) -> set[str]:
    """Parts of a question that a function takes one by one, by its annotations."""
    of = function.args
    given = (arg.annotation for arg in (*of.posonlyargs, *of.args, *of.kwonlyargs) if arg.annotation)
    return {PARTS[name] for annotation in given for name in names_in(annotation) if name in PARTS}


def test_a_question_is_handed_on_whole() -> None:
    functions = [
        f"{file}:{node.lineno} {node.name} {sorted(parts_taken(node))}"
        for file, each in nodes()
        for node in each
        if isinstance(node, ast.FunctionDef) and len(parts_taken(node)) >= MANY
    ]
    assert len(functions) <= MOST_OF_PARTS, "\n".join(functions)


def test_a_problem_is_built_where_it_is_asked() -> None:
    """A plan has its own: `plan.problem`."""
    calls = [
        f"{file}:{node.lineno}"
        for file, each in nodes()
        for node in each
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "problem_of" and file != HOME
    ]
    assert 0 < len(calls) <= MOST_BUILT, "\n".join(calls)


def test_the_counts_see_what_they_count() -> None:
    parts = ast.parse("def f(m: ModelSpec, c: Cluster | None, x: list[ParallelLayout], n: int) -> None: ...")
    (function,) = parts.body
    assert isinstance(function, ast.FunctionDef)
    assert parts_taken(function) == {"model", "cluster", "layout"}
