"""How long a run needs from the kill −9 of a rank to its next step.

`python benchmarks/bench_recovery.py [--repeats N]` trains a small model on two gloo processes, kills one, and
waits for the first line of metrics that follows; medians of several whole runs.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from executor.training.settings import METRICS_FILE
from executor.training.worker import RANKS_FOLDER

ASKED_S = 30.0
PATIENCE_S = 300.0
STEPS = 40
STEPS_BEFORE = 6
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
WORDS = (
    f"run --gpus 2 --sequence-length 32 --global-batch-size 8 --set dp=2 --device cpu --steps {STEPS} "
    "--checkpoint-every 2"
).split()


def lines(folder: Path) -> int:
    """Steps reported so far, repeated ones included."""
    path = folder / METRICS_FILE
    return len(path.read_text().splitlines()) if path.exists() else 0


def process_of(folder: Path, rank: int) -> int:
    """Process that a rank wrote down when it started."""
    text = (folder / RANKS_FOLDER / str(rank)).read_text()
    return int(text) if text else 0


def wait_until(happened: Callable[[], bool]) -> None:
    """Look every few milliseconds whether something has happened."""
    limit = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > limit:
            raise TimeoutError(f"the run did not come so far within {PATIENCE_S:.0f} s")
        time.sleep(0.02)


def recovery_s(folder: Path) -> float:
    """Seconds from killing a rank of a fresh run to the next reported step."""
    config, run = folder / "config.json", folder / "run"
    config.write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "app", *WORDS, "--model", str(config), "--run-dir", str(run)]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: lines(run) >= STEPS_BEFORE)
        victim = process_of(run, 1)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: process_of(run, 1) not in (0, victim))
        before = lines(run)
        wait_until(lambda: lines(run) > before)
        return time.monotonic() - killed
    finally:
        training.terminate()
        training.wait(timeout=PATIENCE_S)


def main() -> None:
    """Print asked against measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    found = []
    for _ in range(parser.parse_args().repeats):
        with tempfile.TemporaryDirectory() as folder:
            found.append(recovery_s(Path(folder)))
    print(f"recovery after kill -9: asked {ASKED_S:.0f} s, measured {statistics.median(found):.1f} s")


if __name__ == "__main__":
    main()
