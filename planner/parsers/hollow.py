"""Modules that are imported and never run, and answers for a GPU that is not there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import typing
import warnings
from collections.abc import Sequence
from typing import Any


class Nothing:
    """Something that can be called, decorated with, subscripted and asked for more of itself."""

    def __call__(self, *given: Any, **_: Any) -> Any:
        """What it decorates, or itself."""
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        """More of it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class HollowEnum(type):
    """The kind of a class in which every name is there, such as an enumeration's members.

    A class of this kind is no base beside one of another kind, so that only who needs it has it.
    """

    def __getattr__(cls, name: str) -> Any:
        """Anything that is asked for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


_ANYTHING = {
    "__init__": lambda *_, **__: None,
    "__get_pydantic_core_schema__": classmethod(lambda *_: {"type": "any"}),
}
"""What a class is made of that takes anything, also as a field of a pydantic model."""


class Empty(types.ModuleType):
    """A module in which every name is there and does nothing."""

    __path__: list[str] = []  # noqa: RUF012  # as modules have it
    __version__ = "99.0"

    def __init__(self, name: str, kind: type) -> None:
        """Name it, and say of what kind its classes are."""
        super().__init__(name)
        self.__dict__["_kind"] = kind

    def __getattr__(self, name: str) -> Any:
        """Anything that is asked for: a class where it is called like one."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._kind(name, (), dict(_ANYTHING)) if name[:1].isupper() else Nothing()


class Hollow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds named packages, and whatever lies in them, empty."""

    def __init__(self, packages: Sequence[str], kind: type = type) -> None:
        """Name the packages, and the kind of their classes."""
        self.packages, self.kind = tuple(packages), kind

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:  # noqa: ARG002
        """An empty module for any of them."""
        if not any(name == package or name.startswith(f"{package}.") for package in self.packages):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module."""
        return Empty(spec.name, self.kind)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def pretend() -> None:
    """Import torch before the packages it would ask for, and compile nothing.

    torchao, which may lie beside the borrowed torch, would run kernels of packages that are empty here.
    """
    warnings.simplefilter("ignore")
    sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]  # as Python marks what cannot be imported
    if not hasattr(typing, "override"):
        typing.override = lambda value: value  # type: ignore[attr-defined]  # Python 3.11
    import torch
    import torch.utils.flop_counter

    whole: Any = torch
    whole.compile = lambda value=None, **_: value or (lambda later: later)
    whole.cuda.device_count = lambda: 8
    whole.cuda.current_device = lambda: 0


def pretend_gpu(name: str, capability: str) -> None:
    """Answer for a GPU that is not there."""
    import torch

    major, minor = (int(part) for part in capability.split("."))
    cuda: Any = torch.cuda
    cuda.get_device_name = lambda *_: name
    cuda.get_device_capability = lambda *_: (major, minor)
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=major, minor=minor, name=name)
