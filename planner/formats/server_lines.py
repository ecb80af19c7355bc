"""What servers print of themselves when they start and while they run: forms are rows of data.

A server's log is no log of a training job: none of its lines is a step, and its memory is that of a cache.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from planner.formats.settings import Setting
from topology.base.decode import read_toml
from topology.base.units import GIB

MOST_LINES = 400_000
LONGEST_LINE = 20_000
LONGEST_ERROR = 400
MOST_ARGUMENT_LINES = 32
"""Lines that print what a server was started with: one a rank, of one host."""
BLOCK_TOKENS = 16
"""Tokens of a block of vLLM, where its log counts blocks and no word says another size."""
FULL = 0.95
"""Share of a cache in use, from which requests wait for it."""
_FILE = Path(__file__).parent / "data" / "server_lines.toml"
_FACTORS = {"": 1.0, "GiB": GIB, "%": 0.01}
_RANKS = ("weights_bytes", "cache_bytes", "half_cache_bytes", "most_cache_bytes")
"""What every rank prints: of weights the most counts, of caches the least."""
_STATE = (
    "running", "waiting", "cache_used", "prompt_tokens_per_s", "output_tokens_per_s", "prefix_hits", "step_s",
)  # fmt: skip
"""What one line says of a moment."""
_COUNTED = ("preemptions",)
"""What each line counts anew: all of them are added."""
MOST_STATES = 20_000
_ERROR = re.compile(r"(?:Error|Exception): (?=\S)|\b(?:Value|Assertion) error, (?=\S)")
"""How an error is told: by its class, or by pydantic below the class of what it checked."""
_CHECKED = re.compile(r" \[type=\w+, input_value=.*")
"""What pydantic adds to the words of an error."""
_NAME = re.compile(r"[\w.]{0,80}$")
"""What stands before that in the name of an error."""
_ARGUMENTS = re.compile(
    r"non-default args: \{|\bargs: Namespace\(|\bInitializing an? (?:V\d )?LLM engine"
    r"|\bserver_args=ServerArgs\("
)
"""How lines begin that print what a server was started with."""
_PAIR = re.compile(
    r"(?<![\w.])(?:'(?P<quoted>\w+)': |(?P<plain>\w+)=)"
    r"(?P<value>'[^']{0,400}'|\"[^\"]{0,400}\"|[\w.:/+-]{1,200})(?=[,})\s]|$)"
)
_VERSION = re.compile(r"vLLM API server version v?(\d+\.\d+\.\d+)|LLM engine \(v(\d+\.\d+\.\d+)\)")
_MARKS = ("non-default args", "args: namespace", "llm engine", "server_args=", "vllm api server version")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerForm:
    """One spelling of one quantity; see the file of them."""

    of: str
    means: str
    unit: str
    mark: str
    pattern: re.Pattern[str]
    example: str
    value: float

    def number(self, line: str) -> float | None:
        """What a line says, in SI units; None where it does not say it."""
        match = self.pattern.search(line)
        try:
            return None if match is None else float(match[1].replace(",", "")) * _FACTORS[self.unit]
        except ValueError:
            return None


@functools.cache
def server_forms() -> tuple[ServerForm, ...]:
    """All forms."""
    rows = read_toml(_FILE)["forms"]
    return tuple(ServerForm(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerError:
    """One kind of error that stops a server, and what helps; see the file of them."""

    pattern: re.Pattern[str]
    remedy: str
    example: str


@functools.cache
def server_errors() -> tuple[ServerError, ...]:
    """All kinds of errors, in the order in which they are tried."""
    rows = read_toml(_FILE)["errors"]
    return tuple(ServerError(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A moment of a running server, as one line prints it; None where it does not say it.

    Attributes:
        line: Where it is printed.
        running: Requests that run.
        waiting: Requests that wait.
        cache_used: Share of the cache in use.
        prompt_tokens_per_s: Tokens of prompts that are computed a second.
        output_tokens_per_s: Tokens that come out a second.
        prefix_hits: Share of tokens of prompts that a cache of prefixes held.
        step_s: Seconds of a step.
    """

    line: int
    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    prefix_hits: float | None = None
    step_s: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether requests wait for a cache that is full."""
        return bool(self.waiting) and self.cache_used is not None and self.cache_used >= FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """What a server printed; None where it did not.

    Attributes:
        of: Whose sentences it prints.
        settings: What it was started with, as far as it prints that.
        version: Of the engine.
        weights_bytes: Weights of a GPU, the largest of all ranks.
        cache_bytes: Cache of a GPU, the smallest of all ranks.
        most_cache_bytes: Cache of a GPU that would take all that is free, as the engine says.
        cache_tokens: Tokens that the cache holds.
        longest: Tokens of the longest request that it takes.
        request_bytes: Cache of one such request.
        longest_held: Tokens of the longest request that would fit, as the engine estimates.
        concurrency: Longest requests that it holds at once.
        running: Requests that ran when it last said so.
        waiting: Requests that waited then.
        cache_used: Share of the cache in use then.
        output_tokens_per_s: Tokens that it generated a second then.
        prompt_tokens_per_s: Tokens of prompts that it computed a second then.
        prefix_hits: Share of tokens of prompts that its cache of prefixes held.
        step_s: Seconds of its last step.
        preemptions: Requests that lost their cache while they ran, all of them.
        load_s: Seconds for which it loaded weights.
        graph_s: Seconds for which it captured CUDA graphs.
        init_s: Seconds from loaded weights until it was ready.
        states: Its moments, in the order of their lines.
        eager: Whether it says that it runs without CUDA graphs.
        error: The last error that it printed; empty without one.
        error_line: Where.
    """

    of: str
    settings: tuple[Setting, ...] = ()
    version: str = ""
    weights_bytes: float | None = None
    cache_bytes: float | None = None
    half_cache_bytes: float | None = None
    most_cache_bytes: float | None = None
    cache_tokens: float | None = None
    cache_blocks: float | None = None
    all_preemptions: float | None = None
    longest: float | None = None
    request_bytes: float | None = None
    longest_held: float | None = None
    concurrency: float | None = None
    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None
    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    prefix_hits: float | None = None
    step_s: float | None = None
    preemptions: float | None = None
    load_s: float | None = None
    graph_s: float | None = None
    init_s: float | None = None
    states: tuple[ServerState, ...] = ()
    eager: bool = False
    error: str = ""
    error_line: int = 0

    @property
    def remedy(self) -> str:
        """What helps against its error."""
        if self.longest_held is not None:
            return (
                f"allow requests of at most {self.longest_held:,.0f} tokens, or leave the cache more memory"
            )
        known = (each.remedy for each in server_errors() if each.pattern.search(self.error))
        return next(known, "mend what the error names")

    @property
    def stopped(self) -> bool:
        """Whether it ended in an error before it ran a request."""
        return bool(self.error) and self.running is None

    @property
    def is_full(self) -> bool:
        """Whether requests waited for a cache that was full."""
        return bool(self.waiting) and self.cache_used is not None and self.cache_used >= FULL


def is_server_log(text: str) -> bool:
    """Whether a text has lines that only a server prints; those that are commented out are none."""
    return any(True for _ in _matches(text, text.split("\n", MOST_LINES)[:MOST_LINES]))


def _matches(text: str, lines: Sequence[str]) -> Iterator[tuple[int, ServerForm, float]]:
    """Every quantity of every line, with its number; most texts have no mark of any."""
    whole = text.lower()
    forms = [form for form in server_forms() if form.mark in whole]
    marks = sorted({form.mark for form in forms})
    for number, line in enumerate(lines, 1):
        lower = line[:LONGEST_LINE].lower()
        if line.lstrip().startswith("#") or not any(mark in lower for mark in marks):
            continue
        for form in forms:
            if form.mark in lower and (value := form.number(line[:LONGEST_LINE])) is not None:
                yield number, form, value


def server_log_of(text: str) -> ServerLog | None:
    """What a server's log says; None of a text that is none.

    Of what it prints again the last counts, of what every rank prints the tightest.
    """
    lines = text.split("\n", MOST_LINES)[:MOST_LINES]
    printed = list(_matches(text, lines))
    settings = tuple(_settings(lines)) if any(mark in text.lower() for mark in _MARKS) else ()
    if not printed and not settings and not _STARTED.search(text):
        return None
    names = [form.of for _, form, _ in printed]
    engine = max(sorted(set(names)), key=names.count) if names else _engine_of(lines)
    values: dict[str, float] = {}
    moments: dict[int, dict[str, float]] = {}
    for number, form, value in printed:
        if form.of != engine:
            continue
        if form.means in _STATE and (number in moments or len(moments) < MOST_STATES):
            moments.setdefault(number, {})[form.means] = value
        before = values.get(form.means, 0.0 if form.means in _COUNTED else value)
        if form.means in _COUNTED:
            values[form.means] = before + value
        elif form.means in _RANKS:
            values[form.means] = (max if form.means == "weights_bytes" else min)(before, value)
        else:
            values[form.means] = value
    if "half_cache_bytes" in values:
        values.setdefault("cache_bytes", 2 * values["half_cache_bytes"])
    if "all_preemptions" in values:
        values["preemptions"] = values.get("preemptions", 0.0) + values["all_preemptions"]
    if "cache_blocks" in values:
        values.setdefault("cache_tokens", values["cache_blocks"] * BLOCK_TOKENS)
    error, line = _error_of(lines)
    return ServerLog(
        of=engine,
        settings=settings,
        version=_version(lines),
        states=tuple(ServerState(line=at, **state) for at, state in moments.items() if "running" in state),
        eager=_EAGER.search(text) is not None,
        error=error,
        error_line=line,
        **values,
    )


_STARTED = re.compile(
    r"vLLM API server version v?\d|(?i:vllm)[\s\S]{0,20000}?validation errors? for \w+Config\b"
)
"""What a vLLM prints that stops before it says anything of itself."""
_EAGER = re.compile(r"Cudagraph is disabled under eager|Decode batch.{0,200}?cuda graph: False")
"""Sentences of vLLM and SGLang, of which the second is of every batch."""


def _engine_of(lines: Sequence[str]) -> str:
    """Whose arguments are printed."""
    return "SGLang" if any("server_args=ServerArgs(" in line for line in lines) else "vLLM"


def _version(lines: Sequence[str]) -> str:
    """The version that a server names; empty without one."""
    marked = (line[:LONGEST_LINE] for line in lines if "LLM" in line)
    match = next(filter(None, map(_VERSION.search, marked)), None)
    return "" if match is None else match[1] or match[2]


def _settings(lines: Sequence[str]) -> Iterator[Setting]:
    """What a server was started with, as it prints it; the first that says a name holds."""
    names: set[str] = set()
    marked = ((number, line) for number, line in enumerate(lines, 1) if _is_marked(line))
    for number, line in islice(marked, MOST_ARGUMENT_LINES):
        begins = _ARGUMENTS.search(line[:LONGEST_LINE])
        for match in _PAIR.finditer(line[begins.end() - 1 : LONGEST_LINE]) if begins is not None else ():
            name, value = match["quoted"] or match["plain"], match["value"].strip("'\"")
            if name not in names and value != "None":
                names.add(name)
                truth = {"True": True, "False": False}.get(value)
                yield Setting(name=name, value=value if truth is None else truth, line=number)


def _is_marked(line: str) -> bool:
    """Whether a line may print what a server was started with."""
    lower = line[:LONGEST_LINE].lower()
    return any(mark in lower for mark in _MARKS)


def _error_of(lines: Sequence[str]) -> tuple[str, int]:
    """The error that a server ends in, and its line; what only points at another one says nothing."""
    error, at = "", 0
    for number, line in enumerate(lines, 1):
        if "rror" not in line and "xception" not in line:
            continue
        match = _ERROR.search(line[:LONGEST_LINE])
        if match is not None and ("see root cause" not in line.lower() or not error):
            name = _NAME.search(line[max(0, match.start() - 80) : match.start()])
            begins = match.start() - (len(name[0]) if name is not None else 0)
            words = _CHECKED.sub("", line[begins:LONGEST_LINE].strip())
            error, at = words[:LONGEST_ERROR], number
    return error, at
