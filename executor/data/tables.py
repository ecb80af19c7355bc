"""Documents of Parquet and Arrow files, the forms in which Hugging Face's datasets lie on a disk.

A row is a document. Few rows are in memory at a time, and no other column is read. Needs pyarrow.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from topology.base.errors import InputError, shortened
from topology.base.files import require_regular
from topology.base.units import MIB

TABLES = (".parquet", ".arrow")
ROWS_AT_ONCE = 100
BUFFER_BYTES = MIB  # of a Parquet file, instead of a whole row group's column


def text_rows(path: Path, field: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, str]]:
    """The texts of one column with the numbers of their rows, in the order of rows.

    Args:
        path: a Parquet file, or an Arrow one in the form of a stream (`save_to_disk`) or of a file.
        field: the column.
        start: the first row, found by what the file says of its groups of rows.
        stop: the first row that is left out.
    """
    with _readable(path):
        for first, batch in _batches(path, field, start, stop):
            batch.validate(full=True)  # what is damaged is read beyond its end otherwise
            for row, text in enumerate(batch.column(0).to_pylist(), first):
                if text is None:
                    raise null_row(field, path, row)
                yield row, text


def starts_of(path: Path, field: str) -> list[int]:
    """First row of each group of rows, and the number of rows after the last; the column is looked for."""
    with _readable(path), _opened(path, field) as (sizes, _):
        return list(accumulate(sizes, initial=0))


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[Any]:
    """pyarrow, whose complaints become ours."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            what="the pyarrow library is not installed",
            cause=f"{path} is a table",
            fix="pip install pyarrow, or write JSON lines",
        ) from error
    try:
        yield pa
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise InputError(
            what=f"{path} cannot be read as a table",
            cause=(str(error).splitlines() or [type(error).__name__])[0][:200],
            fix="write it again: it is damaged, its text is not UTF-8, or it is no Parquet or Arrow",
        ) from error


@contextlib.contextmanager
def _opened(path: Path, field: str) -> Iterator[tuple[list[int], Callable[[int], Iterator[Any]]]]:
    """Rows of each group of an open table, and what reads the column from one of its groups on."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        with parquet.ParquetFile(require_regular(path), buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            require_text(file.schema_arrow, field, path)
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            _require_counted(sizes, file.metadata.num_rows, path)
            yield (
                sizes,
                lambda group: file.iter_batches(
                    batch_size=ROWS_AT_ONCE,
                    row_groups=range(group, len(sizes)),
                    columns=[field],
                    use_threads=False,
                ),
            )
        return
    with pa.memory_map(str(require_regular(path))) as mapped:

        def groups(first: int) -> Iterator[Any]:
            try:
                file = ipc.open_file(mapped)
            except pa.ArrowInvalid:
                mapped.seek(0)
                yield from islice(ipc.open_stream(mapped), first, None)
                return
            yield from (file.get_batch(index) for index in range(first, file.num_record_batches))

        require_text(_schema(mapped), field, path)
        yield (
            [batch.num_rows for batch in groups(0)],  # of which only the places are read, unless compressed
            lambda group: (
                batch.select([field]).slice(first, ROWS_AT_ONCE)
                for batch in groups(group)
                for first in range(0, batch.num_rows, ROWS_AT_ONCE)
            ),
        )


def _require_counted(sizes: Sequence[int], rows: int, path: Path) -> None:
    """Refuse groups of rows that are not those of the table: a place in it would lie outside."""
    if min(sizes, default=0) < 0 or sum(sizes) != rows:
        counts = shortened(", ".join(map(str, sizes)), 80)
        raise InputError(
            what=f"{path} cannot be read as a table",
            cause=f"its {len(sizes)} groups of rows have {counts} rows, the table {rows}",
            fix="write it again: it is damaged",
        )


def _schema(mapped: Any) -> Any:
    """Columns of an Arrow file of either form."""
    import pyarrow as pa
    from pyarrow import ipc

    try:
        return ipc.open_file(mapped).schema
    except pa.ArrowInvalid:
        mapped.seek(0)
        return ipc.open_stream(mapped).schema


def _batches(path: Path, field: str, start: int, stop: int | None) -> Iterator[tuple[int, Any]]:
    """Record batches of the column alone, each with the number of its first row."""
    with _opened(path, field) as (sizes, read):
        firsts = list(accumulate(sizes, initial=0))
        last = firsts[-1] if stop is None else min(stop, firsts[-1])
        if start >= last:
            return
        group = bisect_right(firsts, start) - 1
        at = firsts[group]
        for batch in read(group):
            if at >= last:
                return
            skipped = max(0, start - at)
            if skipped < batch.num_rows:
                yield at + skipped, batch.slice(skipped, min(batch.num_rows, last - at) - skipped)
            at += batch.num_rows


def require_text(schema: Any, field: str, path: Path) -> None:
    """Refuse a table without the column, with several of its name, or with no text in it."""
    import pyarrow as pa

    if field not in schema.names:
        raise _no_text(field, f"{path} has {', '.join(schema.names)[:200]}")
    if schema.names.count(field) > 1:
        raise InputError(
            what=f"several columns are called {field!r}",
            cause=f"{path} has {', '.join(schema.names)[:200]}",
            fix="write the table with a name of its own for each column",
        )
    kind = schema.field(field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(
        is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    ):
        raise _no_text(field, f"{path} has {str(kind)[:200]} there")


def null_row(field: str, path: Path, row: int) -> InputError:
    """Build the error for a row, counted from 0, that has no text."""
    return InputError(
        what=f"a document has no text in {field!r}",
        cause=f"{path}, row {row + 1} is null",
        fix="write the table without such rows, or name another column: --field NAME",
    )


def _no_text(field: str, cause: str) -> InputError:
    return InputError(
        what=f"a document has no text in {field!r}",
        cause=cause,
        fix="name the column that holds the text: --field NAME, --text-field NAME of plan run",
    )
