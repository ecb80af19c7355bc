"""Training sequences from token files, plain text or nothing, in an order no layout can change.

Sample i of a run is a pure function of (source, seed, i): a step's global batch is samples step·G … step·G
+ G − 1, whoever computes them. A run resumed at a step, on any number of GPUs, sees exactly what it would
have seen. Plain text has a built-in tokenizer: its UTF-8 bytes, and one token between documents.

Legend: ``S`` sequence length, ``G`` global batch size in sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.data.blend import TokenSource, blend, parts_of
from executor.data.indexed import index_beside, open_indexed
from topology.base.errors import InputError

SYNTHETIC = "synthetic"
SYNTHETIC_BRANCHES = 4  # followers of each synthetic token: something a model can learn
LARGEST_16_BIT_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Random walks on a random graph of tokens: shapes and speed of real data, and a loss that goes down."""

    vocab_size: int
    sequence_length: int
    seed: int

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Walk S steps from a random token, taking one of a few followers of each."""
        generator = np.random.default_rng((self.seed, index))
        choices = generator.integers(0, SYNTHETIC_BRANCHES, self.sequence_length)
        tokens = np.empty(self.sequence_length + 1, dtype=np.int64)
        tokens[0] = generator.integers(0, self.vocab_size)
        for position, choice in enumerate(choices):
            tokens[position + 1] = (tokens[position] * SYNTHETIC_BRANCHES + choice + 1) % self.vocab_size
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Consecutive windows of S + 1 tokens of a memory-mapped file, shuffled anew every epoch."""

    path: str
    tokens: npt.NDArray[Any]
    vocab_size: int
    sequence_length: int
    seed: int

    @property
    def windows(self) -> int:
        """Sequences in one epoch."""
        return (len(self.tokens) - 1) // self.sequence_length

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Read one window, refusing token ids that the model has no row for."""
        epoch, place = divmod(index, self.windows)
        start = int(_shuffled(self.windows, self.seed, epoch)[place]) * self.sequence_length
        try:
            found = np.asarray(self.tokens[start : start + self.sequence_length + 1], dtype=np.int64)
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, str(error)) from error
        if found.max() >= self.vocab_size or found.min() < 0:
            bad = int(np.argmax((found >= self.vocab_size) | (found < 0)))
            raise InputError(
                what=f"{self.path} has a token beyond the vocabulary",
                cause=f"token {found[bad]} at position {start + bad}, vocab_size is {self.vocab_size}",
                fix="tokenize the file with the model's own tokenizer, or raise the model's vocab_size",
            )
        return found


@functools.lru_cache(maxsize=32)
def _shuffled(windows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Order of an epoch's windows."""
    return np.random.default_rng((seed, epoch)).permutation(windows)


def open_source(name: str, *, vocab_size: int, sequence_length: int, seed: int) -> TokenSource:
    """Open ``synthetic``, a ``.npy`` or ``.bin`` file of token ids, or any other file as plain text.

    A ``.bin`` file with its ``.idx`` beside it is Megatron's; without, it holds raw little-endian ids, 2
    bytes each if the vocabulary fits in 16 bits, else 4. ``0.7=a.bin,0.3=b.bin`` is a blend.
    """
    parts = parts_of(name)
    if parts is not None:
        opened = [
            open_source(part, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)
            for _, part in parts
        ]
        return blend(opened, [weight for weight, _ in parts])
    if name == SYNTHETIC:
        return Synthetic(vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)
    tokens = _read(Path(name), vocab_size)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise _unreadable(
            name, f"an array of shape {tokens.shape} and type {tokens.dtype}, not a line of integers"
        )
    if len(tokens) <= sequence_length:
        raise InputError(
            what=f"{name} is too short",
            cause=f"{len(tokens)} tokens, one sequence needs {sequence_length + 1}",
            fix="give a longer file, or a shorter sequence length",
        )
    return TokenFile(
        path=name, tokens=tokens, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed
    )


def _read(path: Path, vocab_size: int) -> npt.NDArray[Any]:
    """Map or read a file of tokens."""
    try:
        index = index_beside(path)
        if index is not None:
            return open_indexed(index)
        if path.suffix == ".npy":
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if path.suffix == ".bin":
            wide = vocab_size > LARGEST_16_BIT_VOCABULARY
            return np.memmap(path, dtype="<u4" if wide else "<u2", mode="r")
        return encode(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), str(error)) from error


def _unreadable(name: str, cause: str) -> InputError:
    """Build the error for a file that cannot serve."""
    return InputError(
        what=f"training data {name} cannot be read",
        cause=cause,
        fix="give a readable .npy or .bin file of token ids, a UTF-8 text file, or --data synthetic",
    )


def named_in_full(name: str) -> str:
    """A source by a name that holds in any working directory.

    >>> named_in_full("synthetic")
    'synthetic'
    """
    parts = parts_of(name)
    if parts is not None:
        return ",".join(f"{weight}={named_in_full(part)}" for weight, part in parts)
    return name if name == SYNTHETIC else str(Path(name).resolve())


def batch(source: TokenSource, samples: Iterable[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inputs and targets of samples, (samples, S) each."""
    rows = np.stack([source.sample(index) for index in samples])
    return rows[:, :-1], rows[:, 1:]


END_OF_TEXT = 256
VOCABULARY = 257


def encode(text: str) -> npt.NDArray[np.uint16]:
    """Token ids of a text: its bytes, closed by an end-of-text token.

    >>> encode("é!").tolist()
    [195, 169, 33, 256]
    """
    raw = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)
    return np.append(raw, np.uint16(END_OF_TEXT))


def decode(tokens: npt.NDArray[np.integer]) -> str:
    """Text of token ids; what is not a byte is left out, broken characters are replaced.

    >>> decode(encode("é!"))
    'é!'
    """
    return bytes(int(token) for token in tokens if token < END_OF_TEXT).decode(errors="replace")
