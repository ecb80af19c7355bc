"""Sums over ranks in eight bits: blocks of 256 values, each with a scale in fp32.

Every rank rounds its values once and sends each rank its part of them (all-to-all); that rank adds the parts
in fp32 in the order of ranks, rounds the sum once more, and all gather the parts. Nothing stays behind.

Source: ZeRO++ (arXiv 2306.10209) section 4.3, with the gather of an all-reduce.

Legend: ``n`` ranks, ``b`` blocks of a rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from executor.comm.collectives import ProcessGroup, all_gather, all_to_all

BLOCK = 256
LARGEST = 127
SCALE_BYTES = 4
PIECE = 1 << 15
"""Blocks that are rounded at once: a unit may be an embedding, and fp32 copies of it would not fit."""


def padded_blocks(values: int, ranks: int) -> int:
    """Values with which every rank has as many whole blocks.

    >>> padded_blocks(1000, 2), padded_blocks(1024, 2)
    (1024, 1024)
    """
    return -(-values // (BLOCK * ranks)) * BLOCK * ranks


def rounded_blocks(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks (b, 256) of fp32 in eight bits, and their scales (b, 1); what is no number has no scale."""
    scales = blocks.abs().amax(dim=1, keepdim=True) / LARGEST
    values = (blocks / torch.where(scales == 0, 1.0, scales)).round().nan_to_num(0.0)
    return values.clamp(-LARGEST, LARGEST).to(torch.int8), scales


def widened(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The numbers that eight bits and their scales stand for."""
    return values * scales


def sum_in_eight_bits(flat: torch.Tensor, group: ProcessGroup) -> None:
    """Sum a vector of fp32 over the ranks of a group, in place; the same to the last bit on each."""
    ranks = dist.get_world_size(group)
    each = padded_blocks(flat.numel(), ranks) // ranks
    blocks = each // BLOCK
    width = blocks * (BLOCK + SCALE_BYTES)
    sent = torch.empty(ranks, width, dtype=torch.uint8, device=flat.device)
    for row, values in zip(sent, flat.split(each), strict=False):  # of few values the last ranks have none
        for first in range(0, blocks, PIECE):
            _write(row, first, values[first * BLOCK : (first + PIECE) * BLOCK])
    sent[-(-flat.numel() // each) :].zero_()
    received = all_to_all(sent, None, None, group)
    del sent
    mine = torch.empty(1, width, dtype=torch.uint8, device=flat.device)
    for first in range(0, blocks, PIECE):
        _write(mine[0], first, added([_read(row, first).flatten() for row in received]))
    del received
    for row, values in zip(all_gather(mine, 0, group), flat.split(each), strict=False):
        for first in range(0, blocks, PIECE):
            room = values[first * BLOCK : (first + PIECE) * BLOCK]
            room.copy_(_read(row, first).flatten()[: room.numel()])


def _write(row: torch.Tensor, first: int, values: torch.Tensor) -> None:
    """Write values from block `first` on into a row of bytes: all blocks' values, then all their scales."""
    blocks = row.numel() // (BLOCK + SCALE_BYTES)
    last = min(blocks, first + PIECE)
    whole = torch.nn.functional.pad(values, (0, (last - first) * BLOCK - values.numel()))
    rounded_values, scales = rounded_blocks(whole.view(-1, BLOCK))
    row[first * BLOCK : last * BLOCK] = rounded_values.flatten().view(torch.uint8)
    begin = blocks * BLOCK
    row[begin + first * SCALE_BYTES : begin + last * SCALE_BYTES] = scales.flatten().view(torch.uint8)


def _read(row: torch.Tensor, first: int) -> torch.Tensor:
    """Read the values from block `first` on from a row of bytes, (blocks, 256)."""
    blocks = row.numel() // (BLOCK + SCALE_BYTES)
    last, begin = min(blocks, first + PIECE), blocks * BLOCK
    values = row[first * BLOCK : last * BLOCK].view(torch.int8).view(-1, BLOCK)
    scales = row[begin + first * SCALE_BYTES : begin + last * SCALE_BYTES].clone().view(torch.float32)
    return widened(values, scales.view(-1, 1))


def added(parts: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of rows, or of vectors, one after the other."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def sum_rounded(flats: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same sum of vectors that are all here, as fp32."""
    size = flats[0].numel()
    wide = [torch.nn.functional.pad(flat, (0, padded_blocks(size, len(flats)) - size)) for flat in flats]
    parts = torch.stack([widened(*rounded_blocks(each.view(-1, BLOCK))).flatten() for each in wide])
    return widened(*rounded_blocks(added(parts).view(-1, BLOCK))).flatten()[:size]
