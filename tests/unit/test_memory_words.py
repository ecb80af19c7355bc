"""Whether something fits is said by `costmodel.memory.fit` alone: no other text composes that verdict."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trees import nodes_of

ROOT = Path(__file__).parents[2]
HOME = "costmodel/memory/fit.py"
VERDICT = re.compile(r"\b(fits|(do|does|did|will|would|can) ?not fit|OOM)\b")
WORDS = ("fits", "tight", "does not fit", "OOM")
"""A word alone is what a chance is compared with, a key or the head of a column: no sentence."""
ALLOWED = {
    ("app/figures/capacity.py", "nothing fits"): "no layout of the search has a chance below 5 %",
    ("app/figures/capacity.py", "nothing fits in "): "the same, counted",
    ("app/flags/shared.py", "keeps the chance of OOM below 5 %"): "what the default is",
    ("app/analysis/ladder.py", " that fits is "): "of a rung whose chance stands in the table below",
    ("app/reports/training_accuracy.py", "OOM seen"): "rows that ran out of memory",
    ("app/reports/training_accuracy.py", "OOM false"): "rows that did not",
    ("app/analysis/plan_diff.py", "chance of OOM"): "name of the quantity",
    ("planner/search/verify.py", "chance of OOM"): "name of the quantity",
    ("planner/search/infeasible.py", " chance of OOM"): "behind the chance of a share left free",
    ("planner/search/tight.py", "no layout fits: "): "what the search has shown",
    ("planner/search/tight.py", "a chance of OOM below "): "what the default is",
    ("planner/search/tight.py", "a layout fits with "): "each change was searched",
    ("planner/audit/verdict.py", " chance of OOM"): "behind the chance of a job, by the words of the home",
    ("planner/audit/audit.py", "the log shows steps, so the job fits its GPUs"): "proven by a run",
    (
        "planner/audit/audit.py",
        "faster than any layout that surely fits, and ",
    ): "the best plan is searched among those",
    ("planner/structure.py", " does not fit together: "): "of parts of a file",
    ("planner/structure.py", "chance of OOM"): "name of the quantity",
    ("planner/questions/seen.py", " do not fit into it"): "of images in a sequence",
    ("planner/deployment/triton.py", "a layout that fits a node"): "of GPUs in a node",
    ("planner/serving/answer.py", "fits.json"): "the name of a file",
    ("costmodel/kernels/tables.py", "fits.json"): "the name of a file",
    ("planner/serving/replica.py", "does not fit in memory"): "of a server, whose cache is counted in tokens",
    ("planner/serving/infeasible.py", " does not fit on "): "of a server, whose cache is counted in tokens",
    ("costmodel/accuracy/serving_predictions.py", "the model does not fit: "): "of a server, as above",
}


def texts(path: Path) -> Iterator[str]:
    """Every text of a file that is no docstring."""
    alone = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.parametrize("package", ["app", "planner", "costmodel", "meshplan"])
def test_no_other_text_says_that_something_fits(package: str) -> None:
    """Texts of a package that hold one of the words, beside those whose reason is named above."""
    composed = [
        (str(path.relative_to(ROOT)), text)
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) != HOME
        for text in texts(path)
        if VERDICT.search(text) and text not in WORDS
    ]
    stray = [
        (path, text)
        for path, text in composed
        if not any(path == there and allowed in text for there, allowed in ALLOWED)
    ]
    assert stray == []


def test_every_reason_that_is_named_is_of_a_text_that_is_there() -> None:
    """An exception whose text has gone is none any more."""
    gone = [(path, text) for path, text in ALLOWED if not any(text in known for known in texts(ROOT / path))]
    assert gone == []
