"""A running server by its log, beside what is predicted of it under the load that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.audit.read import Reading
from planner.audit.serving.printed_load import PrintedLoad, printed_load
from planner.audit.serving.texts import judged
from planner.formats.server_lines import ServerLog
from planner.questions.flags import ServeFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedServer:
    """A running server beside what is predicted of it.

    Attributes:
        log: What it printed.
        load: What it is sent; None where that does not follow.
        predicted_per_s: Tokens that should come out a second under that load; None without a prediction.
        band_per_s: The least and the most of that.
        missing: Why there is no prediction; "" where there is one.
    """

    log: ServerLog
    load: PrintedLoad | None = None
    predicted_per_s: float | None = None
    band_per_s: tuple[float, float] | None = None
    missing: str = ""

    @property
    def slower_by(self) -> float | None:
        """Share by which less comes out than is predicted."""
        if self.load is None or not self.predicted_per_s:
            return None
        return 1 - self.load.output_tokens_per_s / self.predicted_per_s

    @property
    def is_slow(self) -> bool:
        """Whether less comes out than the band of the prediction has."""
        measured = None if self.load is None else self.load.output_tokens_per_s
        return measured is not None and self.band_per_s is not None and measured < self.band_per_s[0]


def watched_server(reading: Reading, texts: Mapping[str, str]) -> WatchedServer | None:
    """A running server beside what is predicted of it; None of files without a server's log.

    Args:
        reading: What its log, and its script beside it, say.
        texts: Of these files, by name.
    """
    log = reading.served
    if log is None:
        return None
    load = printed_load(log)
    if load is None:
        return WatchedServer(log=log, missing="lines of requests that run, with the cache that they use")
    asked = load.flags(ServeFlags(), load.running)
    audit = judged(reading, texts, {}, asked, {}, compares=False)
    if audit.server is None or audit.missing:
        return WatchedServer(log=log, load=load, missing=", ".join(audit.missing))
    if not audit.server.knows_gpu:
        return WatchedServer(log=log, load=load, missing="the GPU: name a script or a line that says it")
    now = next((each.running for each in audit.loads), None)
    if now is None:
        return WatchedServer(log=log, load=load, missing="room for its requests, by the estimate")
    predicted, token = now.requests_per_s * load.output_tokens, now.plan.estimate.tpot
    band = (predicted * token.p50_s / token.upper_s, predicted * token.p50_s / token.lower_s)
    return WatchedServer(log=log, load=load, predicted_per_s=predicted, band_per_s=band)
