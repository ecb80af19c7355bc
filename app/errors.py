"""How an error leaves the program: three lines on stderr and an exit code, never a traceback.

An `InputError` knows what is wrong, the numbers behind it and the change that fixes it; everything else that
escapes a command is a defect of ours and says so in three lines too.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from app.terminal.streams import WRITE_FAILURES, discard, tell
from topology.base.errors import InputError, NoFeasiblePlanError, PlanChangedError, shortened
from topology.base.files import LONGEST_PATH

ANSWERED = 0
NO_FEASIBLE_PLAN = 1
"""The answer is no; also to whether a plan is what it says it is."""
BAD_INPUT = 2
INTERNAL_ERROR = 3
FAILED_AUDIT = 4
"""A job that will not fit, or that is further from the best than was allowed."""
INTERRUPTED = 130
BROKEN_PIPE = 0
"""The reader of our output went away: it has what it wanted."""


def three_lines(error: InputError) -> str:
    """Give the text of an error: what, the numbers, the change that fixes it; one line each.

    >>> print(three_lines(InputError(what="unknown model 71b", cause="70 models are known", fix="try 70b")))
    error: unknown model 71b
    cause: 70 models are known
    help:  try 70b
    """
    return f"error: {_line(error.what)}\ncause: {_line(error.cause)}\nhelp:  {_line(error.fix)}"


Refused = Callable[[InputError, int], None]
"""What else is done with an error and its exit code, such as to write it for a program."""


def run_guarded(action: Callable[[], int], *, debug: bool, refused: Refused | None = None) -> int:
    """Run a command and turn whatever escapes it into an exit code, explained on stderr.

    Args:
        action: The command.
        debug: Whether a defect shows its traceback.
        refused: Called with what is wrong, before the three lines say so.
    """
    try:
        return action()
    except InputError as error:
        no = isinstance(error, NoFeasiblePlanError | PlanChangedError)
        return _refused(error, NO_FEASIBLE_PLAN if no else BAD_INPUT, refused)
    except KeyboardInterrupt:
        return interrupted()
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last door: a defect is reported as one, not as a traceback
        if of_interrupt(error):
            return interrupted()
        if isinstance(error, OSError) and error.filename is None and error.errno in WRITE_FAILURES:
            discard(sys.stdout)
            tell(f"{three_lines(unwritten(error))}\n")
            return BAD_INPUT
        if isinstance(error, OSError) and error.filename is not None and error.errno in PATH_FAILURES:
            return _refused(unusable(error), BAD_INPUT, refused)
        if debug:
            tell(traceback.format_exc())
        return _refused(defect(error), INTERNAL_ERROR, refused)


def _refused(error: InputError, exit_code: int, refused: Refused | None) -> int:
    """Say what is wrong in three lines; returns the exit code."""
    if refused is not None:
        try:
            refused(error, exit_code)
        except OSError:  # nobody reads it, or the disk is full: stderr and the exit code say the same
            discard(sys.stdout)
    tell(f"{three_lines(error)}\n")
    return exit_code


def of_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C lies behind an error: a C extension that it meets while it starts fails to import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def interrupted() -> int:
    """Say that the user stopped us."""
    tell("interrupted\n")
    return INTERRUPTED


PATH_FAILURES = frozenset(
    (
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO),
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
    )
)
"""What a system says of a path that somebody named, or of the disk that it is on: no defect of ours."""


def unusable(error: OSError) -> InputError:
    """Describe a path that the system does not take."""
    name = shortened(str(error.filename), LONGEST_PATH)
    return InputError(
        what=f"{name} cannot be used",
        cause=error.strerror or str(error),
        fix="check the path, its permissions and the disk that it is on",
    )


def unwritten(error: OSError) -> InputError:
    """Describe an answer that stdout did not take."""
    return InputError(
        what="the answer cannot be written",
        cause="stdout is closed" if error.errno == errno.EBADF else f"stdout: {error.strerror}",
        fix="free space or open stdout, or write elsewhere with --output FILE",
    )


LONGEST_DEFECT = 1000
"""Letters of what an exception says that are shown: some hold a whole answer."""


class DefectError(InputError):
    """Ours, not of the input."""


def defect(error: Exception) -> DefectError:
    """Describe an exception that no input should be able to raise."""
    place = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(place[-1].filename).name}:{place[-1].lineno}" if place else ""
    return DefectError(
        what="this is a defect in meshplan, not in your input",
        cause=f"{type(error).__name__}: {shortened(str(error), LONGEST_DEFECT)}{where}",
        fix="run the same command with --debug and report the traceback",
    )


def _line(text: str) -> str:
    """Keep a message on one line and free of control characters (names come from files we did not write)."""
    flat = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in flat)
