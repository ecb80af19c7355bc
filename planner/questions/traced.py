"""What a question about a traced module leaves out, and what stands in its place."""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.catalog import library_of_config
from costmodel.models.traced import LIBRARIES
from planner.plan import FREE
from planner.questions.flags import Flags
from topology.base.errors import InputError

STACK = "torchtitan"
"""Prices a module unless said otherwise: what torch alone does, buckets and FSDP2 among it."""


def is_in_a_library(model: str | None) -> bool:
    """Whether a model is named as one of a library.

    >>> is_in_a_library("timm:vit_base_patch16_224"), is_in_a_library("70b")
    (True, False)
    """
    return bool(model) and str(model).partition(":")[0] in LIBRARIES and ":" in str(model)


def traced_name(model: str | None) -> str:
    """What to trace for a model that is named: its library and name; "" where the catalog describes it.

    A config.json of a family that the catalog has not is the library's that reads such files.

    >>> traced_name("timm:vit_base_patch16_224"), traced_name("70b"), traced_name(None)
    ('timm:vit_base_patch16_224', '', '')
    """
    if not model or is_in_a_library(model):
        return model or ""
    library = library_of_config(model)
    return f"{library}:{model}" if library else ""


def of_a_module(flags: Flags) -> Flags:
    """The same question as no engine's contract limits it.

    >>> of_a_module(Flags(gpus="4")).stack
    'torchtitan'

    Raises:
        InputError: If an engine was named.
    """
    if flags.engine not in (None, FREE):
        raise InputError(
            what=f"no setting of {flags.engine} runs a traced module",
            cause="contracts of engines describe transformers",
            fix="leave out --for, or use --for any",
        )
    return replace(flags, engine=FREE, stack=flags.stack or STACK)
