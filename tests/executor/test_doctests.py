"""The examples in the executor's docstrings are right."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

pytest.importorskip("torch")

import executor

MODULES = sorted(module.name for module in pkgutil.walk_packages(executor.__path__, "executor."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_right(name: str) -> None:
    """Every example of the module gives what it says."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
