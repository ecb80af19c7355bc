"""Gradient buckets in Megatron-LM's arguments: a number of parameters, of the first pipeline rank alone.

A bucket counts gradients, not bytes, and is cut only where gradients are reduced while the backward runs;
ranks after the first stage and chunks after the first have one bucket, whatever is said. Read in
``training/training.py`` (`resolve_ddp_bucket_size`, `get_model`) of megatron-core 0.19.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from planner.engines.fields import Facts
from planner.engines.limit import limit
from planner.engines.megatron_lm.stages import PP, chunks_of
from planner.engines.megatron_lm.state import reduced_bytes
from planner.engines.setting import EngineSetting, Given, Word
from planner.plan import Problem
from topology.base.units import format_bytes

SIZE, REDUCED, FSDP = "--ddp-bucket-size", "--overlap-grad-reduce", "--use-megatron-fsdp"


def _write(facts: Facts) -> dict[str, Any]:
    bucket, replicas = facts.get("job.bucket_bytes"), facts["layout.dp"] * facts["layout.cp"]
    return {SIZE: int(bucket // facts["stack.gradient_reduce_bytes"])} if bucket and replicas > 1 else {}


def _read(given: Given) -> dict[str, Any]:
    one_bucket = given[PP] > 1 or chunks_of(given) > 1 or not given[REDUCED] or given[FSDP]
    if given[SIZE] is None or one_bucket:
        return {}
    return {"job.bucket_bytes": given[SIZE] * reduced_bytes(given)}


BUCKETS = EngineSetting(
    words=(Word(name=SIZE, kind="int", states="job.bucket_bytes"),),
    fields=("job.bucket_bytes",),
    write=_write,
    read=_read,
)


def _whole(s: Problem) -> bool:
    """Whether a bucket is a whole number of gradients that are reduced under the backward."""
    cut = s.stack.timing.gradient_overlap > 0
    return cut and (s.job.bucket_bytes or 0) % s.stack.memory.gradient_reduce_bytes == 0


def _broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    if s.job.bucket_bytes is None:
        return False
    staged = (t.pp > 1) | (t.virtual_stages > 1)
    return np.asarray((t.replicas > 1) & (staged | (not _whole(s))), dtype=bool)


def _says(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    size = s.job.bucket_bytes or 0
    if x.pp > 1 or x.virtual_stages > 1:
        return (
            f"bucket_bytes = {format_bytes(size)}, pp = {x.pp}: only the first pipeline rank cuts buckets",
            "set pp=1, or leave job.bucket_bytes out",
        )
    each = s.stack.memory.gradient_reduce_bytes
    return (
        f"bucket_bytes = {size:g}: it cuts whole gradients of {each:g} bytes, with {REDUCED} alone",
        f"give a multiple of {each:g} bytes and a stack that reduces under the backward",
    )


BUCKETS_CUT = limit(name="buckets", reads=("pp", "virtual_stages", "dp", "cp"), broken=_broken, says=_says)
