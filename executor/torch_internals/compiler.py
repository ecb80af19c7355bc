"""Torch's compiler: a graph compiled for its shapes, and its import, done early."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

COMPILER = "torch._dynamo"  # imported on first use


def compile_graph(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Trace a function of tensors without values, and compile its graph for their shapes and strides."""
    from torch.fx.experimental.proxy_tensor import make_fx

    alone = [tensor.detach() for tensor in tensors]
    graph = make_fx(function, tracing_mode="fake")(*alone)
    compiled: Callable[..., Any] = torch._inductor.compile(graph, alone)  # noqa: SLF001
    return compiled


def preload() -> None:
    """Import what torch loads on first use, so that processes forked from here find it loaded."""
    importlib.import_module(COMPILER)
