"""What went wrong, why, and the change that fixes it: the one exception for every wrong input."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

LONGEST_SHOWN = 100
"""Characters of somebody's value that a message repeats."""


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return a text, or its beginning where it is too long to stand in a message.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(value: object) -> str:
    """Return a value as Python writes it, short enough for a message.

    >>> shown("70b"), shown(10**5000)
    ("'70b'", 'an integer of thousands of digits')
    """
    try:
        return shortened(repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "an integer of thousands of digits"


class LibraryPanicError(RuntimeError):
    """A library ended a call by an exception that `except Exception` does not catch."""


@contextlib.contextmanager
def panics_raised() -> Iterator[None]:
    """Raise what a library says through a `BaseException` as a `LibraryPanicError`, which callers catch.

    Rust's panics and torch's `CheckpointException` are such; those that ask the process to end pass.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise LibraryPanicError(shortened(text)) from error


class InputError(Exception):
    """A wrong input, answered in three lines; the command line turns it into exit code 2."""

    def __init__(self, what: str, cause: str, fix: str) -> None:
        """Keep the three lines apart, so that a caller can print, serialise or test each."""
        super().__init__(what, cause, fix)
        self.what = what
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        """Return the three-line error."""
        return f"error: {self.what}\ncause: {self.cause}\nhelp: {self.fix}"


class DamagedFileWarning(UserWarning):
    """A file that we keep for the user cannot be read, and is passed over."""


class UnknownNameError(InputError):
    """A name that matches nothing, or several things; `suggestions` lists the candidates, best first."""

    def __init__(self, what: str, cause: str, fix: str, suggestions: Sequence[str] = ()) -> None:
        """Keep the suggestions beside the three lines."""
        super().__init__(what, cause, fix)
        self.suggestions = tuple(suggestions)


class AmbiguousNameError(UnknownNameError):
    """A name that several things have, the `suggestions`: what lists things answers with those."""

    def __init__(self, kind: str, name: str, meant: Sequence[str]) -> None:
        """Name them all."""
        cause = f"it matches {', '.join(meant)}"
        super().__init__(f"{kind} {shown(name)} is ambiguous", cause, "write one of these in full", meant)


class NoFeasiblePlanError(InputError):
    """The question is well put and its answer is no; the command line turns it into exit code 1.

    `answer` is that no as data: `planner.search.infeasible.Infeasible` of a search, the tuple of
    `planner.law.Violation` of a given layout, `planner.serving.plan.ServingInfeasible` of a fleet.
    """

    def __init__(self, what: str, cause: str, fix: str, answer: Any = None) -> None:
        """Keep the answer beside the three lines."""
        super().__init__(what, cause, fix)
        self.answer = answer


class PlanChangedError(InputError):
    """A plan whose numbers are others here; the command line turns it into exit code 1.

    `differences` names each of them with what the file says and what is estimated here.
    """

    def __init__(self, what: str, cause: str, fix: str, differences: Sequence[str] = ()) -> None:
        """Keep the differences beside the three lines."""
        super().__init__(what, cause, fix)
        self.differences = tuple(differences)
