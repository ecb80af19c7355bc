"""Compressed text: files that are read from their beginning, as no place in them can be gone to.

gzip is Python's own, Zstandard is pyarrow's, which reads tables as well. Several members or frames in one
file, as parallel compressors write them, are read as one.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from topology.base.errors import InputError
from topology.base.files import open_regular, require_regular
from topology.base.units import MIB

GZIP, ZSTANDARD = ".gz", ".zst"
COMPRESSED = (GZIP, ZSTANDARD)
BUFFER_BYTES = MIB


def suffix_of(path: Path) -> str:
    """What the name of a file says of what is in it, once that is not compressed any more.

    >>> [suffix_of(Path(name)) for name in ("a.jsonl", "a.json.gz", "a.txt.zst", "notes.gz")]
    ['.jsonl', '.json', '.txt', '']
    """
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if need be; a file that is damaged or cut off is refused."""
    try:
        with contextlib.closing(_stream(path)) as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except OSError as error:  # so pyarrow says what is wrong with the bytes, without a number of the system's
        if path.suffix == ZSTANDARD and error.errno is None:
            raise _damaged(path, error) from error
        raise


def _stream(path: Path) -> BinaryIO:
    """A file that is read from its beginning."""
    if path.suffix == GZIP:
        require_regular(path)
        return cast("BinaryIO", io.BufferedReader(cast("Any", gzip.open(path)), BUFFER_BYTES))
    if path.suffix != ZSTANDARD:
        return open_regular(path)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            what="the pyarrow library is not installed",
            cause=f"{path} is compressed by Zstandard",
            fix="pip install pyarrow, or compress by gzip",
        ) from error
    return cast(
        "BinaryIO",
        io.BufferedReader(pa.input_stream(str(require_regular(path)), compression="zstd"), BUFFER_BYTES),
    )


def _damaged(path: Path, error: Exception) -> InputError:
    """Build the error for a file whose bytes are not what its name says."""
    return InputError(
        what=f"{path} cannot be decompressed",
        cause=(str(error).splitlines() or [type(error).__name__])[0][:200],
        fix="write it again: it is cut off or damaged, or compressed otherwise than its name says",
    )
