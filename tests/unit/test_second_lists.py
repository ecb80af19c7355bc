"""Names of a record table are listed once: a literal that repeats three of them is a second list, and drifts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

import pytest

from costmodel.kernels.precisions import TRAINING, config_words, precision_in
from costmodel.layout import SCHEDULES
from costmodel.pipeline.schedules import RECORDS, schedule_named
from costmodel.updates.optimizers import optimizers
from tests.trees import nodes
from topology.hardware.datasheets import UNLISTED, generations, gpu_sheets, machines

TABLES: Mapping[str, frozenset[str]] = {
    "schedule": frozenset(SCHEDULES),
    "training precision": frozenset(TRAINING),
    "generation": frozenset(generations()) - {UNLISTED},
    "gpu": frozenset(gpu_sheets()),
    "machine": frozenset(machines()),
    "optimizer": frozenset(optimizers()),
}
FEWEST = 3
"""Names from which a collection is a list of a table, and no choice of one or two."""
HOMES: Mapping[tuple[str, str], str] = {
    ("costmodel/layout.py", "schedule"): "the type whose names the records are of",
    ("costmodel/pipeline/schedules.py", "schedule"): "the records",
    ("costmodel/kernels/precisions.py", "training precision"): "the type and the records",
    ("topology/hardware/gpu.py", "training precision"): "widths of units of hardware, a table of its own",
    ("planner/engines/accelerate.py", "training precision"): "what one engine can be told, and how",
    ("planner/engines/bridge.py", "training precision"): "recipes of one engine, by what they train in",
    ("planner/engines/megatron_lm/layout.py", "optimizer"): "what one engine calls them",
}
"""Where a list stands, and why there."""


def collections_of(each_node: Iterable[ast.AST]) -> Iterator[tuple[int, list[object]]]:
    """Literal tuples, lists and sets, and keys and values of literal tables: line and constants."""
    for node in each_node:
        parts: list[list[ast.expr | None]] = []
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = [list(node.elts)]
        elif isinstance(node, ast.Dict):
            parts = [list(node.keys), list(node.values)]
        for part in parts:
            yield (
                getattr(node, "lineno", 0),
                [each.value if isinstance(each, ast.Constant) else None for each in part],
            )


def second_lists(each_node: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and table of every literal collection that is made of names of one table alone."""
    for line, values in collections_of(each_node):
        names = {value for value in values if isinstance(value, str)}
        if len(names) >= FEWEST and len(names) == len(set(values)):
            yield from ((line, table) for table, known in TABLES.items() if names <= known)


def test_no_code_lists_the_names_of_a_table_a_second_time() -> None:
    """But where HOMES argues why."""
    listed = {(file, table): line for file, each_node in nodes() for line, table in second_lists(each_node)}
    assert {
        f"{path}:{line}: {table}" for (path, table), line in listed.items() if (path, table) not in HOMES
    } == set()
    assert HOMES.keys() <= listed.keys()


WRITTEN: Mapping[str, frozenset[str]] = {
    "costmodel/layout.py": TABLES["schedule"],
    "costmodel/pipeline/schedules.py": TABLES["schedule"],
    "planner/engines/megatron_lm/positions.py": frozenset({"interleaved"}),
}
"""Where names of schedules may be written: their type, their records, and a way to rotate positions."""


def test_no_code_writes_the_name_of_a_schedule() -> None:
    """A name decides nothing: what a schedule does is in its record, and two have constants."""
    written = {
        (file, node.value)
        for file, each_node in nodes()
        for node in each_node
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in SCHEDULES
    }
    assert {(path, name) for path, name in written if name not in WRITTEN.get(path, ())} == set()
    assert {path for path, _ in written} == set(WRITTEN)


@pytest.mark.parametrize(
    "code",
    [
        'x in ("gpipe", "1f1b", "interleaved")',
        'D = {"a": "zbv", "b": "zb-h1", "c": "gpipe"}',
        '["bf16", "fp8", "mxfp8"]',
    ],
)
def test_a_second_list_is_seen(code: str) -> None:
    """The lint finds what it is for."""
    assert list(second_lists(ast.walk(ast.parse(code))))


def test_every_name_of_a_schedule_is_read_as_it() -> None:
    """Its own, those of engines, torch's class and those of runs, however they are spelled."""
    for name, record in RECORDS.items():
        for word in (name, *record.engine_names.values(), *record.run_names):
            assert {schedule_named(each) for each in (word, word.upper(), f" {word}_")} == {name}


def test_every_word_of_a_precision_is_read_as_it() -> None:
    """Also where it stands inside a longer text; every training precision has a word."""
    assert {name for _, name in config_words()} == set(TRAINING)
    for word, name in config_words():
        assert (precision_in(word), precision_in(f"te_{word.upper()}_recipe")) == (name, name)
    assert precision_in("bf16_with_mxfp8_mixed") == "mxfp8"
