"""`python -m meshplan` is `plan`; so is the console script."""

from __future__ import annotations

import sys

from meshplan.guard import ForeignPackageError, require_own_packages

BAD_INPUT = 2
"""As `app.errors.BAD_INPUT`, which cannot be read where `app` is not ours."""


def main() -> None:
    """Run the command line, or say whose packages stand in its way."""
    try:
        require_own_packages()
    except ForeignPackageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(BAD_INPUT)
    from app.cli import main as run

    run()


if __name__ == "__main__":
    main()
