"""What holds for every test and doctest of the suite."""

import gc
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

gc.set_threshold(
    100_000
)  # what imports make stays: to look through it at every 700 objects is a fifth of the suite

pytest_plugins = ("tests.guard", "tests.clock_lane", "tests.answers", "tests.pages", "tests.parser_server")
collect_ignore_glob = ["planner/parsers/*.py"]
"""Programs of other interpreters: they put stubs into theirs."""
EXAMPLE = ">>>"
"""What an example of a docstring begins with."""


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Search objects of a file of tests for examples only where its text has one."""
    collectors = yield
    has_examples = not collectors[1:] or EXAMPLE in file_path.read_text(encoding="utf-8")
    return [each for each in collectors if has_examples or not isinstance(each, DoctestModule)]
