"""Attention under a mask by torch's FlexAttention (arXiv 2412.05496): one Triton kernel each way on a GPU.

Blocks of 128 queries by 128 keys that nobody sees are skipped, those seen whole are not masked. The kernels
are reached through their higher-order operators, as torch's compiler reaches them, so that forward and
backward are operators of ours too (`kernels`): kept by name under recomputation, opaque to the compiler of a
layer, counted and traced without values. Each is traced and compiled once per shape; on a CPU, where there
is no kernel to train with, the same functions run on torch's own plain definition of both operators.

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``q`` queries, ``k`` keys, ``d`` head size.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask

from executor.comm.host_copies import moved
from executor.model.attention.masks import BLOCK, Mask, mask_blocks, query_reach
from executor.model.attention.plain import Parts
from executor.torch_internals.compiler import compile_graph

SMALLEST_HEAD, LARGEST_HEAD = (
    16,
    256,
)  # Triton's least product; what registers and shared memory are tuned for
FIRST_TORCH = (2, 13)  # whose operators take a mask in 17 parts, and no gradient of the log-sum-exp
FIRST_CAPABILITY = (8, 0)  # Ampere: bf16, and what torch's block sizes are chosen for
SMALL_HEAD_BYTES = (
    256  # torch's blocks of a larger head take more than 99 KiB of shared memory (8.6, 8.9, 12.0)
)
SHARED_KIB = 163  # of an A100's block, the least that torch's sizes for such heads are tuned for
COMPILED_ON = ("cuda",)
MASKS_KEPT = 4  # of the microbatch that goes forward and the one that comes back, with a window and without
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LN2 = math.log(2)  # the kernel's log-sum-exps are of base 2
_OPTIONS = {  # what torch's own function hands over by default
    "BACKEND": "TRITON",
    "PRESCALE_QK": False,
    "ROWS_GUARANTEED_SAFE": False,  # would say that each row sees a key of every block that is visited
    "BLOCKS_ARE_CONTIGUOUS": False,
    "WRITE_DQ": True,
    "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}


def obstacle(device: torch.device, dtype: torch.dtype, head_size: int) -> str:
    """Why the kernels do not run here, empty where they do."""
    if device.type != "cuda":
        return f"a {device.type} device has no such kernel"
    if dtype not in DTYPES:
        return f"they do not take {str(dtype).removeprefix('torch.')}"
    if not SMALLEST_HEAD <= head_size <= LARGEST_HEAD:
        return f"heads are of size {head_size}, not {SMALLEST_HEAD} to {LARGEST_HEAD}"
    if torch.__version__ < FIRST_TORCH:
        return f"torch is {torch.__version__}, not {FIRST_TORCH[0]}.{FIRST_TORCH[1]} or later"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return "" if torch.version.hip else _lacking(device, dtype.itemsize * head_size)


def _lacking(device: torch.device, head_bytes: int) -> str:
    """What an NVIDIA GPU lacks for heads of so many bytes, empty where nothing."""
    have = torch.cuda.get_device_capability(device)
    if have < FIRST_CAPABILITY:
        return f"compute capability is {have[0]}.{have[1]}, not {FIRST_CAPABILITY[0]}.{FIRST_CAPABILITY[1]}"
    shared_kib = torch.cuda.get_device_properties(device).shared_memory_per_block_optin // 2**10
    if head_bytes > SMALL_HEAD_BYTES and shared_kib < SHARED_KIB:
        least = f"{SHARED_KIB} KiB for heads of {head_bytes} bytes"
        return f"a block has {shared_kib} KiB of shared memory, not {least}"
    return ""


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result (B, h, q, d) and log-sum-exp (B, h, q) in fp32, as `plain.forward`."""
    tables = _tables(mask, q.device)
    out, lse = _run(_forward, (mask.length, tables.read, scale, cap), (q, k, v, *tables.tensors))
    return out, lse


def backward(
    gradient: torch.Tensor,
    inputs: Parts,
    result: tuple[torch.Tensor, torch.Tensor],
    mask: Mask,
    scale: float,
    cap: float | None,
) -> Parts:
    """Gradients of q, k and v, as `plain.backward`; result and log-sum-exp may be those with sinks."""
    tables = _tables(mask, gradient.device)
    tensors = (gradient, *inputs, *result, *tables.tensors)
    dq, dk, dv = _run(_backward, (mask.length, tables.read, scale, cap), tensors)
    return dq, dk, dv


# ── the mask as the kernel reads it ───────────────────────────────────────────────────────────────────────


class _Tables(NamedTuple):
    """Tensors of a mask on a device: as many as its rule reads, then the eight of its blocks."""

    read: int
    tensors: tuple[torch.Tensor, ...]


@functools.lru_cache(maxsize=MASKS_KEPT)
def _tables(mask: Mask, device: torch.device) -> _Tables:
    """Tables of a mask, 16·(S/128)² bytes a sequence: made once for all layers that share it.

    Packed microbatches have masks of their own, whose tables are made again when they come back.
    """
    queries, keys, first = query_reach(mask)
    read = (first[0] if len(first) == 1 else first, *((queries, keys) if mask.ranks > 1 else ()))
    blocks = (x for x in block_mask(mask, device).as_tuple() if isinstance(x, torch.Tensor))
    return _Tables(len(read), (*(_moved(x, device) for x in read), *blocks))


def block_mask(mask: Mask, device: torch.device) -> BlockMask:
    """Blocks of 128 by 128 that are seen, in part and whole, by query and by key, as torch keeps them."""
    ordered: list[torch.Tensor] = []
    for dense in mask_blocks(mask):
        blocks = _moved(dense, device).unsqueeze(1)
        ordered.append(blocks.sum(-1, dtype=torch.int32))
        ordered.append(blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int())
    lengths = mask.length // mask.ranks, mask.length
    return BlockMask.from_kv_blocks(*ordered, BLOCK_SIZE=BLOCK, seq_lengths=lengths)


def _moved(array: Any, device: torch.device) -> torch.Tensor:
    """Copy an array to a device without waiting for it."""
    return moved(torch.from_numpy(array.copy()), device)


def _sees(b: Any, _h: Any, q: Any, k: Any, first: torch.Tensor, *positions: torch.Tensor) -> Any:
    """Whether query q of sequence b sees key k; both are places in the tensors, and positions where whole."""
    since = first[q] if first.dim() == 1 else first[b, q]
    to, at = (positions[0][q], positions[1][k]) if positions else (q, k)
    return (at <= to) & (at >= since)


# ── the two operators ─────────────────────────────────────────────────────────────────────────────────────


def _forward(
    length: int, read: int, scale: float, cap: float | None, *tensors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and its log-sum-exp of q, k, v and a mask's tables."""
    q, k, v, *tables = tensors
    out, lse, _ = torch.ops.higher_order.flex_attention(
        q, k, v, _score(cap), _mask(q, length, tables[read:]), scale, _OPTIONS, (), tuple(tables[:read])
    )
    return out, lse * _LN2


def _backward(
    length: int, read: int, scale: float, cap: float | None, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k, v from that of the result, these, result, log-sum-exp and tables."""
    gradient, q, k, v, out, lse, *tables = tensors
    value = torch.ops.higher_order.flex_attention_backward(
        q, k, v, out, lse / _LN2, gradient, None, _score(cap), _score_gradient(cap),
        _mask(q, length, tables[read:]), scale, _OPTIONS, (), tuple(tables[:read]),
    )  # fmt: skip
    return tuple(value[:3])


def _mask(q: torch.Tensor, length: int, blocks: list[torch.Tensor]) -> tuple[Any, ...]:
    """A block mask as the operators take it; no order of writing is asked for."""
    return (q.shape[2], length, *blocks, None, None, None, None, BLOCK, BLOCK, _sees)


def _score(cap: float | None) -> Callable[..., torch.Tensor]:
    """What becomes of a score: c·tanh(s/c), or itself."""
    if cap is None:
        return lambda score, _b, _h, _q, _k: score
    return lambda score, _b, _h, _q, _k: cap * torch.tanh(score / cap)


def _score_gradient(cap: float | None) -> Callable[..., list[torch.Tensor | None]]:
    """Gradient of a score from that of what it became: times 1 − tanh²(s/c), or itself."""

    def gradient(score: Any, _b: Any, _h: Any, _q: Any, _k: Any, towards: Any) -> list[torch.Tensor | None]:
        if cap is not None:
            turned = torch.tanh(score / cap)
            towards = towards * (1 - turned * turned)
        return [towards, None, None, None, None]

    return gradient


_compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}


def _run(function: Callable[..., Any], run: tuple[Any, ...], tensors: tuple[torch.Tensor, ...]) -> Any:
    """Run a function of what it is told and tensors: on a GPU by kernels compiled at the first of a shape."""
    if tensors[0].device.type not in COMPILED_ON:
        return function(*run, *tensors)
    family = (function, *run, *((x.dtype, x.shape, x.stride(), x.device) for x in tensors))
    if family not in _compiled:
        _compiled[family] = compile_graph(functools.partial(function, *run), tensors)
    return _compiled[family](*tensors)
