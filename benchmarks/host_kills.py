"""Random kills −9 of whole hosts of a run: do the others go on, do they come back, and is it the same run?

`python benchmarks/host_kills.py [--kills 24] [--seed 0] [--folder DIR]` trains a small model under four
launchers, each a host of one rank, as Slurm would number them. A host's launcher and rank are killed
together, while the run steps, writes a checkpoint, starts again after a killed rank, or plans again after
another host was lost (then the one that plans is killed). The others go on with a plan for fewer hosts; what
was killed is started again, joins, and the next is killed; a host that does not join, or a next step
after more than 30 s, is not recovered from. Then one launcher trains without any kill, and
every step's loss, step and sample are compared, within rounding. A run is disturbed six times and then ends,
as rounding grows once the loss is flat: undisturbed runs on two and on four ranks are 2e-7 apart until step
300, 1e-3 at step 500.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills import PATIENCE_S, ROUNDING, Incident, Kind, Run, all_end, campaign, kill_rank, wait_until

MOST_OF_A_RUN = 6
HOSTS, BATCH = 4, 12  # a batch that four, three, two hosts and one can share
SILENT_S, ASKED_S = 10.0, 30.0  # seconds: after which a host is gone, and to the others' next step
KINDS: tuple[Kind, ...] = (
    ("host", "stepping"),
    ("host", "saving"),
    ("host", "starting"),
    ("host", "re-planning"),
)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": str(HOSTS), "SLURM_STEP_TASKS_PER_NODE": f"1(x{HOSTS})"}


class Hosts(Run):
    """A run of several launchers on this machine, each of which plays a host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, HOSTS, BATCH)
        self.hosts: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, steps: int = 1_000_000) -> None:
        """Start a launcher on every host that has none."""
        for host in range(HOSTS):
            if host not in self.hosts or self.hosts[host].poll() is not None:
                job = {**SLURM, "SLURM_NODEID": str(host)}
                self.hosts[host] = self.launched(steps, "--interface", "lo", job=job)

    def ended(self) -> bool:
        """Whether no launcher is left."""
        return all(launcher.poll() is not None for launcher in self.hosts.values())

    def stop(self) -> None:
        """Ask all for an orderly end."""
        for launcher in self.hosts.values():
            launcher.terminate()
        for launcher in self.hosts.values():
            launcher.wait(PATIENCE_S)

    def living(self) -> list[int]:
        """Hosts whose launcher lives."""
        return [host for host, launcher in self.hosts.items() if launcher.poll() is None]

    def kill(self, host: int) -> None:
        """Kill the launcher of a host and all that it started, at one moment."""
        launcher = self.hosts[host]
        launcher.send_signal(signal.SIGSTOP)  # it starts nothing more
        for process in [launcher.pid, *_children(launcher.pid)]:
            os.kill(process, signal.SIGKILL)
        launcher.wait()


def _children(process: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def strike(run: Hosts, kind: Kind, chance: random.Random) -> float:
    """Kill a host when the kind says; the moment of the last kill."""
    when = kind[1]
    if when == "starting":
        kill_rank(run, None, chance)
        all_end(run)
        wait_until(lambda: bool(run.ranks()))
        time.sleep(chance.uniform(0.0, 3.0))
    elif when == "saving":
        wait_until(run.saving)
        time.sleep(chance.uniform(0.0, 0.02))
    elif when == "re-planning":
        run.kill(chance.choice(run.living()))
        time.sleep(SILENT_S + chance.uniform(-1.0, 3.0))
    else:
        time.sleep(chance.uniform(0.0, 0.5))
    run.kill(min(run.living()) if when == "re-planning" else chance.choice(run.living()))  # the lowest plans
    return time.monotonic()


def disturbed(run: Hosts, kinds: list[Kind], chance: random.Random) -> list[Incident]:
    """Run with a kill of each kind, the next when all hosts are back."""
    found = []
    run.start()
    wait_until(lambda: run.written() > 0)
    for count, kind in enumerate(kinds, start=1):
        struck_s = strike(run, kind, chance)
        time.sleep(0.5)  # a line that was on its way
        since = run.written()
        went_on = wait_until(lambda since=since: run.written() > since or run.ended()) and not run.ended()  # type: ignore[misc]
        took_s = time.monotonic() - struck_s
        run.start()
        whole = wait_until(lambda: len(run.ranks()) == HOSTS)
        since = run.written()
        whole = wait_until(lambda since=since: run.written() > since) and whole  # type: ignore[misc]
        said = " LOST" if not went_on else " NOT JOINED" if not whole else " LATE" if took_s > ASKED_S else ""
        found.append(Incident(kind=kind, recovered_s=None if said else took_s))
        sys.stderr.write(f"{count}/{len(kinds)} {' '.join(kind)}: {took_s:.1f} s{said}\n")
        time.sleep(chance.uniform(0.2, 2.0))
    run.stop()
    return found


def main() -> int:
    """Print what was killed and what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    kinds = [KINDS[place % len(KINDS)] for place in range(asked.kills)]
    chance.shuffle(kinds)
    good = []
    with tempfile.TemporaryDirectory() as own:
        for number, these in enumerate(
            [kinds[at : at + MOST_OF_A_RUN] for at in range(0, len(kinds), MOST_OF_A_RUN)]
        ):
            folder = (asked.folder or Path(own)) / str(number)
            run, twin = Hosts(folder / "disturbed"), Run(folder / "undisturbed", HOSTS, BATCH)
            good.append(campaign(run, twin, these, disturbed(run, these, chance), ROUNDING))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
