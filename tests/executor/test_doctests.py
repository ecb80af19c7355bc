"""The examples in the executor's docstrings are right."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

pytest.importorskip("torch")

import executor

MODULES = sorted(module.name for module in pkgutil.walk_packages(executor.__path__, "executor."))


class Finder(doctest.DocTestFinder):
    """Tells by its name which module an object is of: the library's looks through all modules for each object."""

    def _from_module(self, module: ModuleType | None, object: object) -> bool:  # noqa: A002 - the library's word
        """Whether a module defines an object."""
        name = getattr(module, "__name__", None)
        return isinstance(object, property) or getattr(object, "__module__", None) == name


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name: str) -> None:
    """Every example of the module gives what it says, and none is left out."""
    module = importlib.import_module(name)
    written = sum(line.lstrip().startswith(">>> ") for line in inspect.getsource(module).splitlines())
    if not written:
        return
    runner, examples = doctest.DocTestRunner(), 0
    for each in Finder().find(module):
        runner.run(each)
        examples += len(each.examples)
    assert (examples, runner.failures) == (written, 0)
