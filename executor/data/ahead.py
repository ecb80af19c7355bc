"""Text read ahead: a thread tokenizes the samples of coming steps while this one is computed.

The thread holds few batches, and waits when they are not asked for. What it reads is what would be read
without it: a sample is a function of its number.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from executor.data.blend import TokenSource
from executor.data.lane_blend import LaneBlend
from executor.data.stream import TextStream
from topology.base.errors import InputError

STEPS_AHEAD = 2
SILENT_S = 3600.0  # without a document: more than a terabyte of text is decompressed in that
CLOSE_S = 30.0  # for which the thread's end is waited for: others may wait in a collective meanwhile

Places = dict[str, npt.NDArray[np.int64]]


class Ahead:
    """A source with text, read ahead by one rank: `samples_of` names the rank's samples of a step."""

    def __init__(self, source: TextStream | LaneBlend, samples_of: Callable[[int], range]) -> None:
        self.source, self.samples_of = source, samples_of
        self.ready: dict[int, npt.NDArray[np.int64]] = {}
        self.failure: Exception | None = None
        self.step = 0  # that is read next
        self.changed = threading.Condition()
        self.reading = threading.Lock()  # lanes are of one reader at a time
        self.thread: threading.Thread | None = None
        self.closed = threading.Event()
        self.documents, self.since_s = 0, time.monotonic()  # that were read, and when that was last another

    def begin(self, step: int, saved: Mapping[str, Sequence[Sequence[int]]]) -> tuple[str, ...]:
        """Go to a step, by a checkpoint's places; names of texts of which it has none."""
        self.step = step
        streams = streams_of(self.source) if step else {}
        for key, stream in streams.items():
            if key in saved:
                stream.resume(saved[key])
        return tuple(stream.name for key, stream in streams.items() if key not in saved)

    def has(self, step: int, seconds: float = 0.0) -> bool:
        """Whether the samples of a coming step are there, or why not, after at most so long."""
        thread = self._start()

        def there() -> bool:
            return self.failure is not None or all(index in self.ready for index in self.samples_of(step))

        with self.changed:
            if not self.changed.wait_for(there, timeout=seconds):
                self.failure = self._ended(thread)
            return there()

    def _ended(self, thread: threading.Thread) -> Exception | None:
        """Why nothing more is to come; nothing while documents do."""
        if not thread.is_alive():
            return RuntimeError("the thread that reads text ahead has ended")
        streams, now_s = list(streams_of(self.source).values()), time.monotonic()
        documents = sum(stream.documents for stream in streams)
        if documents != self.documents:
            self.documents, self.since_s = documents, now_s
        if now_s - self.since_s < SILENT_S:
            return None
        last = ", ".join(stream.reads or stream.name for stream in streams)
        return InputError(
            what="text is not read any more",
            cause=f"no document in {SILENT_S:.0f} s, last of {last}",
            fix="see that its file system or hub answers, and start again from the last checkpoint",
        )

    def _start(self) -> threading.Thread:
        """Begin to read."""
        if self.thread is None:
            self.since_s = time.monotonic()
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()
        return self.thread

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give one sample, once: that of a step gone by is read again."""
        self._start()
        with self.changed:
            for old in [number for number in self.ready if number < index]:
                del self.ready[old]  # nobody asked: it must not keep the thread waiting
                self.changed.notify_all()
            while index not in self.ready and index in self.samples_of(self.step) and self.failure is None:
                self.changed.wait()
            if (values := self.ready.pop(index, None)) is not None:
                self.changed.notify_all()
                return values
            if self.failure is not None:
                raise self.failure
        with self.reading:
            return self.source.sample(index)

    def _read(self) -> None:
        """Read step after step; whatever ends that, the rank that asks must meet it."""
        try:
            while not self.closed.is_set():
                self._read_step()
        except BaseException as error:  # noqa: BLE001 - a panic of the tokenizer is no Exception
            failure = error if isinstance(error, Exception) else _panic(error)
            with self.changed:
                self.failure = failure
                self.changed.notify_all()

    def _read_step(self) -> None:
        """Read the samples of one step, and wait until they are wanted."""
        samples = self.samples_of(self.step)
        for index in samples:
            with self.reading:
                values = self.source.sample(index)
            if self.closed.is_set():
                return
            with self.changed:
                self.ready[index] = values
                self.changed.notify_all()
        with self.changed:
            self.step += 1
            while len(self.ready) > (STEPS_AHEAD - 1) * len(samples) and not self.closed.is_set():
                self.changed.wait()

    def close(self) -> None:
        """Stop reading: a thread should not be in the tokenizer when the process ends."""
        self.closed.set()
        with self.changed:
            self.changed.notify_all()
        for stream in streams_of(self.source).values():
            stream.stopped = True
        if self.thread is not None:
            self.thread.join(CLOSE_S)

    def places(self, step: int) -> Places:
        """Where texts go on before a step, as far as this rank knows, by stream (`TextStream.places`).

        Waits for no reading: once a step's samples are there, where its windows end is known.
        """
        return text_places(self.source, step)


def _panic(error: BaseException) -> RuntimeError:
    """What ended a thread, as an error that a rank reports and that ends it."""
    failure = RuntimeError(f"reading text ended: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


@contextlib.contextmanager
def reading(source: TokenSource) -> Iterator[None]:
    """Let a source be read ahead for as long as it is trained on."""
    try:
        yield
    finally:
        if isinstance(source, Ahead):
            source.close()


def places_before(source: TokenSource, step: int) -> Places:
    """Where the texts of a run go on before a step, as far as this rank knows; nothing without texts."""
    return source.places(step) if isinstance(source, Ahead) else {}


def streams_of(source: TokenSource) -> dict[str, TextStream]:
    """The texts of a source by what their places are saved under: one that comes again has a number there."""
    inside = source.sources if isinstance(source, LaneBlend) else (source,)
    text_streams: dict[str, TextStream] = {}
    seen = Counter[str]()
    for token_source in inside:
        if isinstance(token_source, TextStream):
            count = seen[token_source.key]
            text_streams[f"{token_source.key}-{count}" if count else token_source.key] = token_source
            seen[token_source.key] += 1
    return text_streams


def text_places(source: TextStream | LaneBlend, step: int) -> Places:
    """Where each text of a source goes on before a step."""
    if isinstance(source, TextStream):
        windows = step * source.batch // source.lanes
        return {source.key: source.places([windows] * source.lanes)}
    numbers = {id(token_source): number for number, token_source in enumerate(source.sources)}
    return {
        key: text_stream.places(source.windows(numbers[id(text_stream)], step))
        for key, text_stream in streams_of(source).items()
    }
