"""Random kills −9 of a run of `plan run`: does it go on each time, and does it compute what it would have?

`python benchmarks/kills.py [--kills 100] [--seed 0] [--folder DIR]` trains a small model on two gloo
processes. It kills a rank or the launcher (which is then started again, as a scheduler would) while the run
steps, writes a checkpoint, starts, or plans again for a rank that is lost for good. Then it trains without
any kill and compares: every step's loss, every step and sample once. Two runs: in the first no plan changes,
and losses are asked to be equal to the last bit; in the second they are compared within rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from executor.training.settings import METRICS_FILE, STATUS_FILE
from executor.training.worker import RANKS_FOLDER

PATIENCE_S = 240.0
RANKS, BATCH, LOST_AFTER = 2, 8, 4
ROUNDING = 1e-5  # of losses, where a part of the run was computed on another number of ranks
CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
WORDS = (
    "--sequence-length", "128", "--device", "cpu", "--fp32", "--checkpoint-every", "5", "--lr-schedule",
    "constant", "--learning-rate", "1e-3", "--warmup-steps", "0", "--min-gpus", "1",
)  # fmt: skip
SAME_PLAN = (
    ("rank", "stepping"), ("rank", "saving"), ("rank", "starting"),
    ("launcher", "stepping"), ("launcher", "saving"), ("launcher", "starting"),
)  # fmt: skip
NEW_PLAN = (("rank", "lost for good"), ("launcher", "re-planning"))
Kind = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One kill: seconds to the next reported step, None where none came."""

    kind: Kind
    recovered_s: float | None


class Run:
    """A run under one launcher, and what can be done to it."""

    def __init__(self, folder: Path, num_ranks: int = RANKS, batch: int = BATCH) -> None:
        self.config, self.folder = folder / "config.json", folder / "run"
        self.num_ranks, self.batch = num_ranks, batch
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps(CONFIG))
        self.log = (folder / "said.txt").open("a")
        self.launcher: subprocess.Popen[bytes] | None = None

    def start(self, steps: int = 1_000_000) -> None:
        """Start the launcher, which resumes what is there."""
        self.launcher = self.launched(steps)

    def launched(
        self, steps: int, *words: str, job: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A launcher of this run, as one that a scheduler has told of a job."""
        command = [sys.executable, "-m", "app", "run", *WORDS, "--steps", str(steps), *words]
        command += ["--gpus", str(self.num_ranks), "--set", f"dp={self.num_ranks}"]
        command += ["--global-batch-size", str(self.batch)]
        command += ["--model", str(self.config), "--run-dir", str(self.folder)]
        return subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "100", **(job or {})},
        )

    def ended(self) -> bool:
        """Whether the launcher has ended."""
        return self.launcher is None or self.launcher.poll() is not None

    def kill_launcher(self) -> None:
        """Kill the launcher, and start another one once nothing of it is left."""
        assert self.launcher is not None
        self.launcher.kill()
        self.launcher.wait()
        self.start()

    def stop(self) -> None:
        """Ask for an orderly end."""
        assert self.launcher is not None
        self.launcher.terminate()
        self.launcher.wait(PATIENCE_S)

    def rank(self, number: int) -> int:
        """Process of a rank, 0 where there is none that lives."""
        try:
            process = int((self.folder / RANKS_FOLDER / str(number)).read_text() or 0)
            return process if process and Path(f"/proc/{process}").exists() else 0
        except (OSError, ValueError):
            return 0

    def ranks(self) -> list[int]:
        """Numbers of the ranks that live."""
        return [number for number in range(self.num_ranks) if self.rank(number)]

    def written(self) -> int:
        """Bytes of metrics so far: they grow with every step."""
        path = self.folder / METRICS_FILE
        return path.stat().st_size if path.exists() else 0

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self.folder / "checkpoints").glob(".writing-*"))

    def rows(self) -> list[dict[str, float]]:
        """Every reported step, in the order of the reports; a line that a kill has cut is none."""
        found = []
        for line in (self.folder / METRICS_FILE).read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


def wait_until(happened: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Whether something happened in time."""
    limit = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True


def kill_rank(run: Run, number: int | None, chance: random.Random) -> None:
    """Kill one rank, as soon as there is one."""
    wait_until(lambda: bool(run.rank(number) if number is not None else run.ranks()))
    while True:
        process = run.rank(chance.choice(run.ranks() or [0]) if number is None else number)
        if process:
            os.kill(process, signal.SIGKILL)
            return


def all_end(run: Run) -> None:
    """Wait until no rank is left."""
    wait_until(lambda: not run.ranks())


def lose_rank(run: Run, chance: random.Random) -> None:
    """Kill the last rank again and again, as a GPU that is gone would: until no restart is left."""
    number = max(run.ranks())
    for _ in range(LOST_AFTER):
        wait_until(lambda: run.rank(number) != 0)
        time.sleep(chance.uniform(0.0, 1.0))
        kill_rank(run, number, chance)
        all_end(run)


def strike(run: Run, kind: Kind, chance: random.Random) -> float:
    """Kill what the kind says, when it says, and see its ranks end; the moment of the kill."""
    who, when = kind
    if when in ("lost for good", "re-planning"):
        lose_rank(run, chance)
        time.sleep(chance.uniform(0.0, 1.5) if who == "launcher" else 0.0)
    elif when == "starting":  # again, before the ranks that follow a first kill have taken a step
        kill_rank(run, None, chance)
        all_end(run)
        wait_until(lambda: bool(run.ranks()))
        time.sleep(chance.uniform(0.0, 3.0))
    elif when == "saving":
        wait_until(run.saving)
        time.sleep(chance.uniform(0.0, 0.02))
    else:
        time.sleep(chance.uniform(0.0, 0.5))
    struck_s, before = time.monotonic(), {run.rank(number) for number in run.ranks()}
    if who == "launcher":
        run.kill_launcher()
    elif when != "lost for good":
        kill_rank(run, None, chance)
    wait_until(lambda: not before & {run.rank(number) for number in run.ranks()})
    return struck_s


def disturbed(run: Run, kinds: list[Kind], chance: random.Random) -> list[Incident]:
    """Run with a kill of each kind, one after the other has been recovered from."""
    found = []
    run.start()
    wait_until(lambda: run.written() > 0)
    for count, kind in enumerate(kinds, start=1):
        struck_s = strike(run, kind, chance)
        since = run.written()
        went_on = wait_until(lambda since=since: run.written() > since or run.ended()) and not run.ended()  # type: ignore[misc]
        took_s = time.monotonic() - struck_s
        found.append(Incident(kind=kind, recovered_s=took_s if went_on else None))
        sys.stderr.write(
            f"{count}/{len(kinds)} {' '.join(kind)}: {took_s:.1f} s{'' if went_on else ' LOST'}\n"
        )
        if not went_on:
            run.start()
            wait_until(lambda since=since: run.written() > since)  # type: ignore[misc]
        if kind in NEW_PLAN and len(run.ranks()) < run.num_ranks:  # a start has all ranks again
            run.kill_launcher()
            wait_until(lambda: len(run.ranks()) == run.num_ranks)
        since = run.written()
        wait_until(lambda since=since: run.written() > since)  # type: ignore[misc]
        time.sleep(chance.uniform(0.2, 2.0))
    run.stop()
    return found


def faults_of(run: Run, undisturbed: Run) -> tuple[list[str], float]:
    """Steps and samples that are not once in the history of a run, and the largest difference of a loss."""
    rows, wanted = run.rows(), {int(row["step"]): row["loss"] for row in undisturbed.rows()}
    wrong, last = [], 0
    for row in rows:
        step = int(row["step"])
        if step > last + 1:
            wrong.append(f"step {last} is followed by {step}")
        if row["samples"] != step * run.batch:
            wrong.append(f"step {step} has seen {row['samples']} samples")
        last = step
    history = {int(row["step"]) for row in rows}
    missing = set(range(1, max(history) + 1)) - history
    wrong += [f"{len(missing)} steps were never reported"] if missing else []
    gap = max(abs(row["loss"] - wanted[int(row["step"])]) / abs(wanted[int(row["step"])]) for row in rows)
    return wrong, gap


def campaign(run: Run, twin: Run, kinds: list[Kind], incidents: list[Incident], most: float) -> bool:
    """A disturbed run and its undisturbed twin, as a table; whether all is as asked."""
    steps = max(int(row["step"]) for row in run.rows())
    twin.start(steps)
    assert twin.launcher is not None
    twin.launcher.wait()
    wrong, gap = faults_of(run, twin)
    print(f"| {'killed':8} | {'while':13} | kills | recovered | median s | longest s |")
    print("|---|---|---|---|---|---|")
    for kind in dict.fromkeys(kinds):
        mine = [one.recovered_s for one in incidents if one.kind == kind]
        took = [one for one in mine if one is not None]
        spread = f"{statistics.median(took):8.1f} | {max(took):9.1f}" if took else f"{'-':>8} | {'-':>9}"
        print(f"| {kind[0]:8} | {kind[1]:13} | {len(mine):5} | {len(took):9} | {spread} |")
    lost = sum(one.recovered_s is None for one in incidents)
    state = json.loads((run.folder / STATUS_FILE).read_text())["state"]
    print(
        f"{len(incidents)} kills, {lost} not recovered; {steps} steps, {len(run.rows()) - steps} done again; "
        f"largest relative difference of a loss {gap:.1e} (asked {most:.0e}); ended {state}; "
        f"{'; '.join(wrong[:3]) or 'each step and sample once'}\n",
        flush=True,
    )
    return not lost and not wrong and gap <= most


def main() -> int:
    """Print what was killed and what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    again = max(len(NEW_PLAN), asked.kills // 5)
    same = [SAME_PLAN[place % len(SAME_PLAN)] for place in range(asked.kills - again)]
    new = [NEW_PLAN[place % len(NEW_PLAN)] for place in range(again)]
    chance.shuffle(same)
    with tempfile.TemporaryDirectory() as own:
        good = []
        for name, kinds, most in (("same-plan", same, 0.0), ("new-plan", new, ROUNDING)):
            folder = (asked.folder or Path(own)) / name
            run, twin = Run(folder / "disturbed"), Run(folder / "undisturbed")
            good.append(campaign(run, twin, kinds, disturbed(run, kinds, chance), most))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
