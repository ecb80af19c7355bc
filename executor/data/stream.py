"""Text as samples by number, tokenized on the way: lanes that each read their part of a corpus.

A global batch has G places. Lane l of L, which divides G, gives the samples l, l + L, l + 2L …: as a rank
computes the same places of every batch, it reads the same lanes for as long as the layout stands, and another
layout deals the same lanes out otherwise. A lane's pieces of the corpus (`executor.data.contents`) follow
one another in an order drawn for each of its epochs; their documents, each closed by its end, are one long
line of tokens, and window w is its tokens w·S … w·S + S. So a sample is a function of corpus, tokenizer,
seed, G and S alone. Where a window begins (epoch, piece, document, token of it) is only known once those
before it have been read, so it is saved with checkpoints; without that it is found by reading on from the
nearest one known, at worst from the first.

Legend: ``S`` sequence length, ``G`` global batch size, ``L`` lanes.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from executor.data.contents import documents_of, file_in_corpus
from executor.data.pieces import END, Contents, deal, pieces_of
from executor.data.tokenizer import Tokenizer
from topology.base.errors import InputError

OPEN_AT_ONCE = 32  # lanes with their files: one beyond them closes its own and finds its place again
UNCUT_AT_ONCE = 256  # where a place is found by reading all before it: each window would cost that
BATCHES_KEPT = 8  # for which it stays known where windows began: more than are read ahead
COLUMNS = 5  # of a table of places: a window's number, then its `StreamPosition`


class StreamPosition(NamedTuple):
    """Where a window begins: the lane's epoch, which of its pieces, the document's place, a token of it."""

    epoch: int = 0
    turn: int = 0
    document: int = -1  # the piece's first
    token: int = 0


class _Encoded(NamedTuple):
    """A document's tokens, and where it lies."""

    place: StreamPosition
    tokens: npt.NDArray[np.int32]


class StoppedError(Exception):
    """Nobody wants what is being read any more."""


class TextStream:
    """A corpus as samples by number; see the head of this file."""

    def __init__(
        self,
        name: str,
        contents: Contents,
        tokenizer: Tokenizer,
        *,
        sequence_length: int,
        global_batch_size: int,
        seed: int,
    ) -> None:
        self.name, self.contents, self.tokenizer = name, contents, tokenizer
        self.sequence_length, self.batch, self.seed = sequence_length, global_batch_size, seed
        pieces = pieces_of(contents)
        self.lanes = _divisor(global_batch_size, len(pieces))
        self.pieces_of_lane = deal(pieces, self.lanes)
        self.windows_kept = BATCHES_KEPT * (global_batch_size // self.lanes)
        self.window_starts: dict[int, tuple[int, StreamPosition]] = {}
        self.read: dict[int, _Lane] = {}
        self.open: OrderedDict[int, None] = OrderedDict()
        self.documents, self.reads = 0, ""  # so many were tokenized; of this file
        self.stopped = False  # by another thread: no document is read any more

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the S + 1 tokens of a sample."""
        window, number = divmod(index, self.lanes)
        lane = self.read.get(number)
        if lane is None:
            lane = self.read[number] = _Lane(self, number)
        self.open[number] = None
        self.open.move_to_end(number)
        while len(self.open) > self.most_open:  # lanes are read in turn: the one just read is wanted last
            latest = list(self.open)[-2]
            del self.open[latest]
            self.read[latest].close()
        return lane.window(window)

    @property
    def most_open(self) -> int:
        """How many lanes may have their files open."""
        hub = self.contents.hub
        skips = hub is not None and hub.columns  # tables skip rows, and hold most
        uncut = not skips and any(file.bounds[-1] == END for file in self.contents.files)
        return UNCUT_AT_ONCE if uncut else OPEN_AT_ONCE

    @property
    def key(self) -> str:
        """What decides the samples, in a word: places are those of no other stream."""
        values = (
            self.contents.sha256,
            [file.bounds for file in self.contents.files],
            self.contents.field,
            self.tokenizer.sha256,
            self.tokenizer.end,
            self.lanes,
            self.sequence_length,
            self.seed,
            *(turns for turns in ([file.turns for file in self.contents.files],) if max(turns) > 1),
        )
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]

    def places(self, windows: Sequence[int]) -> npt.NDArray[np.int64]:
        """Where the windows begin, one a lane: (L, 5) of window and place, −1 where it is not known here."""
        table = np.full((self.lanes, COLUMNS), -1, dtype=np.int64)
        for number, window in enumerate(windows):
            place = self._known(number, window)
            if place is not None:
                table[number] = (window, *place)
        return table

    def _known(self, number: int, window: int) -> StreamPosition | None:
        """Where a window of a lane begins, if that is known here; asked while another thread reads."""
        lane = self.read.get(number)
        start = None if lane is None else lane.starts.get(window)
        if start is not None:
            return start
        at, place = self.window_starts.get(number, (0, StreamPosition()))
        return place if at == window else StreamPosition() if window == 0 else None

    def resume(self, table: Sequence[Sequence[int]]) -> None:
        """Take places that were saved; a lane without one starts from its first window."""
        if len(table) != self.lanes or any(len(row) != COLUMNS for row in table):
            raise self.astray(len(table), StreamPosition())
        for number, (window, *place) in enumerate(table):
            result = StreamPosition(*place)
            if window < 0:
                continue
            if not (
                0 <= result.turn < len(self.pieces_of_lane[number])
                and result.epoch >= 0
                and result.token >= 0
            ):
                raise self.astray(number, result)
            self.window_starts[number] = (window, result)

    def astray(self, number: int, place: StreamPosition) -> InputError:
        """Build the error for a place that the corpus does not have."""
        return InputError(
            what=f"a checkpoint's place in {self.name} is not there",
            cause=f"lane {number}, epoch {place.epoch}, piece {place.turn}, document at {place.document}, "
            f"token {place.token}",
            fix="put the files and the tokenizer back as they were, or begin with another --run-dir",
        )


class _Lane:
    """One lane, as far as it has been read: documents from the next window on, and where windows began."""

    def __init__(self, stream: TextStream, number: int) -> None:
        self.stream, self.number = stream, number
        self.pieces = stream.pieces_of_lane[number]
        self.next = 0
        self.starts: OrderedDict[int, StreamPosition] = OrderedDict({0: StreamPosition()})
        self.waiting: deque[_Encoded] = deque()
        self.used = 0  # tokens of the first of them
        self.last, self.behind = StreamPosition(), False  # the document to go on from, or after
        self.texts: Iterator[tuple[StreamPosition, str]] | None = None

    def window(self, window: int) -> npt.NDArray[np.int64]:
        """Read up to a window, from the nearest place known before it; gives its tokens."""
        at, place = self.stream.window_starts.get(self.number, (0, StreamPosition()))
        known = {0: StreamPosition(), at: place, **self.starts}
        nearest = max(start for start in known if start <= window)
        if not nearest <= self.next <= window:
            self._seek(nearest, known[nearest])
        while self.next < window:
            self._read()
        return self._read()

    def close(self) -> None:
        """Let go of the file; reading goes on after the last document."""
        self.texts = None

    def _seek(self, window: int, place: StreamPosition) -> None:
        """Go to a window that begins at a place."""
        self.next, self.used = window, place.token
        self.waiting.clear()
        self.texts, self.last, self.behind = None, place._replace(token=0), False
        self.starts[window] = place

    def _read(self) -> npt.NDArray[np.int64]:
        """Tokens of the next window; it is then the one after it."""
        length = self.stream.sequence_length
        end = self.used + length + 1  # by tokens from the first that waits
        held = sum(len(encoded.tokens) for encoded in self.waiting)
        while held < end:
            held += self._take()
        values = self._first(end)
        self.used += length
        while self.used >= len(self.waiting[0].tokens):
            self.used -= len(self.waiting.popleft().tokens)
        self.next += 1
        self.starts[self.next] = self.waiting[0].place._replace(token=self.used)
        while len(self.starts) > self.stream.windows_kept:
            self.starts.popitem(last=False)
        return values

    def _first(self, end: int) -> npt.NDArray[np.int64]:
        """Tokens that wait, from the first that no window has used to before `end`."""
        parts, at = [], 0
        for encoded in self.waiting:
            parts.append(encoded.tokens[max(0, self.used - at) : end - at])
            at += len(encoded.tokens)
            if at >= end:
                break
        return np.concatenate(parts).astype(np.int64)

    def _take(self) -> int:
        """Tokenize the next document; how many tokens it has."""
        if self.stream.stopped:
            raise StoppedError
        if self.texts is None:
            self.texts = self._texts(self.last, behind=self.behind)
        place, text = next(self.texts)
        (tokens,) = self.stream.tokenizer.encode([text])
        self.stream.documents += 1
        resumed = not self.behind and self.last.document >= 0
        if resumed and (place != self.last or self.used >= len(tokens)):
            raise self.stream.astray(self.number, self.last._replace(token=self.used))
        self.waiting.append(_Encoded(place, tokens))
        self.last, self.behind = place, True
        return len(tokens)

    def _texts(self, first: StreamPosition, *, behind: bool) -> Iterator[tuple[StreamPosition, str]]:
        """Documents without end, from one on, or from behind it."""
        epoch, turn, start = first.epoch, first.turn, first.document
        while True:
            order = np.random.default_rng((self.stream.seed, epoch, self.number)).permutation(
                len(self.pieces)
            )
            empty = turn == 0
            for at in range(turn, len(order)):
                piece = self.pieces[order[at]]
                begin = None if start < 0 else start
                self.stream.reads = str(
                    file_in_corpus(self.stream.name, self.stream.contents.files[piece.file])
                )
                for document, text in documents_of(self.stream.name, self.stream.contents, piece, begin):
                    empty = False
                    if document != start or not behind:
                        yield StreamPosition(epoch, at, document), text
                start = -1
            if empty:
                raise InputError(
                    what=f"{self.stream.name} has too few documents for a batch",
                    cause=f"lane {self.number} of {self.stream.lanes} found none",
                    fix="write tokens first: plan tokenize",
                )
            epoch, turn = epoch + 1, 0


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is not above another.

    >>> [_divisor(8, most) for most in (1, 3, 7, 100)]
    [1, 2, 4, 8]
    """
    return max(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)
