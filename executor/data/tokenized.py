"""Text into an indexed dataset, by a Hugging Face tokenizer: once, before a run, a few documents at a time.

What is written is Megatron's form (`executor.data.indexed`), so a run, Megatron-LM and NeMo read the same
files. Whoever wants no such copy has a run tokenize on its way (`executor.data.stream`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from executor.data.documents import documents, files_of
from executor.data.indexed import write_indexed
from executor.data.tokenizer import Tokenizer, open_tokenizer
from topology.base.errors import InputError

AT_ONCE = 1000  # documents that are in memory together


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """What was written: the index, its documents and tokens, and the token that ends each document.

    `files` counts those that were read, by their folder; `skipped` those of folders that hold no documents.
    """

    index: str
    documents: int
    tokens: int
    document_end: int
    vocab_size: int
    files: Mapping[str, int]
    skipped: int = 0


def tokenize(
    texts: Sequence[Path], tokenizer: Path, index: Path, *, field: str = "text", end: int | None = None
) -> Tokenized:
    """Write documents as `index`: text files (one each), lines and rows of tables (one each, by `field`).

    Raises InputError for files that are no text or no JSON, and where no end-of-document token is known.
    """
    known = open_tokenizer(tokenizer, end=end)
    files, skipped = files_of(texts)
    lengths = write_indexed(index, encoded(known, files, field), vocab_size=known.vocab_size)
    return Tokenized(
        index=str(index),
        documents=len(lengths),
        tokens=sum(lengths),
        document_end=known.end,
        vocab_size=known.vocab_size,
        files=dict(Counter(str(path.parent) for path in files)),
        skipped=skipped,
    )


def encoded(known: Tokenizer, files: Sequence[Path], field: str) -> Iterator[npt.NDArray[np.int32]]:
    """Token ids of each document of files, in their order."""
    texts = (text for path in files for _, text in documents(path, field))
    count = 0
    while some := list(islice(texts, AT_ONCE)):
        count += len(some)
        yield from known.encode(some)
    if not count:
        raise InputError(
            what="there is no document",
            cause="the files have no rows or lines",
            fix="give files that hold text",
        )
