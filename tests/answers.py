"""One search a question, where a test asks how its answer is told, written, drawn, exported or audited.

Hundreds of such tests ask the same few dozen questions. In the folders of `TOLD` a question that this process has
searched before is answered with what was found then; all that a search is told is the key, so another question is
searched. A test marked `searches_anew` neither reads nor leaves an answer, nor does one that has put something else
in the program's place. Tests of the search itself lie elsewhere, as do properties and oracles. That a
search finds the same again is a property of its own (`tests/property/planner/search/test_search_properties.py`).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TOLD = tuple(
    str(HERE / folder)
    for folder in (
        "app", "cli", "property/one_truth", "published/costmodel/accuracy", "unit/meshplan", "unit/planner/analysis", "unit/planner/audit", "unit/planner/campaign",
        "unit/planner/deployment", "unit/planner/engines", "unit/planner/formats", "unit/planner/launch",
        "unit/planner/questions", "unit/test_docs_library.py", "unit/planner/serving/test_limit_steps.py", "unit/planner/serving/test_services.py", "unit/planner/test_compare.py",
    )
)  # fmt: skip
SEARCHES = (
    ("planner.search.search", "search"),
    ("planner.analysis.serving.fleets", "find_fleet"),
    ("planner.analysis.serving.services", "find_shared"),
    ("planner.serving.search", "search_serving"),
    ("planner.analysis.explain", "_best"),
    ("costmodel.accuracy.training", "predict_rows"),
    ("app.actions.plan", "given_plan"),
)
"""What is searched, or predicted of a table, by its home and name."""
PROGRAM = ("app", "costmodel", "executor", "meshplan", "planner", "topology")
FILLED = "done"
"""Argument that takes every part of a list by its place as soon as it is there."""
UNTOLD = {"tell", "each", FILLED}
"""Arguments that an answer does not depend on: who hears how far it is, and in which processes it is computed."""


class _Question(pickle.Pickler):
    """The whole of a question as bytes: equal ones have equal bytes, whoever built them.

    No object is named by its identity; of calibrations what they are equal in, and no table that was read.
    """

    def reducer_override(self, value: Any) -> Any:
        """As it is, but for calibrations."""
        from costmodel.kernels.tables import Calibration

        if type(value) is Calibration:
            return Calibration, (value.directory, value.measurements)
        return NotImplemented


def question(*parts: object) -> bytes | None:
    """Bytes of all that is asked; None where it cannot be told apart from others (a callback, a circle)."""
    buffer = io.BytesIO()
    pickler = _Question(buffer, protocol=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pickler.fast = True
    try:
        pickler.dump(parts)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        return None
    return buffer.getvalue()


DEAR_S = 0.2
"""Processor time from which an answer is handed to the other workers of this run."""


class Answers:
    """What this process has found, by question; dear answers also in a folder that workers of one run share."""

    def __init__(self, folder: Path | None = None) -> None:
        """Nothing is known, and nobody asks."""
        self.found: dict[bytes, Any] = {}
        self.asking: pytest.Item | None = None
        self.folder = folder

    def handed_on(self, key: bytes) -> tuple[Any] | None:
        """The answer that another worker has written, in a tuple; None where there is none."""
        if self.folder is None:
            return None
        try:
            return (pickle.loads(self._place(key).read_bytes()),)  # noqa: S301 - written below, in this run
        except OSError:
            return None

    def hand_on(self, key: bytes, answer: Any) -> None:
        """Write an answer whole, where it can be written."""
        if self.folder is None:
            return
        try:
            text = pickle.dumps(answer, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(text)
        Path(file.name).replace(self._place(key))

    def _place(self, key: bytes) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(key).hexdigest()}.pickle"

    def of(self, name: str, search: Callable[..., Any]) -> Callable[..., Any]:
        """The search, which looks here first."""
        signature = inspect.signature(search)

        @functools.wraps(search)
        def answered(*words: Any, **named: Any) -> Any:
            told = signature.bind(*words, **named)
            told.apply_defaults()
            asked = {key: value for key, value in told.arguments.items() if key not in UNTOLD}
            if asked.get("cal", 0) is None:
                asked["cal"] = import_module("costmodel.kernels.tables").load_calibration()
            key = question(name, asked) if self.is_asked else None
            if key is None:
                return search(*words, **named)
            if key not in self.found and (answer := self.handed_on(key)) is not None:
                self.found[key] = answer[0]
            if key not in self.found:
                began_s = time.process_time()
                self.found[key] = search(*words, **named)
                if time.process_time() - began_s > DEAR_S:
                    self.hand_on(key, self.found[key])
            elif (filled := told.arguments.get(FILLED)) is not None:
                filled.update(enumerate(self.found[key]))
            return self.found[key]

        return answered

    @property
    def is_asked(self) -> bool:
        """Whether the test at hand takes what is known: the program is as it was written."""
        return self.asking is not None and not replaces_the_program(self.asking)

    def install(self) -> None:
        """Stand at the home of every search, and wherever it was imported already."""
        for home, name in SEARCHES:
            put_in_place(home, name, functools.partial(self.of, name))


PLACED = set[tuple[str, str]]()


def put_in_place(home: str, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put something else in the place of a function, made of it, at its home and wherever it was imported; once."""
    if (home, name) in PLACED:
        return
    PLACED.add((home, name))
    function = getattr(import_module(home), name)
    instead = made(function)
    for module in list(sys.modules.values()):
        for key in [key for key, value in list(getattr(module, "__dict__", {}).items()) if value is function]:
            setattr(module, key, instead)


ANSWERS = Answers(
    Path(os.environ["XDG_CACHE_HOME"]) / "answers" if "PYTEST_XDIST_WORKER" in os.environ else None
)
"""Below the folder that `tests/guard.py` makes for every run, so that no answer outlives the code that gave it."""


def replaces_the_program(item: pytest.Item) -> bool:
    """Whether a test has put something else in the place of a name of the program or of an entry of a table."""
    monkeypatch = getattr(item, "funcargs", {}).get("monkeypatch")
    if monkeypatch is None:
        return False
    homes = [getattr(target, "__module__", None) or target.__name__ for target, *_ in monkeypatch._setattr]
    tables = [table for table, *_ in monkeypatch._setitem if table is not os.environ]
    return bool(tables) or any(home.partition(".")[0] in PROGRAM for home in homes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Take what is known in tests of how answers are told."""
    if str(item.path).startswith(TOLD) and item.get_closest_marker("searches_anew") is None:
        ANSWERS.install()
        ANSWERS.asking = item
    try:
        return (yield)
    finally:
        ANSWERS.asking = None
