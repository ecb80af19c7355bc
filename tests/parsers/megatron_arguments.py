"""A program: words of command lines held against Megatron-LM's own parser and `validate_args`.

    python megatron_arguments.py FOLDER < CASES

FOLDER holds the Python files of the megatron-core wheel, CASES is a JSON list of objects with `words`, `gpus`,
`capability` of each GPU and `environment`, of which nothing else is set. A JSON list is printed: what Megatron
derived, or why it stopped. No GPU is touched: what asks for one is answered here, and packages of kernels,
which are imported and never run, are empty.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

KERNELS = ("triton", "einops")
SHOWN = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "data_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size",
    "micro_batch_size", "global_batch_size", "sequence_parallel", "use_distributed_optimizer",
)  # fmt: skip


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


class Empty(types.ModuleType):
    """A module in which every name is there and does nothing."""

    __path__: typing.ClassVar[list[str]] = []
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        """Anything that is asked for: a class where it is called like one."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None}) if name[:1].isupper() else Nothing()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of kernels that are not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:  # noqa: ARG002
        """An empty module for any of them."""
        if name.partition(".")[0] not in KERNELS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module."""
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def pretend() -> None:
    """Import torch before the packages it would ask for, and compile nothing."""
    import torch
    import torch.utils.flop_counter

    whole: Any = torch
    whole.compile = lambda found=None, **_: found or (lambda later: later)
    whole.cuda.device_count = lambda: 8


def pretend_gpu(capability: str) -> None:
    """Answer for a GPU that is not there."""
    import torch

    major, minor = (int(part) for part in capability.split("."))
    cuda: Any = torch.cuda
    cuda.get_device_capability = lambda *_: (major, minor)
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=major, minor=minor)


def judged(case: dict[str, Any]) -> dict[str, Any]:
    """What Megatron makes of the words."""
    from megatron.training import arguments as megatron  # type: ignore[import-not-found]

    pretend_gpu(case["capability"])
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    megatron.add_megatron_arguments(parser)
    args, unknown = parser.parse_known_args(case["words"])
    if unknown:
        return {"error": f"unknown: {' '.join(unknown)}"}
    args.rank, args.world_size, args.local_rank = 0, case["gpus"], 0
    args.tokenizer_type = args.tokenizer_type or "NullTokenizer"
    args.train_iters, args.lr, args.min_lr = args.train_iters or 10, 1e-4, 1e-5
    megatron.validate_args(args)
    return {name: getattr(args, name) for name in SHOWN}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The same, or why Megatron stopped; what it prints is left out."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return judged(case)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever stops Megatron is the answer
        return {"error": f"{type(error).__name__}: {error} {said.getvalue()[-300:]}"}


def main() -> None:
    """Judge the cases on standard input."""
    if not hasattr(typing, "override"):
        typing.override = lambda found: found  # type: ignore[attr-defined]  # Python 3.11
    pretend()
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.append(Finder())
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0", MASTER_ADDR="localhost")
    sys.stdout.write(json.dumps([answer(case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
