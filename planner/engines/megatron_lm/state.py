"""Bytes of gradients and optimizer state in Megatron-LM's arguments.

Without a word a parameter has fp32 gradients, master weights and moments. The precision-aware optimizer keeps
moments in fewer bits, and of master weights only the sixteen that bf16 weights lack. Read in
``core/optimizer/optimizer_config.py`` and ``distrib_optimizer.py`` of megatron-core 0.19.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.layout import LayoutTable, ParallelLayout
from planner.engines.fields import Facts
from planner.engines.limit import limit
from planner.engines.setting import EngineSetting, Given, Word
from planner.plan import Problem

AWARE = "--use-precision-aware-optimizer"
OFFLOADED, FRACTION = "--optimizer-cpu-offload", "--optimizer-offload-fraction"
ALL_OFFLOADED = "optimizer:1"
"""What is told of an offload: of a part, the precision-aware optimizer keeps the rest in fewer bytes."""
GRADS, MASTER, FIRST, SECOND = (
    f"--{name}-dtype" for name in ("main-grads", "main-params", "exp-avg", "exp-avg-sq")
)
DTYPES = (GRADS, MASTER, FIRST, SECOND)
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
"""torch's names, which Megatron-Bridge has."""
_PLAIN, _MOMENTS = 12.0, (4.0, 2.0)
_MEMBERS = {4.0: "fp32", 2.0: "bf16"}


def _master_bytes(half: str, recipe: str, *, sharded_by_engine: bool) -> float:
    """Of fp32 master weights beside the precision-aware optimizer: all, or the half that bf16 weights lack.

    With recipes that scale while they train, Megatron itself holds master weights and keeps them whole.
    """
    return 2.0 if half == "bf16" and recipe == "delayed" and not sharded_by_engine else 4.0


def _moment(facts: Facts) -> float | None:
    """Bytes of each moment that make the bytes of state; None where no dtype of sixteen bits or more does."""
    return moment_bytes(facts["job.precision"], facts["stack.optimizer_bytes"])


def moment_bytes(precision: TrainingPrecision, optimizer_bytes: float) -> float | None:
    """Bytes of each moment, from those of all state of a parameter.

    >>> moment_bytes("bf16", 6.0), moment_bytes("mxfp8", 8.0), moment_bytes("mxfp8", 6.0)
    (2.0, 2.0, None)
    """
    record = TRAINING[precision]
    words = list(record.engine_words.get("megatron", ()))
    recipe = words[words.index("--fp8-recipe") + 1] if "--fp8-recipe" in words else "delayed"
    master = _master_bytes(record.half, recipe, sharded_by_engine=False)
    return next((moment for moment in _MOMENTS if master + 2 * moment == optimizer_bytes), None)


def _write(facts: Facts) -> dict[str, Any]:
    """Gradients in two bytes or four (bf16 keeps four unless told otherwise, fp16 two), and moments."""
    narrow = facts["stack.gradient_reduce_bytes"] == _BYTES["bf16"]
    half = TRAINING[facts["job.precision"]].half
    words: dict[str, Any] = {}
    if half == "fp16" and not narrow:
        words["--accumulate-allreduce-grads-in-fp32"] = True
    if half == "bf16" and narrow:
        words["--grad-reduce-in-bf16"] = True
    if facts.get("job.offload") == ALL_OFFLOADED:
        return words | {OFFLOADED: True, FRACTION: 1.0, AWARE: True}
    moment = None if facts["stack.optimizer_bytes"] == _PLAIN else _moment(facts)
    if moment is None or not facts["layout.zero_stage"]:
        return words
    grads = {GRADS: "bf16"} if half == "bf16" and narrow else {}
    return words | {AWARE: True, FIRST: _MEMBERS[moment], SECOND: _MEMBERS[moment]} | grads


def _dtype(given: Given, word: str) -> str:
    """A dtype by Megatron-LM's name."""
    name = str(given[word]).removeprefix("torch.")
    dtype = _NAMES.get(name, name)
    if dtype not in _BYTES:
        raise ValueError(f"{name!r} is none of {', '.join(_BYTES)}")
    return dtype


def reduced_bytes(given: Given) -> float:
    """Bytes of a gradient, kept and reduced."""
    narrow = given["--grad-reduce-in-bf16"] or _dtype(given, GRADS) == "bf16"
    if given["--fp16"]:
        narrow = not given["--accumulate-allreduce-grads-in-fp32"]
    return _BYTES["bf16" if narrow else "fp32"]


def _read(given: Given) -> dict[str, Any]:
    """Bytes of gradients and of their reduction, and of the optimizer's state."""
    _, master, first, second = (_dtype(given, word) for word in DTYPES)
    wide = reduced_bytes(given)
    facts: dict[str, Any] = {
        "stack.gradient_bytes": wide,
        "stack.gradient_reduce_bytes": wide,
        "stack.optimizer_bytes": _PLAIN,
    }
    if given[OFFLOADED]:
        del facts["stack.optimizer_bytes"]  # of what is left on the GPU
        return facts | {"job.offload": f"optimizer:{float(given[FRACTION]):g}"}
    facts["job.offload"] = None
    if not given[AWARE]:
        return facts
    half = "fp16" if given["--fp16"] else "bf16"
    kept = _BYTES[master]
    if master == "fp32":
        kept = _master_bytes(half, given["--fp8-recipe"], sharded_by_engine=given["--use-megatron-fsdp"])
    return facts | {"stack.optimizer_bytes": kept + _BYTES[first] + _BYTES[second]}


STATE = EngineSetting(
    words=(
        Word(name="--grad-reduce-in-bf16", kind="flag", default=False),
        Word(name="--accumulate-allreduce-grads-in-fp32", kind="flag", default=False),
        Word(name=AWARE, kind="flag", default=False),
        Word(name=OFFLOADED, kind="flag", default=False, states="said.offload_optimizer"),
        Word(name=FRACTION, kind="float", default=1.0),
        *(Word(name=name, default="fp32") for name in DTYPES),
    ),
    fields=("stack.gradient_bytes", "stack.gradient_reduce_bytes", "stack.optimizer_bytes", "job.offload"),
    write=_write,
    read=_read,
)


def _untold(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    if s.job.offload is not None:
        return np.asarray(t.zero_stage != 1, dtype=bool)
    if s.stack.memory.optimizer_bytes == _PLAIN:
        return False
    unknown = moment_bytes(s.job.precision, s.stack.memory.optimizer_bytes) is None
    return np.asarray(unknown | (t.zero_stage != 1), dtype=bool)


def _says(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    size = s.stack.memory.optimizer_bytes
    if s.job.offload is None and moment_bytes(s.job.precision, size) is None:
        equation = (
            f"{size:g} bytes of optimizer state in {s.job.precision}: no moments of 2 or 4 bytes make them"
        )
        return equation, "use --stack megatron-core"
    return f"zero_stage = {x.zero_stage}: {AWARE} is of the distributed optimizer", "set zero_stage=1"


STATE_PRECISION = limit(name="state-precision", reads=("zero_stage",), broken=_untold, says=_says)
