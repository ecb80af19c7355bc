"""Text read ahead: a thread tokenizes the samples of coming steps while this one is computed.

The thread holds few batches, and waits when they are not asked for. What it reads is what would be read
without it: a sample is a function of its number.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from executor.data.blend import TokenSource
from executor.data.lane_blend import LaneBlend
from executor.data.stream import TextStream

STEPS_AHEAD = 2

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
        self._start()

        def there() -> bool:
            return self.failure is not None or all(index in self.ready for index in self.samples_of(step))

        with self.changed:
            return self.changed.wait_for(there, timeout=seconds)

    def _start(self) -> None:
        """Begin to read."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give one sample, once: that of a step gone by is read again."""
        self._start()
        with self.changed:
            for old in [number for number in self.ready if number < index]:
                del self.ready[old]  # nobody asked: it must not keep the thread waiting
                self.changed.notify_all()
            while index not in self.ready and index in self.samples_of(self.step) and self.failure is None:
                self.changed.wait()
            if (found := self.ready.pop(index, None)) is not None:
                self.changed.notify_all()
                return found
            if self.failure is not None:
                raise self.failure
        with self.reading:
            return self.source.sample(index)

    def _read(self) -> None:
        """Read step after step."""
        while not self.closed.is_set():
            samples = self.samples_of(self.step)
            try:
                for index in samples:
                    with self.reading:
                        found = self.source.sample(index)
                    if self.closed.is_set():
                        return
                    with self.changed:
                        self.ready[index] = found
                        self.changed.notify_all()
            except Exception as error:  # noqa: BLE001 - whatever it is, the rank that asks must meet it
                with self.changed:
                    self.failure = error
                    self.changed.notify_all()
                return
            with self.changed:
                self.step += 1
                while len(self.ready) > (STEPS_AHEAD - 1) * len(samples) and not self.closed.is_set():
                    self.changed.wait()

    def close(self) -> None:
        """Stop reading: a thread must not be in the tokenizer when the process ends."""
        self.closed.set()
        with self.changed:
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()

    def places(self, step: int) -> Places:
        """Where texts go on before a step, as far as this rank knows, by stream (`TextStream.places`)."""
        with self.reading:
            return places_of(self.source, step)


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
    found: dict[str, TextStream] = {}
    seen = Counter[str]()
    for one in inside:
        if isinstance(one, TextStream):
            again = seen[one.key]
            found[f"{one.key}-{again}" if again else one.key] = one
            seen[one.key] += 1
    return found


def places_of(source: TextStream | LaneBlend, step: int) -> Places:
    """Where each text of a source goes on before a step."""
    if isinstance(source, TextStream):
        windows = step * source.batch // source.lanes
        return {source.key: source.places([windows] * source.lanes)}
    numbers = {id(one): number for number, one in enumerate(source.sources)}
    return {
        key: one.places(source.windows(numbers[id(one)], step)) for key, one in streams_of(source).items()
    }
