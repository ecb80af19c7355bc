"""Documents of Parquet and Arrow files, the forms in which Hugging Face's datasets lie on a disk.

A row is a document. Few rows are in memory at a time, and no other column is read. Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topology.base.errors import InputError

TABLES = (".parquet", ".arrow")
ROWS_AT_ONCE = 1000


def rows(path: Path, field: str) -> Iterator[str]:
    """The texts of one column, in the order of rows.

    Args:
        path: a Parquet file, or an Arrow one in the form of a stream (`save_to_disk`) or of a file.
        field: the column.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            what="the pyarrow library is not installed",
            cause=f"{path} is a table",
            fix="pip install pyarrow, or write JSON lines",
        ) from error
    number = 0
    try:
        for batch in _batches(path, field):
            batch.validate(full=True)  # what is damaged is read beyond its end otherwise
            for text in batch.column(0).to_pylist():
                number += 1
                if text is None:
                    raise InputError(
                        what=f"a document has no text in {field!r}",
                        cause=f"{path}, row {number} is null",
                        fix="write the table without such rows, or name another column: --field NAME",
                    )
                if not isinstance(text, str):
                    raise _no_text(field, f"{path}, row {number} has {type(text).__name__}")
                yield text
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise InputError(
            what=f"{path} cannot be read as a table",
            cause=(str(error).splitlines() or [type(error).__name__])[0][:200],
            fix="write it again: it is damaged, its text is not UTF-8, or it is no Parquet or Arrow",
        ) from error


def _batches(path: Path, field: str) -> Iterator[Any]:
    """Record batches of the column alone."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        with parquet.ParquetFile(path) as file:
            _require(file.schema_arrow.names, field, path)
            yield from file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[field])
        return
    with pa.memory_map(str(path)) as mapped:
        try:
            reader = ipc.open_file(mapped)
            whole = (reader.get_batch(index) for index in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            mapped.seek(0)
            whole = reader = ipc.open_stream(mapped)
        _require(reader.schema.names, field, path)
        for batch in whole:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield batch.select([field]).slice(start, ROWS_AT_ONCE)


def _require(names: list[str], field: str, path: Path) -> None:
    """Refuse a table without the column, or with several of its name."""
    if field not in names:
        raise _no_text(field, f"{path} has {', '.join(names)[:200]}")
    if names.count(field) > 1:
        raise InputError(
            what=f"several columns are called {field!r}",
            cause=f"{path} has {', '.join(names)[:200]}",
            fix="write the table with a name of its own for each column",
        )


def _no_text(field: str, cause: str) -> InputError:
    return InputError(
        what=f"a document has no text in {field!r}",
        cause=cause,
        fix="name the column that holds the text: --field NAME",
    )
