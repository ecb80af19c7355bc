"""A Hugging Face tokenizer, read from its ``tokenizer.json``: documents to token ids, the same each time.

Nothing is added to a text but the token that ends it, which is the one that ``tokenizer_config.json`` beside
it calls its end of sequence, unless another is named. What would cut a document short, pad it by others or
draw lots is taken out or refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.base.errors import InputError, panics_raised
from topology.base.files import read_bytes, read_text
from topology.base.units import MIB

CONFIG = "tokenizer_config.json"
MOST_TOKENS = 1 << 31
MOST_BYTES = 256 * MIB
"""Of a tokenizer: those of a quarter of a million tokens have 30 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A tokenizer and the token that ends its documents; `vocab_size` is one beyond its largest id.

    `sha256` is of the file that it was read from.
    """

    known: Any
    end: int
    vocab_size: int
    sha256: str

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of documents, each closed by its end.

        Other threads go on meanwhile: the library lets go of Python's lock in its calls for several texts.
        """
        try:
            encode = getattr(
                self.known, "encode_batch_fast", self.known.encode_batch
            )  # without places in the text
            with panics_raised():
                value = encode(list(texts), add_special_tokens=False)
        except Exception as error:  # of a library in Rust: it raises bare ones
            raise InputError(
                what="a document cannot be tokenized",
                cause=(str(error).splitlines() or [type(error).__name__])[0][:200],
                fix="give text that is Unicode, without lone surrogates",
            ) from error
        return [np.asarray([*item.ids, self.end], dtype=np.int32) for item in value]


def tokenizer_file(path: Path) -> Path:
    """The file of a tokenizer that is named by it or by its folder."""
    return path / "tokenizer.json" if path.is_dir() else path


def checksum_of(path: Path) -> str:
    """SHA-256 of a tokenizer's file."""
    try:
        return hashlib.sha256(read_bytes(tokenizer_file(path), MOST_BYTES)).hexdigest()
    except OSError as error:
        raise _no_tokenizer(tokenizer_file(path), error) from error


def _no_tokenizer(file: Path, error: Exception) -> InputError:
    """Build the error for a file that is none."""
    return InputError(
        what=f"{file} is not a tokenizer",
        cause=str(error),
        fix="give the tokenizer.json of the model, or the folder that has it",
    )


def open_tokenizer(path: Path, *, end: int | None = None) -> Tokenizer:
    """Read a tokenizer; `end` is the token that ends documents, None for its own end of sequence."""
    try:
        from tokenizers import Tokenizer as Known
    except ImportError as error:
        raise InputError(
            what="the tokenizers library is not installed",
            cause=f"{path} is a Hugging Face tokenizer",
            fix="pip install tokenizers",
        ) from error
    file = tokenizer_file(path)
    try:
        raw = read_bytes(file, MOST_BYTES)
        with panics_raised():
            known = Known.from_str(raw.decode())
    except InputError:
        raise
    except Exception as error:  # of a library in Rust: it raises bare ones
        raise _no_tokenizer(file, error) from error
    if getattr(known.model, "dropout", None):
        raise InputError(
            what=f"{file} draws lots",
            cause=f"its model's dropout is {known.model.dropout}, so a text has other tokens each time",
            fix='set "dropout" to null in it',
        )
    known.no_truncation()
    known.no_padding()
    size = max(known.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > MOST_TOKENS:
        raise InputError(
            what=f"{file} has a token beyond those that are held",
            cause=f"its largest id is {size - 1:,}, ids have 31 bits",
            fix="give the tokenizer.json of the model",
        )
    last = _end_of(known, path) if end is None else end
    if not 0 <= last < size:
        raise InputError(
            what="the end of documents is not a token",
            cause=f"token {last}, {path} has {size}",
            fix=f"give one of 0 to {size - 1}: --document-end ID",
        )
    return Tokenizer(known=known, end=last, vocab_size=size, sha256=hashlib.sha256(raw).hexdigest())


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which JSON can spell and no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _end_of(known: Any, path: Path) -> int:
    """The token that the tokenizer's configuration calls its end of sequence."""
    folder = path if path.is_dir() else path.parent
    name: object = None
    try:
        value = json.loads(read_text(folder / CONFIG)).get("eos_token")
        name = value.get("content") if isinstance(value, dict) else value
    except (InputError, ValueError, AttributeError, RecursionError):
        value = None
    token = known.token_to_id(name) if isinstance(name, str) and is_unicode(name) else None
    if token is None:
        raise InputError(
            what="which token ends a document is not known",
            cause=f"{folder / CONFIG} names no eos_token that the tokenizer has",
            fix="give its id: --document-end ID",
        )
    return int(token)
