"""A batch as written: in sequences or in tokens, one or a range; and those that suit a number of GPUs.

A step is divided among replicas without a rest, so a batch that shares few factors with the GPUs forbids
layouts or leaves GPUs idle.
"""

from __future__ import annotations

import math

from planner.plan import PlanRequest
from topology.base.counts import SIZES, Suffixes, counted, parse_count
from topology.base.errors import InputError

FLAG = "--global-batch-size"
RANGE = ".."
TOKENS = ("tokens", "token", "toks", "tok")
"""Words behind a batch that is counted in tokens, the longer first."""
OF_SEQUENCES: Suffixes = {name: factor for name, factor in SIZES.items() if name != "m"}
"""Suffixes of a batch in sequences: millions are said of tokens, and `4M` alone does not say of which."""
MOST_TRIED = 8
"""Batches of a range that are planned."""
REACH_SHARE = 0.25
"""Relative distance up to which a batch is near another."""


def is_range(text: str | None) -> bool:
    """Whether a batch is written as a range, ``256..1024``.

    >>> is_range("256..1024"), is_range("512"), is_range(None)
    (True, False, False)
    """
    return text is not None and RANGE in text


def is_in_tokens(text: str) -> bool:
    """Whether a batch is counted in tokens.

    >>> is_in_tokens("4Mtok"), is_in_tokens("512")
    (True, False)
    """
    return text.strip().lower().endswith(TOKENS)


def read_batch(text: str, sequence_length: int) -> int:
    """Sequences of a step, from sequences or from tokens, whose suffixes are powers of two as all sizes'.

    >>> read_batch("512", 8192), read_batch("4Mtok", 8192), read_batch("1k", 4096)
    (512, 512, 1024)

    Args:
        text: What was written.
        sequence_length: Tokens of a sequence; 0 where it is a sample without any.

    Raises:
        InputError: it is no count, no whole number of sequences, or does not say whether of tokens.
    """
    if not is_in_tokens(text):
        if text.strip().lower().endswith("m"):
            raise _of_what(text.strip(), sequence_length)
        return parse_count(text, FLAG, suffixes=OF_SEQUENCES)
    lowered = text.strip().lower()
    word = next(word for word in TOKENS if lowered.endswith(word))
    tokens = parse_count(lowered.removesuffix(word), FLAG)
    if not sequence_length:
        raise InputError(
            what=f"{FLAG} {text.strip()} counts tokens",
            cause="samples of this module are no text and have none",
            fix=f"give {FLAG} in samples, such as {FLAG} 512",
        )
    sequences, rest = divmod(tokens, sequence_length)
    if rest:
        values = [count for count in (sequences, sequences + 1) if count]
        offers = [f"{FLAG} {count} ({counted(count * sequence_length, 'token')})" for count in values]
        raise InputError(
            what=f"{FLAG} {text.strip()} is no whole number of sequences",
            cause=f"{tokens:,} % {sequence_length:,} tokens of a sequence = {rest:,}",
            fix=f"use {' or '.join(offers)}",
        )
    return sequences


def _of_what(text: str, sequence_length: int) -> InputError:
    """Ask whether a batch in millions counts tokens or sequences."""
    count = parse_count(text, FLAG)
    tokens = counted(count * sequence_length, "token")
    of = f"{count:,} sequences of {counted(sequence_length, 'token')} are {tokens} a step"
    return InputError(
        what=f"{FLAG} {text} does not say of what",
        cause=of if sequence_length else f"{count:,} samples a step are more than any published run has",
        fix=f"write {FLAG} {text}tok for tokens, or {FLAG} {count} for sequences",
    )


def read_range(text: str, sequence_length: int) -> tuple[int, int]:
    """Both ends of a range of batches, sequences.

    >>> read_range("256..1k", 8192), read_range("2Mtok..4Mtok", 8192)
    ((256, 1024), (256, 512))
    """
    ends = text.split(RANGE, 1)
    if is_in_tokens(ends[0]) != is_in_tokens(ends[1]):
        raise InputError(
            what=f"{FLAG} {text} is no range",
            cause="one end counts tokens, the other sequences",
            fix=f"write both in tokens, such as {FLAG} 2Mtok..4Mtok, or both in sequences",
        )
    low, high = (read_batch(end, sequence_length) for end in ends)
    if low > high:
        raise InputError(
            what=f"{FLAG} {text} is no range",
            cause=f"it goes from {low:,} down to {high:,}",
            fix=f"write {high}{RANGE}{low}",
        )
    return low, high


def upper_end(text: str | None) -> str:
    """The last of a range, as written.

    >>> upper_end("256..1024")
    '1024'
    """
    return (text or "").partition(RANGE)[2]


def suited(low: int, high: int, num_gpus: int, most: int = MOST_TRIED) -> tuple[int, ...]:
    """Sizes of a range that share most with so many GPUs, the ends among them, ascending.

    >>> suited(256, 1024, 576, most=4)
    (256, 576, 864, 1024)
    >>> suited(512, 512, 64)
    (512,)

    Args:
        low: Smallest batch, sequences.
        high: Largest.
        num_gpus: G.
        most: How many; those with the largest common divisor with G, of equal ones the larger.
    """
    shares = [d for d in range(1, num_gpus + 1) if num_gpus % d == 0 and d <= high]
    values = {low, high}
    for share in reversed(shares):
        multiples = range(high // share * share, max(low, 1) - 1, -share)
        for batch in multiples:
            if len(values) >= most:
                return tuple(sorted(values))
            if math.gcd(batch, num_gpus) == share:
                values.add(batch)
    return tuple(sorted(values))


def better_batch(request: PlanRequest) -> int | None:
    """A batch near the one asked for that shares more with the GPUs; None where none does.

    >>> from topology.builders import default_cluster
    >>> from costmodel.job import TrainingJob
    >>> from costmodel.models.catalog import model
    >>> job = TrainingJob(sequence_length=4096, global_batch_size=512)
    >>> better_batch(PlanRequest(model=model("8b"), cluster=default_cluster("h100-sxm", 576).spec, job=job))
    576
    """
    asked, gpus = request.job.global_batch_size, request.cluster.num_gpus
    values = suited(math.ceil(asked * (1 - REACH_SHARE)), math.floor(asked * (1 + REACH_SHARE)), gpus)
    best = max(values, key=lambda batch: (math.gcd(batch, gpus), -abs(batch - asked)))
    return best if math.gcd(best, gpus) > math.gcd(asked, gpus) else None
