"""Whoever compares measured wall time with a number is alone meanwhile, and is marked so that it is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import patience
from tests.clock_lane import CLOCK, Lane, pytest_collection_modifyitems
from tests.patience import LEAST_S, PATIENCE_S, undisturbed

ROOT = Path(__file__).resolve().parents[2]
SHORT_S = 0.05
CLOCKS = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns"}
"""Functions of `time` that other work on the machine moves; seconds of the processor (`process_time`) are the test's."""
FILES = {"st_mtime", "st_mtime_ns"}
IN_REAL_TIME = {"Batches", "program_work", "rehearse", "measure_rank"}
"""Functions of the program whose answer is seconds that they measured themselves."""
TELLING = re.compile(
    r"monotonic|perf_counter|\btime\.time|st_mtime|timeout(_s)?=\d\b|seconds=\d|wait_for\(|Batches|program_work|"
    r"rehearse\(|measure_rank"
)
"""What a file has where one of its tests may be told."""
WAITS = {"run", "communicate", "wait", "wait_for", "check_output", "result"}


# ── the lane ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def lanes(tmp_path: Path) -> Iterator[list[Lane]]:
    """Three workers of a run."""
    made = [Lane(tmp_path) for _ in range(3)]
    yield made
    for lane in made:
        lane.close()


def entering(lane: Lane, *, alone: bool) -> threading.Thread:
    """A worker that goes in, now or when it may."""
    thread = threading.Thread(target=lane.enter, kwargs={"alone": alone}, daemon=True)
    thread.start()
    return thread


def is_in(thread: threading.Thread, within_s: float = PATIENCE_S) -> bool:
    """Whether it has gone in."""
    thread.join(within_s)
    return not thread.is_alive()


def test_others_share_the_room_and_a_clock_has_it_alone(lanes: list[Lane]) -> None:
    """It waits for who is inside, and newcomers wait for it, as long as it goes on with the next clock."""
    first, second, third = lanes
    assert is_in(entering(first, alone=False))
    assert is_in(entering(second, alone=False))
    clock = entering(third, alone=True)
    second.leave()
    assert not is_in(clock, SHORT_S)
    newcomer = entering(second, alone=False)
    assert not is_in(newcomer, SHORT_S)
    first.leave()
    assert is_in(clock)
    third.leave(keeps=True)
    assert is_in(entering(third, alone=True))
    assert not is_in(newcomer, SHORT_S)
    third.leave()
    assert is_in(newcomer)


def test_two_clocks_take_turns(lanes: list[Lane]) -> None:
    first, second, _ = lanes
    first.enter(alone=True)
    other = entering(second, alone=True)
    assert not is_in(other, SHORT_S)
    first.leave()
    assert is_in(other)


RUN = """
import time
from pathlib import Path
import pytest

def passing(name):
    with Path(__file__).with_name("log").open("a") as log:
        for word in ("in", "out"):
            log.write(f"{name} {word}\\n")
            log.flush()
            time.sleep(0.02)

@pytest.mark.clock
@pytest.mark.parametrize("number", range(4))
def test_clock(number):
    passing(f"clock-{number}")

@pytest.mark.parametrize("number", range(16))
def test_other(number):
    passing(f"other-{number}")
"""


def test_clocks_come_last() -> None:
    """Others keep their order."""
    tests = [
        SimpleNamespace(name=name, get_closest_marker=lambda _, is_marked=name in "bc": is_marked or None)
        for name in "abcd"
    ]
    pytest_collection_modifyitems(tests)  # type: ignore[arg-type]
    assert [test.name for test in tests] == ["a", "d", "b", "c"]


def test_no_test_of_a_run_overlaps_a_clock(tmp_path: Path) -> None:
    """As pytest-xdist shares tests out between two workers."""
    (tmp_path / "test_them.py").write_text(RUN, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = clock\n", encoding="utf-8")
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.clock_lane",
        "-n",
        "2",
        "--dist",
        "worksteal",
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path)], cwd=tmp_path, check=True, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    events = [line.split() for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert len(events) == 2 * 20
    for place, (name, word) in enumerate(events):
        if name.startswith(CLOCK) and word == "in":
            assert events[place + 1] == [name, "out"]


# ── a machine that is somebody else's ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("late_s", "verdicts", "tries"),
    [
        (0.0, ["wrong"], 1),
        (1.0, ["wrong", ""], 2),
        (1.0, ["wrong", "wrong", "wrong"], 3),
        (1.0, [""], 1),
    ],
)
def test_a_measurement_is_taken_again_where_the_machine_was_disturbed(
    late_s: float, verdicts: list[str], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only there: what is wrong on a calm machine is wrong at once."""
    monkeypatch.setattr(patience, "Lateness", lambda: nullcontext(SimpleNamespace(seconds=late_s)))
    left = iter(verdicts)
    found = undisturbed(lambda: next(left))
    assert found.startswith(verdicts[tries - 1])
    assert bool(found) == bool(verdicts[tries - 1])
    assert len(list(left)) == len(verdicts) - tries


def test_a_sleep_beside_says_how_late_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that takes a tenth of a second more is so late."""
    sleep = time.sleep
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: sleep(seconds + 0.1))
    with patience.Lateness() as late:
        pass
    assert late.seconds >= 0.1


# ── who must be marked ────────────────────────────────────────────────────────────────────────────────────


def test_whoever_compares_wall_time_with_a_number_is_marked() -> None:
    """Or measures the processor's seconds, or waits for what happens instead of for a time."""
    unmarked = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if TELLING.search(text := path.read_text(encoding="utf-8"))
        for name in clocks_without_mark(text)
    ]
    assert unmarked == []


def test_whose_reason_for_a_second_try_is_a_clock_is_marked() -> None:
    """What the lane does for a test, it does for those of the quarantine first."""
    lines = (ROOT / "tests" / "quarantine.txt").read_text(encoding="utf-8").splitlines()
    named = [line.partition("#")[0].strip() for line in lines if "clock" in line.partition("#")[2]]
    entries = [name.partition("[")[0].split("::") for name in named if "::" in name]
    assert entries
    unmarked = [
        f"{file}::{test}"
        for file, test in entries
        if test not in marked(ast.parse((ROOT / file).read_text("utf-8")))
    ]
    assert unmarked == []


SAMPLES = {
    "def test_x():\n    began = time.monotonic()\n    work()\n    assert time.monotonic() - began < 5": True,
    "def test_x():\n    began = perf_counter()\n    work()\n    took_s = perf_counter() - began\n    assert 3 <= took_s < 5": True,
    "def test_x():\n    assert path.stat().st_mtime - time.time() <= 2": True,
    "def took():\n    return time.monotonic() - BEGAN\n\ndef test_x():\n    seconds = [took()]\n    assert max(seconds) < 2": True,
    "def test_x():\n    took_s = time.monotonic() - began\n    assert took_s == pytest.approx(2, abs=1)": True,
    "def test_x():\n    found = finished(Batches(pool))\n    assert found == pytest.approx([1.0])": True,
    "def test_x():\n    subprocess.run(words, timeout=5)": True,
    "def test_x():\n    assert wait_for(is_there, 3)": True,
    "@pytest.mark.clock\ndef test_x():\n    assert time.monotonic() - began < 5": False,
    "pytestmark = [pytest.mark.clock]\n\ndef test_x():\n    assert time.monotonic() - began < 5": False,
    "def test_x():\n    began = time.process_time()\n    assert time.process_time() - began < 5": False,
    "def test_x():\n    began = time.monotonic()\n    assert time.monotonic() - began >= 1": False,
    "def test_x():\n    assert path.stat().st_mtime == before": False,
    "LIMIT_S = 30.0\n\ndef test_x():\n    assert time.monotonic() - began < LIMIT_S": False,
    "LIMIT_S = 3.0\n\ndef test_x():\n    assert time.monotonic() - began < LIMIT_S": True,
    "def test_x():\n    assert wait_for(is_there)": False,
    "def test_x():\n    subprocess.run(words, timeout=60)": False,
}  # fmt: skip


@pytest.mark.parametrize("text", SAMPLES)
def test_what_compares_wall_time_is_found(text: str) -> None:
    """The check above can fail. A bound from below cannot, as load only makes a time longer; patience may be long."""
    assert bool(clocks_without_mark(text)) == SAMPLES[text]


def clocks_without_mark(text: str) -> list[str]:
    """Tests of a file that compare measured wall time and do not say so."""
    tree = ast.parse(text)
    numbers = numbers_of(tree)
    tellers = {function.name for function in functions(tree) if tells_seconds(function)}
    known = marked(tree)
    return [
        function.name
        for function in functions(tree)
        if function.name.startswith("test_")
        and function.name not in known
        and compares_seconds(function, tellers, numbers)
    ]


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions of a file."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def marked(tree: ast.Module) -> set[str]:
    """Tests that are marked, one by one or as all of the file are."""
    of_all = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) == "pytestmark" for target in node.targets)
    ]
    return {
        function.name
        for function in functions(tree)
        for place in (*function.decorator_list, *of_all)
        if f"pytest.mark.{CLOCK}" in ast.unparse(place)
    }


def tells_seconds(function: ast.FunctionDef) -> bool:
    """Whether a helper returns what it measured."""
    names = measured_names(function, set())
    return not function.name.startswith("test_") and any(
        isinstance(node, ast.Return) and node.value is not None and is_measured(node.value, names)
        for node in ast.walk(function)
    )


def measured_names(function: ast.FunctionDef, tellers: set[str]) -> set[str]:
    """Names of a function that hold a moment or a duration, and functions that give one."""
    names = set(tellers)
    while True:
        found = {
            part.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and is_measured(node.value, names)
            for target in node.targets
            for part in ast.walk(target)
            if isinstance(part, ast.Name)
        }
        if found <= names:
            return names
        names |= found


def is_measured(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression reads a clock, a file's time, or a name of either."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=attr)) if attr in CLOCKS:
                return True
            case ast.Call(func=ast.Name(id="monotonic" | "perf_counter" | "perf_counter_ns")):
                return True
            case ast.Attribute(attr=attr) if attr in FILES:
                return True
            case ast.Name(id=name) if name in names or name in IN_REAL_TIME:
                return True
    return False


def numbers_of(tree: ast.Module) -> dict[str, float]:
    """Names of a file that are plain numbers."""
    return {
        target.id: float(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, int | float)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def compares_seconds(function: ast.FunctionDef, tellers: set[str], numbers: dict[str, float]) -> bool:
    """Whether an assertion bounds them from above or says what they are, or a short wait may end in vain."""
    names = measured_names(function, tellers)
    for node in ast.walk(function):
        match node:
            case ast.Assert(test=test) if any(
                bounds(part, names, numbers) for part in ast.walk(test) if isinstance(part, ast.Compare)
            ):
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in WAITS and is_short(
                node
            ):
                return True
    return False


def is_patient(limit: ast.expr, numbers: dict[str, float]) -> bool:
    """Whether a limit is one of patience, for what else would never come."""
    match limit:
        case ast.Constant(value=int() | float() as seconds):
            return seconds >= LEAST_S
        case ast.Name(id=name):
            return numbers.get(name, 0.0) >= LEAST_S
    return False


def bounds(compared: ast.Compare, names: set[str], numbers: dict[str, float]) -> bool:
    """Whether a comparison may be lost because something took longer."""
    values = [compared.left, *compared.comparators]
    for low, operation, high in zip(values, compared.ops, values[1:], strict=False):
        match operation:
            case ast.Lt() | ast.LtE() if is_measured(low, names) and not is_patient(high, numbers):
                return True
            case ast.Gt() | ast.GtE() if is_measured(high, names) and not is_patient(low, numbers):
                return True
            case ast.Eq() if any("approx(" in ast.unparse(side) for side in (low, high)):
                if is_measured(low, names) or is_measured(high, names):
                    return True
    return False


def is_short(call: ast.Call) -> bool:
    """Whether a wait is given up within seconds."""
    said = [word.value for word in call.keywords if word.arg in {"timeout", "timeout_s", "seconds"}]
    if isinstance(call.func, ast.Name) and call.func.id == "wait_for":
        said += call.args[1:]
    return any(
        isinstance(word, ast.Constant) and isinstance(word.value, int | float) and word.value < LEAST_S
        for word in said
    )
