"""`python -m meshplan` is `plan`; so is the console script."""

from __future__ import annotations

import gc
import os
import signal
import sys

BAD_INPUT = 2
"""As `app.errors.BAD_INPUT`, which cannot be read where `app` is not ours."""
INTERRUPTED = 130
"""As `app.errors.INTERRUPTED`."""
OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""What imports and tables make stays; to look through it at every 700 objects only costs time."""


def main() -> None:
    """Run the command line, or say whose packages stand in its way."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread a core, which nothing needs
    try:
        code = _run()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: Ctrl-C while leaving changes nothing
    except (KeyboardInterrupt, ImportError) as error:  # while importing; a command that runs says it itself
        if isinstance(error, ImportError) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.stderr.write("interrupted\n")
        code = INTERRUPTED
    # Python kills itself at exit if Ctrl-C came within an exec, as of dataclasses; another exec resets that.
    exec("")  # noqa: S102
    gc.freeze()  # the process ends: to look for cycles once more takes a twentieth of a short command
    sys.exit(code)


def _run() -> int:
    """Exit code of the command line; everything is imported here, where Ctrl-C is answered."""
    from meshplan.guard import ForeignPackageError, require_own_packages

    try:
        require_own_packages()
    except ForeignPackageError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    from app.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    main()
