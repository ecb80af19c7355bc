"""Adapters beside frozen weights as operations: what is trained, what stays, and what needs not be kept.

A frozen product has no weight gradient, so its input is kept, or gathered again over tp, only where an
adapter beside it, or another operation, needs it for a gradient of its own. The gradient of its input is
still computed: below the first adapter it is not needed, which spares a part of one layer and is not counted.

Legend: ``m`` tokens, ``k`` and ``n`` inputs and outputs of a matrix, ``r`` rank, ``j`` matrices side by side.

Source: LoRA (arXiv 2106.09685), QLoRA (arXiv 2305.14314), DoRA (arXiv 2402.09353).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import PRECISIONS
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    LINEAR,
    Cover,
    Op,
    OpKind,
    elementwise,
    gemm,
    grouped_gemm,
)
from costmodel.ops.passes import AUTOCAST_BYTES
from costmodel.stack import SoftwareStack
from costmodel.updates.adapters import Adapter, AdapterTarget
from topology.base.arrays import Quantity

CHARGED_PASSES = 3
"""Times that the traffic of a memory pass is charged: once forward, twice backward (constants.toml)."""


def adapted(
    ops: Sequence[Op], block: AdapterTarget | None, job: TrainingJob, stack: SoftwareStack
) -> tuple[Op, ...]:
    """The same operations with all weights frozen, and adapters beside products if the block is a target.

    Args:
        ops: Operations of a block, or of an end of the model.
        block: Which block; None for what has no adapters.
        job: Its adapter; without one nothing changes.
        stack: What the engine keeps and fuses.
    """
    adapter = job.adapter
    if adapter is None:
        return tuple(ops)
    result: list[Op] = []
    for op in ops:
        if op.cover is Cover.INPUT_GRADIENT and block not in adapter.targets:
            continue  # the input again, for a weight's gradient
        beside = block in adapter.targets and op.kind in LINEAR and op.joins > 0
        if beside:
            result += _adapter(op, adapter, stack)
        keeps = beside or (op.input_is_shared and (block == "attention" or block in adapter.targets))
        base = frozen_weight_bytes(op, job, block, stack)
        result += _frozen(op, job, stack, base, keeps_input=keeps, wide=beside)
    return tuple(result)


def frozen_weight_bytes(op: Op, job: TrainingJob, block: AdapterTarget | None, stack: SoftwareStack) -> float:
    """Bytes of a frozen weight: quantised, or as the engine keeps it; none has a master copy.

    The head is a matrix of no block and stays as it is (bitsandbytes' `skip_modules`), or is widened.
    """
    quantised = None if job.adapter is None or block is None else job.adapter.quantised_bytes
    if op.kind in LINEAR and quantised is not None:
        return quantised
    return FLOAT_BYTES if job.adapter and job.adapter.is_wide else stack.memory.frozen_weight_bytes


def _frozen(
    op: Op, job: TrainingJob, stack: SoftwareStack, width: float, *, keeps_input: bool, wide: bool
) -> tuple[Op, ...]:
    """One operation frozen: a product keeps no input of its own, a quantised one is widened every time."""
    if op.kind is OpKind.COLLECTIVE or op.forward_only:
        return (op,)
    still = replace(op, frozen=True, parameters=0, frozen_bytes=width * op.parameters)
    if op.kind not in LINEAR:
        return (still,)
    activation = PRECISIONS[op.dtype].activation_bytes
    kept_wide = job.is_low_precision and stack.memory.keeps_wide_inputs
    share = 0.0 if not keeps_input else HALF_BYTES / activation if wide and not kept_wide else 1.0
    still = replace(
        still, saved_bytes=op.saved_bytes * share, saved_bytes_selective=op.saved_bytes_selective * share
    )
    multiplied = width >= HALF_BYTES
    multiplied |= job.adapter is not None and job.adapter.base == "fp8" and job.is_low_precision
    if multiplied:
        narrow = width < HALF_BYTES
        return (still, *((_transposed(op),) * narrow))
    return (_widened(op, width), still)


def _widened(op: Op, width: float) -> Op:
    """A quantised matrix in sixteen bits: read and written before its product forward, and again backward.

    A pass is charged CHARGED_PASSES times and this runs twice. The wide matrix is gone after its product.
    """
    moved = 2 / CHARGED_PASSES * (width + HALF_BYTES) * op.parameters
    wide = elementwise(f"{op.name}_widen", traffic_bytes=moved)
    largest = HALF_BYTES * op.n * op.k
    return replace(wide, working_bytes=largest, repeated=op.repeated, relaunched=op.relaunched)


def _transposed(op: Op) -> Op:
    """An eight-bit matrix turned for its input gradient, read and written, where units take one layout only.

    The copy is kept by engines that update it; beside frozen weights it would be as large as they are.
    """
    moved = 2 * op.parameters / CHARGED_PASSES
    return replace(elementwise(f"{op.name}_transpose", traffic_bytes=moved), trait="one_operand_layout")


def _adapter(op: Op, adapter: Adapter, stack: SoftwareStack) -> tuple[Op, ...]:
    """The two products of an adapter and the passes that add it: 2·m FLOP a parameter, r·(j·k + n) of these.

    The sum with the frozen product moves 3·m·n forward, that of the two input gradients 3·m·k backward; where
    passes are not fused each of j adapters adds its own, and scaling moves 2·m·n each way. Dropout moves
    its input twice and a mask of a byte, forward and backward: 10·m·k bytes in all; the mask is kept, and in
    the place of the input what is left of it, by each of j adapters where passes are not fused. An input
    that another operation needs for its own gradient (attention its output) is kept beside it.
    """
    r, j = adapter.rank, op.joins
    if op.kind is OpKind.GROUPED_GEMM:
        down = grouped_gemm(f"{op.name}_adapter_down", experts=op.experts, m=op.m, n=j * r, k=op.k)
        down = replace(down, saved_bytes=0, saved_bytes_selective=0)
        up = grouped_gemm(f"{op.name}_adapter_up", experts=op.experts, m=op.m, n=op.n, k=r)
        kept = HALF_BYTES * op.experts * op.m * j * r
        rows: Quantity = op.experts * op.m
    else:
        down = gemm(f"{op.name}_adapter_down", m=op.m, n=j * r, k=op.k, saved_elements=0)
        up = gemm(f"{op.name}_adapter_up", m=op.m, n=op.n, k=r, saved_elements=0)
        kept, rows = HALF_BYTES * op.m * j * r, op.m
    fused = stack.timing.fused_elementwise
    if adapter.dropout:
        dropped = 1 if fused else j
        left = dropped - (0 if op.input_is_shared else 1)
        kept = kept + rows * op.k * (dropped + HALF_BYTES * left)
    up = replace(up, saved_bytes=kept, saved_bytes_selective=kept)
    moved = 3 * rows * (op.n + op.k * (1 if fused else j)) + (0 if fused else 4 * rows * op.n)
    moved = moved + (5 * rows * op.k if adapter.dropout else 0)
    add = elementwise(f"{op.name}_adapter_add", traffic_bytes=HALF_BYTES * moved / CHARGED_PASSES)
    more = _norm(op, rows) if adapter.kind == "dora" else ()
    return tuple(_like(part, op) for part in (*_input_casts(op, adapter, stack, rows), down, up, add, *more))


def _input_casts(op: Op, adapter: Adapter, stack: SoftwareStack, rows: Quantity) -> tuple[Op, ...]:
    """The input of each of j adapters to fp32 and back to sixteen bits, and the same of its gradient.

    A mask in fp32 moves as much again as `_adapter` counts of one in sixteen bits: 4·m·k each way.

    Source: huggingface/peft tuners/lora/layer.py, Linear.forward: `_cast_input_dtype` to the adapter's fp32,
    which torch.autocast casts back; tuners/lora/bnb.py and gptq.py leave it out under autocast.
    """
    timing = stack.timing
    if not timing.casts_adapters or timing.fused_elementwise or adapter.quantised_bytes is not None:
        return ()
    moved = 2 * AUTOCAST_BYTES + 2 * HALF_BYTES * (adapter.dropout > 0)
    cast = Op(name=f"{op.name}_adapter_cast", kind=OpKind.CAST, bytes=moved * rows * op.k * op.joins)
    return (cast, replace(cast, name=f"{op.name}_adapter_gradient_cast", phase="backward"))


def _norm(op: Op, rows: Quantity) -> tuple[Op, ...]:
    """DoRA's norm of every row of W + B·A, taken as a constant by the gradient, and its trained magnitude.

    Forward B·A is written, added to W and read for the norm: 3 passes over a matrix. The output times the
    magnitude moves 2·m·n forward and 5·m·n backward, which needs the output before it.
    """
    matrices = op.experts if op.kind is OpKind.GROUPED_GEMM else 1
    passes = HALF_BYTES * 3 * matrices * op.n * op.k / CHARGED_PASSES
    scaled = HALF_BYTES * 7 * rows * op.n / CHARGED_PASSES
    magnitude = elementwise(
        f"{op.name}_magnitude",
        traffic_bytes=passes + scaled,
        saved_bytes=HALF_BYTES * rows * op.n,
        parameters=matrices * op.n,
        count=2,
    )
    return (replace(magnitude, working_bytes=HALF_BYTES * op.n * op.k),)


def _like(part: Op, op: Op) -> Op:
    """A part of an adapter, run again wherever the product beside it is."""
    kept = 0.0 if op.relaunched else part.saved_bytes_selective
    return replace(part, repeated=op.repeated, relaunched=op.relaunched, saved_bytes_selective=kept)
