"""Every command of docs/scenarios.md is run, and what the page says of its answer holds."""

import json
import operator
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli import commands
from tests.fork_server import Forking, possible

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^```bash\nplan (.+?)\n```$", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"^- `([a-z_0-9.]+)` (=|<|>) (.+)$", re.MULTILINE)
STEPS = re.compile(r"\((\d+) against (\d+) ms\)")
"""Steps with the last setting of a section's command, and without it."""
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A section of the page: its one command, and what it says of the answer."""

    title: str
    words: list[str]
    claims: list[tuple[str, str, str]]
    text: str


def scenarios() -> list[Scenario]:
    """What the page has."""
    found = []
    for title, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        [command] = COMMAND.findall(text)
        found.append(Scenario(title=title, words=shlex.split(command), claims=CLAIM.findall(text), text=text))
    return found


def at(document: Any, place: str) -> Any:
    """The value at a dotted place; numbers count from 0."""
    for step in place.split("."):
        document = document[int(step) if step.isdigit() else step]
    return document


@cache
def answer_of(*words: str) -> Any:
    """The document of a command, which is run once for all that is said of it."""
    answer = commands.plan(*words, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module", autouse=True)
def _forked_tracers() -> Iterator[None]:
    """Fork the processes that trace a module from one that has imported torch, as tests of the executor do."""
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # which one of those may have replaced
    forking = Forking()
    if possible():
        forking.install()
    yield
    forking.remove()
    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]  # same


def test_the_page_has_the_scenarios_and_each_says_something() -> None:
    """A section without a claim would be run for nothing."""
    assert len(scenarios()) >= 7
    assert all(scenario.claims for scenario in scenarios())


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.title)
def test_what_the_page_says_of_a_command_holds(scenario: Scenario) -> None:
    """The answer as JSON, at the places that the page names."""
    if "--module" in scenario.words:
        pytest.importorskip("torch")
    document = answer_of(*scenario.words)
    missed = [
        f"{place} is {at(document, place)}, not {relation} {value}"
        for place, relation, value in scenario.claims
        if not RELATIONS[relation](at(document, place), json.loads(value))
    ]
    assert missed == []


def step_ms(words: list[str]) -> str:
    """Milliseconds of the step that a command plans, as the page writes them."""
    return f"{1e3 * answer_of(*words)['estimate']['step_time_s']:.0f}"


@pytest.mark.parametrize(
    "scenario", [each for each in scenarios() if STEPS.search(each.text)], ids=lambda scenario: scenario.title
)
def test_steps_that_the_page_compares_are_those_of_its_command(scenario: Scenario) -> None:
    """With and without the last setting; a red test prints the new numbers."""
    pytest.importorskip("torch")
    *before, flag, _ = scenario.words
    assert flag == "--set"
    now = f"({step_ms(scenario.words)} against {step_ms(before)} ms)"
    assert [match[0] for match in STEPS.finditer(scenario.text)] == [now]


def test_the_page_compares_steps() -> None:
    """The pattern finds what it is for."""
    assert any(STEPS.search(scenario.text) for scenario in scenarios())
