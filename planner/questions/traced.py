"""What a question about a traced module leaves out, and what stands in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.job import TrainingJob
from costmodel.models.catalog import library_of_config
from costmodel.models.traced import LIBRARIES, TracedModule, no_length
from planner.plan import FREE
from planner.questions.flags import Flags
from topology.base.counts import parse_count
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


def length_asked(flags: Flags) -> int:
    """Tokens of a sample that a question asks for; 0 where that is left to us."""
    return parse_count(flags.sequence_length, "--sequence-length") if flags.sequence_length else 0


def of_samples(flags: Flags, module: TracedModule) -> Flags:
    """The same question in samples, which a traced module counts: their length is that of the trace.

    Raises:
        InputError: Another length was asked for than the inputs have, or they have none.
    """
    asked = length_asked(flags)
    if asked and not module.sample_tokens:
        raise no_length(module.builder, asked)
    if asked and asked != module.sample_tokens:
        raise InputError(
            what="two lengths were given",
            cause=f"--sequence-length {asked}, and inputs of {module.sample_tokens} tokens",
            fix=f"leave --sequence-length out, or give inputs of {asked} tokens",
        )
    return replace(flags, sequence_length=None)


def length_note(module: TracedModule) -> tuple[str, ...]:
    """How long the samples are that a module was traced with."""
    if not module.sample_tokens:
        return ()
    return (
        f"samples of {module.sample_tokens:,} tokens (--sequence-length or --input gives another length)",
    )


UNCUT = ("cp", "ep", "expert_tp")
"""Axes that split a sample or experts; what a trace has of these nobody named."""


def require_of_a_module(module: TracedModule, job: TrainingJob, pins: Mapping[str, Any]) -> None:
    """Refuse what only described transformers are planned with, rather than price it as if it were not asked.

    Raises:
        InputError: For adapters, for fewer than sixteen bits, for an axis that splits a sample, and for
            tensor parallelism of blocks that it cannot divide.
    """
    described = "a decoder is described by its config.json, and has all of it"
    if job.adapter is not None:
        raise InputError(
            what="adapters of a traced module are not planned",
            cause=f"{job.adapter.words}: a trace has products, and no names of what they project",
            fix=f"leave --adapter out; {described}",
        )
    if job.is_low_precision:
        raise InputError(
            what="a traced module is planned in sixteen bits",
            cause=f"its operations were traced in bf16, and the job is in {job.precision}",
            fix=f"use --precision bf16; {described}",
        )
    if module.uncut and isinstance(pins.get("tp", 1), int) and pins.get("tp", 1) > 1:
        raise InputError(
            what="a traced module is not split by tp",
            cause=f"layout.tp = {pins['tp']}: {module.uncut}",
            fix=f"leave layout.tp out: replicas, ZeRO and stages are planned; {described}",
        )
    for axis in UNCUT:
        degree = pins.get(axis, 1)
        if isinstance(degree, int) and degree > 1:
            raise InputError(
                what=f"a traced module is not split by {axis}",
                cause=f"layout.{axis} = {degree}: what can be cut, and where sums follow, is not traced",
                fix=f"leave layout.{axis} out: replicas, ZeRO and stages are planned; {described}",
            )
