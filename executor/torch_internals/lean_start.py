"""What a rank's start leaves out: torch's compiler, which takes most of a second of CPU to import.

Optimizers, fake tensors and FSDP's hooks import it to be hidden from it, or to read its settings. In a
process that compiles nothing there is nothing to hide from, so a stand-in answers these; whoever asks it for
anything else, or imports any other part of it, gets torch's own, and all later callers with it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from executor.torch_internals.compiler import COMPILER

NAME = COMPILER.rpartition(".")[2]
SETTINGS = f"{COMPILER}.config"


class _StandIn(ModuleType):
    """Answers as a compiler that is not at work."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__path__ = [f"{folder}/{NAME}" for folder in torch.__path__]

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Hide a function from the compiler: it is what it was. Without one, a decorator that does so."""
        return function if function is not None else lambda decorated: decorated

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """End the graph that is being recorded: none is."""

    def __getattr__(self, name: str) -> Any:
        """Ask torch's own. The import system's own questions, asked of every module, do not load it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_compiler(), name)


class _CompilerParts(MetaPathFinder, Loader):
    """Loads torch's own before any part of it but its settings: its parts import each other in one order."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """The part as torch's own has imported it; None if it has not, and for whatever else there is."""
        if name == SETTINGS or not name.startswith(f"{COMPILER}.") or not _stands_in():
            return None
        _compiler()
        return ModuleSpec(name, self, origin=name) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """What is there already, which knows where it is from."""
        self.true = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""
        module.__spec__ = self.true


def leave_compiler_out() -> None:
    """Put the stand-in where torch looks for its compiler, unless that is loaded already."""
    if COMPILER in sys.modules:
        return
    sys.modules[COMPILER] = _StandIn()
    setattr(torch, NAME, sys.modules[COMPILER])
    importlib.import_module(SETTINGS)
    sys.meta_path.insert(0, _CompilerParts())


def _stands_in() -> bool:
    return isinstance(sys.modules.get(COMPILER), _StandIn)


def _compiler() -> ModuleType:
    """Torch's compiler, imported in the place of the stand-in."""
    if _stands_in():
        del sys.modules[COMPILER]
        delattr(torch, NAME)
    return importlib.import_module(COMPILER)
