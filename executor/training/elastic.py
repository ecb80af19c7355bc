"""torchrun without its own reports: ``python -m executor.training.elastic``, arguments as of torchrun.

Ranks say in a line why they stop and the launcher says how the run ended; torchrun's log of signals and its
tracebacks for a failed child or a signal would only bury that.
"""

from __future__ import annotations

import logging
import signal
import sys

FAILED, ENDED_BY_SIGNAL = 1, 128
RESTART_GRACE_S = 5  # a rank whose peer has died can finish nothing: its collective would only hang


def main() -> int:
    """Run torchrun; a failed rank, or a signal that ended it, is an exit code.

    Slurm may warn every process of a step with SIGUSR1: the launcher passes it on as SIGTERM, once.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from executor.torch_internals import shorten_restarts

    shorten_restarts(RESTART_GRACE_S)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        run.main(sys.argv[1:])
    except ChildFailedError:
        return FAILED
    except SignalException as ended:
        return ENDED_BY_SIGNAL + int(ended.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
