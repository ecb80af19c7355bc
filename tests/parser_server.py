"""Engines' own parsers that are started once in a process of the suite: importing one takes up to thirteen seconds.

`planner.parsers.main` answers line by line, and its engine keeps what it keeps between cases of one call anyway; here
the same program stays for the next call. Its client has tests of its own (`tests/unit/planner/parsers/test_client.py`).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.answers import put_in_place

HERE = Path(__file__).resolve().parent
ASKED = tuple(str(HERE / folder) for folder in ("unit/planner", "property/planner/engines"))
OF_THE_CLIENT = str(HERE / "unit/planner/parsers")
MOST = 7  # that stay, all there are: some hundred MiB each, of which most are of libraries that they share


class Parser:
    """The program of one engine, running."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it; it reads cases until its input ends."""
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )
        self.rest = b""

    def answer(self, case: Mapping[str, Any], until: float) -> dict[str, Any] | None:
        """What it makes of a case; None where it ends or its time is over."""
        source, out = self.process.stdin, self.process.stdout
        assert source is not None
        assert out is not None
        try:
            source.write(f"{json.dumps(case)}\n".encode())
            source.flush()
        except OSError:
            return None
        while b"\n" not in self.rest:
            if not select.select([out], [], [], max(until - time.monotonic(), 0))[0]:
                return None
            more = os.read(out.fileno(), 1 << 16)
            if not more:
                return None
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.communicate()


RUNNING: dict[tuple[str, str], Parser] = {}
"""By engine and interpreter, the one asked last at the end."""


def answers(
    engine: str,
    cases: Sequence[Mapping[str, Any]],
    python: str,
    alive: Callable[[float], None] = lambda _: None,
    *,
    timeout_s: float = 120.0,
) -> list[dict[str, Any]]:
    """As `planner.parsers.client.answers`, by a program that may run already."""
    from planner.parsers import client

    until, found = time.monotonic() + timeout_s, list[dict[str, Any]]()
    main = Path(client.__file__).with_name("main.py")
    parser = RUNNING.pop((engine, python), None)
    if parser is None:
        parser = Parser([python, "-P", str(main), client.PROGRAMS[engine]])
    for number, case in enumerate(cases, 1):
        answer = parser.answer(case, until)
        if answer is None:
            parser.end()
            found += [{"error": f"no answer in {timeout_s:.0f} s"}] * (len(cases) - len(found))
            return found
        found.append(answer)
        alive(number / len(cases))
    RUNNING[engine, python] = parser
    while len(RUNNING) > MOST:
        RUNNING.pop(next(iter(RUNNING))).end()
    return found


@atexit.register
def _end_all() -> None:
    """No parser outlives the tests."""
    while RUNNING:
        RUNNING.popitem()[1].end()


ASKING = [False]


def _answered(client_answers: Callable[..., Any]) -> Callable[..., Any]:
    """The client's own way, but for tests that ask parsers that stay."""

    @functools.wraps(client_answers)
    def answered(*words: Any, **named: Any) -> Any:
        return (answers if ASKING[0] else client_answers)(*words, **named)

    return answered


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ask parsers that stay, in tests of what engines make of files."""
    module = getattr(item, "module", None)  # a doctest has none
    asks = module is not None and any(name in vars(module) for name in ("answers", "client"))
    if asks and str(item.path).startswith(ASKED) and not str(item.path).startswith(OF_THE_CLIENT):
        put_in_place("planner.parsers.client", "answers", _answered)
        ASKING[0] = True
    try:
        return (yield)
    finally:
        ASKING[0] = False
