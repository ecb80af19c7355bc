"""Hugging Face datasets, streamed by their own library: from the hub, or from a folder that it understands.

``hf:NAME[@REVISION][:CONFIG][:SPLIT]`` is looked up once, before a run, and from then on goes by its full
name, with the hub's commit: a restart reads the same. The files of a split are its pieces (Parquet is cut at
its groups of rows, which its footer tells), and what cannot be cut is dealt by turns. A document's place is
the group of its row and the row's number there, so reading goes on from the group, and nothing before it is
tokenized; of lines a group is the whole file.

The library is large, so it is imported when such a name is opened, and for nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from executor.data.hub_files import require_dataset, require_inside, require_no_address
from executor.data.pieces import (
    END,
    Contents,
    Piece,
    Split,
    TextFile,
    mark_of,
    pieces_of,
    require_same,
    with_turns,
)
from executor.data.tables import ROWS_AT_ONCE, null_row, require_text
from topology.base.errors import InputError

HUB = "hf:"
GROUP = 1 << 32  # rows that a group of a file has at most
PIECES_PER_LANE = 16
MOST_FOOTERS = 256  # that are read before a run, one request each on a hub
TRAIN = "train"
LONGEST_NAME = 1000


class Name(NamedTuple):
    """What ``hf:…`` says; empty where it does not."""

    path: str
    revision: str = ""
    config: str = ""
    split: str = ""

    @property
    def full(self) -> str:
        """As it is written."""
        return f"{HUB}{self.path}{f'@{self.revision}' if self.revision else ''}:{self.config}:{self.split}"


def is_hub(name: str) -> bool:
    """Whether a part of a source is a Hugging Face dataset."""
    return name.startswith(HUB)


def hub_name(name: str) -> Name:
    """Read a name; one word behind the dataset may be a configuration or a split, which is found out later.

    >>> hub_name("hf:org/name@abc:en:train")
    Name(path='org/name', revision='abc', config='en', split='train')
    >>> hub_name("hf:org/name::test").split
    'test'
    """
    path, *words = name.removeprefix(HUB).split(":")
    if not path or len(words) > 2 or len(name) > LONGEST_NAME or not name.isprintable():
        raise InputError(
            what=f"{name[:200]} does not name a dataset",
            cause=f"{len(words)} words behind it, {len(name)} characters" if path else "its name is empty",
            fix="write hf:ORG/NAME, hf:ORG/NAME:CONFIG, hf:ORG/NAME:CONFIG:SPLIT or hf:FOLDER; "
            "a path has no colon",
        )
    revision = ""
    if not Path(path).is_dir():
        path, _, revision = path.partition("@")
    config, split = (*words, "", "")[:2]
    return Name(path, revision, config, split)


def absolute(name: str) -> str:
    """A name that holds in any working directory: a folder of this machine by its path.

    >>> absolute("hf:org/name:en")
    'hf:org/name:en'
    """
    hub_name(name)
    path, *words = name.removeprefix(HUB).split(":")
    local = Path(path).is_dir() or path.startswith((".", "/"))
    return HUB + ":".join([str(Path(path).absolute()) if local else path, *words])


# ── looked up, before a run ───────────────────────────────────────────────────────────────────────────────


def full_name(name: str, kept: Mapping[str, Contents], before: str = "") -> str:
    """The full name of a dataset: its commit, configuration and split, as a run has kept them or as they are.

    `before` is what the run began with in its place, by its full name; else its texts may tell.
    Raises InputError for a dataset, configuration or split that is not there, and a hub that is not reached.
    """
    asked = hub_name(absolute(name))  # a folder may have the name of a reader
    if not asked.revision:
        began = hub_name(before) if is_hub(before) else None
        known = {
            contents.hub.revision
            for contents in kept.values()
            if contents.hub and contents.hub.path == asked.path
        }
        known = {began.revision} if began and began.path == asked.path else known
        asked = asked._replace(revision=known.pop() if len(known) == 1 else "")
    with _asked(name) as library:
        require_dataset(asked.path)
        require_no_address(asked.path)
        revision = asked.revision or None
        configs = library.get_dataset_config_names(asked.path, revision=revision)
        if asked.config and not asked.split and asked.config not in configs:
            asked = asked._replace(config="", split=asked.config)
        if not asked.config:
            default = library.get_dataset_default_config_name(asked.path, revision=revision)
            if default is None:
                raise _choose(name, "configuration", configs)
            asked = asked._replace(config=default)
        if asked.config not in configs:
            raise _choose(name, "configuration", configs, asked.config)
        files = _builder(library, asked).config.data_files
        splits = [str(split) for split in files or ()]
        if not asked.split and (TRAIN in splits or len(splits) == 1):
            asked = asked._replace(split=TRAIN if TRAIN in splits else splits[0])
        if asked.split not in splits:
            raise _choose(name, "split", splits, asked.split)
        commits = {origin[1] for origin in files[asked.split].origin_metadata if len(origin) == 2}
        return asked._replace(revision=commits.pop() if len(commits) == 1 else "").full


def look_through_split(name: str, *, field: str, lanes: int) -> Contents:
    """Look at the files of a dataset's split, by its full name: sizes, checksums, groups of rows.

    Raises InputError for a column that is not there or holds no text, and a split without documents.
    """
    asked = hub_name(name)
    with _asked(name) as library:
        builder = _builder(library, asked)
        paths = list(builder.config.data_files[asked.split])
        hub = Split(
            path=asked.path,
            config=asked.config,
            split=asked.split,
            revision=asked.revision,
            shards=0,
            columns=hasattr(builder.config, "columns"),
        )
        everything = _load(hub, None)
        columns: list[str] = everything.column_names or list(next(iter(everything.take(1)), {}))
        if field not in columns:
            raise InputError(
                what=f"a document has no text in {field!r}",
                cause=f"{name} has {', '.join(columns)[:200] or 'no columns'}",
                fix="name the column that holds the text: --field NAME, --text-field NAME of plan run",
            )
        hub = replace(hub, shards=everything.num_shards)
        files = _files_of(hub, paths, field, lanes)
        contents = Contents(lanes=lanes, field=field, files=files, hub=hub)
        contents = with_turns(contents)
        files = tuple(_filled(name, contents, number) for number in range(len(files)))
        contents = replace(contents, files=files)
        if not any(True for piece in pieces_of(contents) for _ in rows_of(name, contents, piece)):
            raise InputError(
                what=f"{name} holds no document",
                cause=f"{len(files)} files",
                fix="give a split that holds text",
            )
    return contents


def _builder(library: Any, asked: Name) -> Any:
    """What the library knows of a configuration, whose files are all its dataset's own."""
    require_dataset(asked.path)
    require_no_address(asked.path)
    dataset_builder = library.load_dataset_builder(asked.path, asked.config, revision=asked.revision or None)
    require_inside(
        asked.path, (file for files in (dataset_builder.config.data_files or {}).values() for file in files)
    )
    return dataset_builder


def _files_of(hub: Split, paths: list[str], field: str, lanes: int) -> tuple[TextFile, ...]:
    """The files of a split as the library deals them, each cut where its groups of rows begin."""
    if len(paths) == hub.shards:
        files = [
            TextFile(name=_named(hub, path), size_bytes=_size(path), mark=_mark(path), bounds=(0, END))
            for path in paths
        ]
    else:  # a file that holds several
        sha256 = hashlib.sha256(json.dumps([(path, _size(path), _mark(path)) for path in paths]).encode())
        mark = sha256.hexdigest()[:16]
        files = [TextFile(name=str(n), size_bytes=0, mark=mark, bounds=(0, END)) for n in range(hub.shards)]
    total = sum(max(1, file.size_bytes) for file in files)
    if not hub.columns or len(files) > MOST_FOOTERS:
        return tuple(files)
    result = []
    for number, file in enumerate(files):
        wanted = round(PIECES_PER_LANE * lanes * max(1, file.size_bytes) / total)
        groups = _groups(hub, field, number).num_shards if wanted > 1 else 1
        count = min(wanted, groups)
        cuts = sorted({group * groups // count for group in range(count)}) if count > 1 else []
        result.append(
            replace(file, bounds=(*(cut * GROUP for cut in cuts), groups * GROUP)) if cuts else file
        )
    return tuple(result)


def _filled(name: str, contents: Contents, number: int) -> TextFile:
    """A file of this machine in no more turns than it has documents."""
    file = contents.files[number]
    if file.turns == 1 or not (Path(hub_name(name).path) / file.name).is_file():
        return file
    whole = Piece(number, 0, file.bounds[-1], 1.0)
    there = sum(1 for _ in islice(rows_of(name, contents, whole), file.turns))
    return replace(file, turns=max(1, there))


def _named(hub: Split, path: str) -> str:
    """A file by its place in the dataset's folder, or by its address."""
    here = Path(path)
    return here.relative_to(hub.path).as_posix() if here.is_relative_to(hub.path) else path


def _size(path: str) -> int:
    """Bytes of a file here or on the hub, 0 where nobody says it; a hub that does not answer is an error."""
    import fsspec

    return int(fsspec.url_to_fs(path)[0].info(path).get("size") or 0)


def _mark(path: str) -> str:
    """Checksum of the ends of a file of this machine; what is on the hub is known by its commit."""
    here = Path(path)
    return mark_of(here, here.stat().st_size) if here.is_file() else ""


# ── read ──────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(
    name: str, contents: Contents, piece: Piece, start: int | None = None
) -> Iterator[tuple[int, str]]:
    """Documents of a piece with their places, from place `start` on.

    What is wrong with the data is an InputError; a hub that does not answer any more is what the library
    raises, once it has tried for some minutes: the ranks then start again from their checkpoint.
    """
    hub, file = contents.hub, contents.files[piece.file]
    if hub is None:
        raise TypeError(name)
    if file.size_bytes and not hub.revision:
        require_same(Path(hub.path) / file.name, file.size_bytes)
    group, first = divmod(piece.start if start is None else start, GROUP)
    with _read(name, file, on_hub=bool(hub.revision)):
        groups = _groups(hub, contents.field, piece.file)
        for number in range(group, min(groups.num_shards, piece.stop // GROUP)):
            row = 0
            read = groups.shard(num_shards=groups.num_shards, index=number).with_format("arrow")
            for table in read.iter(batch_size=ROWS_AT_ONCE):
                skipped = first - row if number == group else 0
                if skipped < table.num_rows:
                    yield from _wanted(table, contents.field, file, piece, number * GROUP + row, skipped)
                row += table.num_rows


def _wanted(
    table: Any, field: str, file: TextFile, piece: Piece, place: int, skipped: int
) -> Iterator[tuple[int, str]]:
    """Those rows of a table that are a piece's, behind those that are skipped; `place` is its first row's."""
    require_text(table.schema, field, Path(file.name))
    group, row = divmod(place, GROUP)
    skipped = max(0, skipped)
    first = skipped + (piece.turn - group - row - skipped) % piece.turns
    numbers = range(first, table.num_rows, piece.turns)
    if not numbers:  # a table with fewer rows than there are turns: the library takes no empty list
        return
    for number, text in zip(numbers, table.column(field).take(list(numbers)).to_pylist(), strict=True):
        if text is None:
            raise null_row(field, Path(file.name), row + number)
        yield place + number, text


@functools.lru_cache(maxsize=8)
def _load(hub: Split, field: str | None) -> Any:
    """A split as the library streams it, of one column where its reader can leave others out."""
    library = _library()
    if not hub.revision:  # its description may be another by now
        _builder(library, Name(hub.path, config=hub.config))
    words = {"columns": [field], "batch_size": ROWS_AT_ONCE} if hub.columns and field is not None else {}
    return library.load_dataset(
        hub.path, hub.config, split=hub.split, revision=hub.revision or None, streaming=True, **words
    )


@functools.lru_cache(maxsize=64)
def _groups(hub: Split, field: str, number: int) -> Any:
    """One file of a split, by its groups of rows where it has some."""
    file = _load(hub, field).shard(num_shards=hub.shards, index=number)
    return (file if hub.columns else file.select_columns([field])).reshard()


def _library() -> Any:
    """The library, which is told to say nothing of its own."""
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise InputError(
            what="the datasets library is not installed",
            cause="hf:NAME is a Hugging Face dataset",
            fix='pip install "meshplan[datasets]"',
        ) from error
    huggingface_hub.utils.logging.set_verbosity_error()  # it tries again, up to half a minute
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _asked(name: str) -> Iterator[Any]:
    """The library, whose complaints become ours."""
    library = _library()
    try:
        yield library
    except InputError:
        raise
    except Exception as error:  # of the hub, of the network, of what a dataset says of itself
        raise _refused(hub_name(name).path, error, offline=library.config.HF_HUB_OFFLINE) from error


@contextlib.contextmanager
def _read(name: str, file: TextFile, *, on_hub: bool) -> Iterator[None]:
    """What is wrong with a file becomes ours; a network that fails is left to be tried again."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, TypeError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and on_hub:
            raise
        raise InputError(
            what=f"{name} cannot be read",
            cause=f"{file.name}: {_first_line(error)}",
            fix="its files are damaged, or their columns differ: mend them, or give another split",
        ) from error


def _refused(path: str, error: Exception, *, offline: bool) -> InputError:
    """Build the error for a dataset that the library does not open."""
    from huggingface_hub.errors import GatedRepoError

    line = _first_line(error)
    if isinstance(error, GatedRepoError) or f"'{path}' is a gated dataset" in line:
        return InputError(
            what=f"{path} asks for its readers to be known",
            cause=line,
            fix="accept its conditions on its page, then set HF_TOKEN or run hf auth login on every node",
        )
    if isinstance(error, ConnectionError) or "Couldn't reach" in line:
        return InputError(
            what=f"{path} is not here, and the hub {'is not asked' if offline else 'does not answer'}",
            cause="HF_HUB_OFFLINE is set" if offline else line,
            fix=f"download it where there is a network, and give --data hf:DIR: "
            f"hf download {path} --repo-type dataset --local-dir DIR",
        )
    return InputError(
        what=f"{path} cannot be opened as a dataset",
        cause=line,
        fix="give the name that its page on the hub has, or a folder that datasets.load_dataset opens",
    )


def _choose(name: str, what: str, there: list[str], asked: str = "") -> InputError:
    """Build the error for a configuration or split that is not there, or of several that is not named."""
    path = hub_name(name).path
    word = "CONFIG" if what == "configuration" else "CONFIG:SPLIT"
    return InputError(
        what=f"{path} has no {what} {asked}" if asked else f"which {what} of {path} to read is not said",
        cause=f"it has {', '.join(there)[:200] or 'none'}",
        fix=f"name one of them: hf:{path}:{word}",
    )


def _first_line(error: Exception) -> str:
    """What an error says first."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()[
        :200
    ]
