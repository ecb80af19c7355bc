"""Layers through `torch.compile`, one graph each, as torchtitan compiles them.

A layer's elementwise operations become few kernels, and its launches fewer. Every layer of a stage has the
same code and shapes, so what is compiled for one serves all. Routed experts stay outside of the graph: rows
of an expert change from step to step, and `grouped_mm` is one kernel already.
"""

from __future__ import annotations

import torch

from executor.model.moe import Experts
from executor.parallel.pipeline import Pipeline


def compile_layers(pipeline: Pipeline) -> None:
    """Compile every layer of this rank's stages, at its first call."""
    for stage in pipeline.stages:
        for layer in stage.module.model.layers.values():
            for module in layer.modules():
                if isinstance(module, Experts):
                    module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
            layer.compile(dynamic=False)
