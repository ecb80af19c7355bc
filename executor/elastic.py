"""torchrun without its own reports: ``python -m executor.elastic``, arguments as of torch.distributed.run.

Ranks say in a line why they stop and the launcher says how the run ended; torchrun's log of signals and its
traceback for a failed child would only bury that.
"""

from __future__ import annotations

import logging
import sys

FAILED = 1


def main() -> int:
    """Run torchrun; a failed rank is an exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        run.main(sys.argv[1:])
    except ChildFailedError:
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
