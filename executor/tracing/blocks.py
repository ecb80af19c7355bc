"""Which modules are the blocks of a model: repeated children of containers, found from outside in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def blocks_of(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Blocks of a module by path: repeated children of lists and sequences; others are searched."""
    from torch import nn

    container = isinstance(module, nn.Sequential | nn.ModuleList)
    classes = Counter(type(child) for child in module.children())
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        nested = isinstance(child, nn.Sequential | nn.ModuleList)
        if container and not nested and classes[type(child)] > 1 and not _has_blocks(child):
            yield path, child
        else:
            yield from blocks_of(child, path)


def _has_blocks(module: nn.Module) -> bool:
    """Whether a module has repeated modules in it that are made of others: a stage of blocks is no block."""
    from torch import nn

    for inner in module.modules():
        if isinstance(inner, nn.Sequential | nn.ModuleList):
            made = [type(child) for child in inner.children() if next(child.children(), None) is not None]
            if len(made) > len(set(made)):
                return True
    return False
