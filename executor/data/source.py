"""Training sequences from token files, plain text or nothing, in an order no layout can change.

Sample i of a run is a pure function of (source, seed, i): a step's global batch is samples step·G … step·G
+ G − 1, whoever computes them. A run resumed at a step, on any number of GPUs, sees exactly what it would
have seen. Plain text has a built-in tokenizer: its UTF-8 bytes, and one token between documents.

Legend: ``S`` sequence length, ``G`` global batch size in sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.data.blend import TokenSource, blend, blend_parts
from executor.data.compressed import COMPRESSED
from executor.data.contents import every_text, look_through
from executor.data.hub import absolute, full_name, is_hub
from executor.data.indexed import index_beside, open_indexed
from executor.data.lane_blend import LaneBlend
from executor.data.pieces import Contents
from executor.data.stream import TextStream
from executor.data.tables import TABLES
from executor.data.tokenized import encoded
from executor.data.tokenizer import Tokenizer, open_tokenizer
from topology.base.errors import InputError
from topology.base.files import read_bytes, require_regular
from topology.base.units import GIB

SYNTHETIC = "synthetic"
SYNTHETIC_BRANCHES = 4  # followers of each synthetic token: something a model can learn
LARGEST_16_BIT_VOCABULARY = 1 << 16
LOOKED_AT = 1 << 16  # raw token ids at each of two places
TOKENS = (".npy", ".bin", ".idx")  # names of files of token ids end so
MOST_TEXT_BYTES = GIB  # of a text whose bytes are its tokens: it is held whole, in 16 bits each


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
            values = np.asarray(self.tokens[start : start + self.sequence_length + 1], dtype=np.int64)
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, str(error)) from error
        if values.max() >= self.vocab_size or values.min() < 0:
            bad = int(np.argmax((values >= self.vocab_size) | (values < 0)))
            raise InputError(
                what=f"{self.path} has a token beyond the vocabulary",
                cause=f"token {values[bad]} at position {start + bad}, vocab_size is {self.vocab_size}",
                fix="tokenize the file with the model's own tokenizer, or raise the model's vocab_size",
            )
        return values


@functools.lru_cache(maxsize=32)
def _shuffled(windows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Order of an epoch's windows."""
    return np.random.default_rng((seed, epoch)).permutation(windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """How text is read while a run trains: by which tokenizer, of which column, for how large a batch.

    `end` closes documents, None for the tokenizer's own end of sequence; `kept` is what the run has kept of
    its corpora when it began, and `sha256` the tokenizer's checksum then, if anything.
    """

    tokenizer: str
    global_batch_size: int
    field: str = "text"
    end: int | None = None
    kept: Mapping[str, Contents] = dataclass_field(default_factory=dict)
    sha256: str | None = None


def open_source(
    name: str, *, vocab_size: int, sequence_length: int, seed: int, texts: TextReading | None = None
) -> TokenSource:
    """Open ``synthetic``, a ``.npy`` or ``.bin`` file of token ids, or any other file as plain text.

    A ``.bin`` file with its ``.idx`` beside it is Megatron's; without, it holds raw little-endian ids, 2
    bytes each if the vocabulary fits in 16 bits, else 4. ``0.7=a.bin,0.3=b.bin`` is a blend. With `texts` all
    that is no file of tokens is text, or a folder of it, which is tokenized as it is read.
    """
    parts = blend_parts(name)
    if parts is not None:
        opened = [
            open_source(part, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed, texts=texts)
            for _, part in parts
        ]
        weights = [weight for weight, _ in parts]
        if texts is not None and any(isinstance(token_source, TextStream) for token_source in opened):
            return LaneBlend(opened, weights, global_batch_size=texts.global_batch_size)
        return blend(opened, weights)
    if name == SYNTHETIC:
        return Synthetic(vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)
    if texts is not None and is_text(name):
        return TextStream(
            name,
            contents_of(name, texts),
            fitting_tokenizer(texts, vocab_size),
            sequence_length=sequence_length,
            global_batch_size=texts.global_batch_size,
            seed=seed,
        )
    tokens = _read(Path(name), vocab_size)
    return _windows(name, tokens, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)


def _windows(
    name: str, tokens: npt.NDArray[Any], *, vocab_size: int, sequence_length: int, seed: int
) -> TokenFile:
    """Windows over tokens, of which there must be one."""
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


def is_text(name: str) -> bool:
    """Whether a part of a source is text where there is a tokenizer.

    >>> [is_text(name) for name in ("synthetic", "a.idx", "a.npy", "a.jsonl", "hf:a.bin")]
    [False, False, False, True, True]
    """
    return is_hub(name) or (name != SYNTHETIC and Path(name).suffix not in TOKENS)


def texts_in(name: str) -> list[str]:
    """The parts of a source that a tokenizer reads."""
    return [part for _, part in blend_parts(name) or ((1, name),) if is_text(part)]


def contents_of(name: str, texts: TextReading) -> Contents:
    """What a corpus consists of: as the run has kept it, or looked through now."""
    kept = texts.kept.get(name)
    if kept is not None and (kept.field, kept.lanes) == (texts.field, texts.global_batch_size):
        return kept
    return look_through(name, field=texts.field, lanes=texts.global_batch_size)


def fitting_tokenizer(texts: TextReading, vocab_size: int) -> Tokenizer:
    """The tokenizer of a run: the model has all of its tokens, and the run began with it."""
    tokenizer = open_tokenizer(Path(texts.tokenizer), end=texts.end)
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            what="the tokenizer has tokens that the model has not",
            cause=f"{texts.tokenizer} has ids below {tokenizer.vocab_size}, vocab_size is {vocab_size}",
            fix="give the model's own tokenizer, or a model with a larger vocab_size",
        )
    if texts.sha256 not in (None, tokenizer.sha256):
        raise InputError(
            what=f"{texts.tokenizer} is not the tokenizer that the run began with",
            cause=f"SHA-256 {(texts.sha256 or '')[:12]}… then, {tokenizer.sha256[:12]}… now",
            fix="put that one back, or begin a run of its own with another --run-dir",
        )
    return tokenizer


def whole_text(
    name: str, *, vocab_size: int, sequence_length: int, seed: int, texts: TextReading
) -> TokenFile:
    """A small text as the token file that `plan tokenize` would write of it, held in memory."""
    known = fitting_tokenizer(texts, vocab_size)
    tokens = np.concatenate(list(encoded(known, every_text(name, contents_of(name, texts)))))
    return _windows(name, tokens, vocab_size=vocab_size, sequence_length=sequence_length, seed=seed)


def _read(path: Path, vocab_size: int) -> npt.NDArray[Any]:
    """Map or read a file of tokens."""
    try:
        index = index_beside(path)
        if index is not None:
            return open_indexed(index)
        if path.suffix == ".npy":
            return np.asanyarray(np.load(require_regular(path), mmap_mode="r", allow_pickle=False))
        if path.suffix == ".bin":
            return _raw(path, wide=vocab_size > LARGEST_16_BIT_VOCABULARY)
        kinds = {"a dataset": is_hub(str(path)), "a folder": path.is_dir(), "a table": path.suffix in TABLES}
        kinds["compressed"] = path.suffix in COMPRESSED
        for kind in (kind for kind, holds in kinds.items() if holds):
            raise InputError(
                what=f"{path} is text of which there are no tokens yet",
                cause=f"it is {kind}, and no tokenizer was given",
                fix="have it tokenized on the way: --tokenizer PATH, or write tokens first: plan tokenize",
            )
        return encode(read_bytes(path, MOST_TEXT_BYTES).decode())
    except (OSError, ValueError, OverflowError) as error:
        raise _unreadable(str(path), str(error)) from error


def _raw(path: Path, *, wide: bool) -> npt.NDArray[Any]:
    """Map raw token ids, of which nothing says how wide they are: those of twice the width are refused.

    Half of what is read of these are upper halves, which are 0.
    """
    tokens = np.memmap(require_regular(path), dtype="<u4" if wide else "<u2", mode="r")
    middle = len(tokens) // 4 * 2
    looked = np.concatenate([tokens[:LOOKED_AT], tokens[middle : middle + LOOKED_AT]])
    if len(looked) > 1 and looked[::2].any() and not looked[1::2].any():
        bits = 8 * tokens.itemsize
        raise InputError(
            what=f"{path} holds wider token ids than are read of it",
            cause=f"read as {bits} bits each, every second one is 0: they have {2 * bits} or more",
            fix=f"write them with {bits} bits, as .npy, which says its type, or by plan tokenize",
        )
    return tokens


def raw_token_notes(name: str, vocab_size: int) -> list[str]:
    """What is taken of files of raw tokens, which say nothing of their type."""
    bits = 32 if vocab_size > LARGEST_16_BIT_VOCABULARY else 16
    paths = [Path(part) for _, part in blend_parts(name) or ((1, name),) if Path(part).suffix == ".bin"]
    return [
        f"{path} has no .idx: it is read as unsigned little-endian token ids of {bits} bits"
        for path in paths
        if index_beside(path) is None
    ]


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
    parts = blend_parts(name)
    if parts is not None:
        return ",".join(f"{weight}={named_in_full(part)}" for weight, part in parts)
    if is_hub(name):
        return absolute(name)
    return name if name == SYNTHETIC else str(Path(name).absolute())  # a link's own name says what it is


def fully_named(name: str, kept: Mapping[str, Contents], before: str | None = None) -> str:
    """A source whose Hugging Face datasets are named with the hub's commit, as a run has `kept` it before.

    `before` is the source that the run began with, in which each part looks for its own commit.
    """
    parts, began = blend_parts(name), blend_parts(before or "")
    if parts is not None:
        same = began if began is not None and len(began) == len(parts) else ((1, ""),) * len(parts)
        result = zip(parts, same, strict=True)
        return ",".join(f"{weight}={fully_named(part, kept, old)}" for (weight, part), (_, old) in result)
    return full_name(name, kept, before or "") if is_hub(name) else name


def batch_of_samples(
    source: TokenSource, samples: Iterable[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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
