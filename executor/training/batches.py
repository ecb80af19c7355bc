"""From a global batch to what one rank computes on: its sequences, its part of each, its share of the loss.

Legend: ``M`` microbatches, ``B`` sequences of one, ``S`` sequence length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from executor.comm.host_copies import moved
from executor.comm.tensor_parallel import token_losses
from executor.data import source as data
from executor.data.ahead import Ahead
from executor.data.blend import TokenSource
from executor.data.lane_blend import LaneBlend
from executor.data.stream import TextStream
from executor.model.attention.attend import sequence_positions
from executor.model.attention.documents import Documents, microbatches_of
from executor.parallel.pipeline import LossFunction, Pipeline
from executor.training.manifest import Manifest

NO_TARGET = -1  # where a row stands for no sequence


def sequences_of_rank(global_batch_size: int, dp: int, rank: int) -> range:
    """Which sequences of a global batch a data-parallel rank computes: a consecutive block.

    >>> sequences_of_rank(8, 4, 1)
    range(2, 4)
    """
    share = global_batch_size // dp
    return range(rank * share, (rank + 1) * share)


def microbatches(pipeline: Pipeline, sequences: torch.Tensor) -> torch.Tensor:
    """Cut this rank's sequences (M·B, S) into microbatches of its part of the sequence, (M, B, S/cp)."""
    layout = pipeline.layout
    if layout.cp > 1:
        length, rank = sequences.shape[1], pipeline.meshes.coordinate("cp")
        sequences = sequences[:, sequence_positions(length, layout.cp, rank, layout.cp_kind)]
    return moved(sequences.unflatten(0, (-1, layout.microbatch_size)), pipeline.device)


def my_microbatches(
    pipeline: Pipeline, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's microbatches of a whole global batch (sequences, S) of tokens and targets."""
    mine = sequences_of_rank(tokens.shape[0], pipeline.layout.dp, pipeline.meshes.coordinate("dp"))
    rows = slice(mine.start, mine.stop)
    return microbatches(pipeline, tokens[rows]), microbatches(pipeline, targets[rows])


def read_ahead(
    pipeline: Pipeline, source: TokenSource, global_batch_size: int, resumed: Manifest | None
) -> tuple[TokenSource, tuple[str, ...]]:
    """A source with text in it, read ahead of this rank's steps from where a checkpoint left it.

    What is found by number is given back as it is. Also names of texts whose place the checkpoint has not.
    """
    if not isinstance(source, TextStream | LaneBlend):
        return source, ()
    rank = pipeline.meshes.coordinate("dp")
    share = sequences_of_rank(global_batch_size, pipeline.layout.dp, rank)

    def samples_of(step: int) -> range:
        return range(step * global_batch_size + share.start, step * global_batch_size + share.stop)

    ahead = Ahead(source, samples_of)
    return ahead, () if resumed is None else ahead.begin(resumed.step, resumed.places)


def reads(pipeline: Pipeline, document_end: int | None) -> bool:
    """Whether this rank needs samples: for its embedding, its loss, or to know where documents end."""
    return pipeline.is_first or pipeline.is_last or document_end is not None


class Batch(NamedTuple):
    """A rank's microbatches of a step: tokens and targets (M, B, S/cp), and where documents end, if asked."""

    tokens: torch.Tensor
    targets: torch.Tensor
    documents: tuple[Documents, ...] | None = None


def read_microbatches(
    pipeline: Pipeline,
    source: TokenSource,
    samples: range,
    *,
    sequence_length: int,
    end: int | None = None,
    document_end: int | None = None,
) -> Batch:
    """This rank's microbatches of a global batch of samples.

    Ranks without embedding or loss read nothing, unless attention stops at the token `document_end`: then all
    must know where. Samples from `end` on are none: the first of the batch stands there, without targets.
    """
    share = sequences_of_rank(len(samples), pipeline.layout.dp, pipeline.meshes.coordinate("dp"))
    documents = None
    if not reads(pipeline, document_end):
        tokens = targets = torch.zeros(len(share), sequence_length, dtype=torch.long)
    else:
        mine = samples[share.start : share.stop]
        there = [sample if end is None or sample < end else samples[0] for sample in mine]
        inputs, following = data.batch_of_samples(source, there)
        tokens, targets = torch.from_numpy(inputs.copy()), torch.from_numpy(following.copy())
        if end is not None:
            targets[max(0, end - mine.start) :] = NO_TARGET
        if document_end is not None:
            documents = microbatches_of(inputs, document_end, pipeline.layout.microbatch_size)
    return Batch(microbatches(pipeline, tokens), microbatches(pipeline, targets), documents)


def mean_loss(pipeline: Pipeline, tokens_per_step: int) -> LossFunction:
    """Loss function of the last stage: a microbatch's share of the mean over all tokens of the step."""
    axis, vocab_size = pipeline.stages[-1].module.axis, pipeline.spec.vocab_size

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return token_losses(logits, targets, axis, vocab_size).sum() / tokens_per_step

    return loss
