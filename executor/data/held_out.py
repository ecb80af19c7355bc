"""Sequences that are never trained on: which file they come from, and how many of them are read.

A held-out file is read whole, each of its sequences once, a small text too; what has no end (a blend,
synthetic data, a text that is tokenized on the way) says how much of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from executor.data import source as data
from executor.data.blend import TokenSource, blend_parts
from executor.data.contents import file_in_corpus
from executor.data.documents import files_of
from executor.data.hub import is_hub
from topology.base.errors import InputError
from topology.base.units import MIB

WHOLE_BYTES = 16 * MIB  # of text: some seconds of tokenizing at each start of a rank
APART, WORD = 1 << 31, 1 << 32  # numpy reads seeds as words of 32 bits: the first word always differs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Held-out sequences: samples 0 … `samples` − 1 of a source, evaluated every `interval` steps."""

    source: TokenSource
    samples: int
    interval: int

    def due(self, step: int, last: int) -> bool:
        """Whether it is time after this many steps; always after the last one."""
        return step == last or step % self.interval == 0


def open_held_out(
    name: str | None,
    *,
    interval: int,
    batches: int,
    training: str,
    vocab_size: int,
    sequence_length: int,
    global_batch_size: int,
    seed: int,
    texts: data.TextReading | None = None,
) -> HeldOut | None:
    """Open held-out data in the forms of `--data`; None when there is none.

    `batches` counts global batches, 0 for every sequence of a file. Raises InputError for data that training
    reads too, and for a number of batches that is missing or more than there is.
    """
    if name is None:
        return None
    _require_unseen(name, training, texts)
    apart = (seed + APART) % WORD
    source: TokenSource | None = None
    if texts is not None and blend_parts(name) is None and data.is_text(name) and _is_small(name, texts):
        source = data.whole_text(
            name, vocab_size=vocab_size, sequence_length=sequence_length, seed=apart, texts=texts
        )
    source = source or data.open_source(
        name, vocab_size=vocab_size, sequence_length=sequence_length, seed=apart, texts=texts
    )
    there = source.windows if isinstance(source, data.TokenFile) else None
    wanted = batches * global_batch_size
    if there is None and not batches:
        raise InputError(
            what="how much of the held-out data to read is not said",
            cause=f"{name} has no end",
            fix="say it: --eval-batches 10",
        )
    if there is not None and wanted > there:
        raise InputError(
            what=f"{name} has too few sequences for --eval-batches {batches}",
            cause=f"{there} sequences, {batches} batches of {global_batch_size} are {wanted}",
            fix=f"leave --eval-batches out to read all {there}, or say at most {there // global_batch_size}",
        )
    return HeldOut(source=source, samples=wanted or there or 0, interval=interval)


def _require_unseen(name: str, training: str, texts: data.TextReading | None) -> None:
    """Refuse a file that is trained on: its loss would say nothing."""
    both = sorted((_files(name, texts) & _files(training, texts)) - {data.SYNTHETIC})
    if both:
        raise InputError(
            what="the held-out data is trained on",
            cause=f"{both[0]} is in --data and in --eval-data",
            fix="hold another file out: --eval-data FILE",
        )


def _files(name: str, texts: data.TextReading | None) -> set[str]:
    """Full names of the files of a source; an index stands for its data, a folder for what it holds."""
    parts = blend_parts(data.named_in_full(name)) or ((1, data.named_in_full(name)),)
    values = set()
    for _, part in parts:
        if is_hub(part):
            files = () if texts is None else data.contents_of(part, texts).files
            values |= {
                file.name if "://" in file.name else str(file_in_corpus(part, file).resolve())
                for file in files
            }
            continue
        inside = files_of([Path(part)])[0] if Path(part).is_dir() else [part]
        names = (str(file).removesuffix(".idx").removesuffix(".bin") for file in inside)
        values |= {name if name == data.SYNTHETIC else str(Path(name).resolve()) for name in names}
    return values


def _is_small(name: str, texts: data.TextReading) -> bool:
    """Whether a text is read whole; one of which nobody says how large it is, is not."""
    return 0 < data.contents_of(name, texts).size_bytes <= WHOLE_BYTES
