"""A training run of two nodes of which one is killed: it goes on alone, and no loss changes.

    python -m examples.killed_node

Two launchers of `plan run` play the nodes: each with a rank, as `--nnodes 1:2` has it. The second is killed
with its rank (kill -9) once checkpoints are there. Predicted: the other waits ten seconds of silence, while
the next ranks already start, plans for what is left and goes on; the losses are those of a run that nobody
disturbed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from examples.support import report
from executor.launch.membership import SILENT_S
from executor.launch.nodes import loopback
from executor.launch.schedulers import NODE_RANK
from executor.training.settings import METRICS_FILE
from executor.training.worker import RANKS_FOLDER

STEPS, BEFORE, EVERY = 400, 25, 10
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu",
}  # fmt: skip
CLUSTER = """name = "two hosts"
[[nodes]]
gpu = "h100-sxm"
count = {hosts}
gpus_per_node = 1
nics_per_node = 1
nic_bandwidth_bytes_per_s = "400 Gbit/s"
"""
PLAN = ("--sequence-length", "32", "--global-batch-size", "8", "--stack", "meshplan", "--set", "zero_stage=1",
        "--set", "microbatch_size=1")  # fmt: skip


def app(*words: str, **named: str) -> subprocess.Popen[str]:
    """A command of Meshplan."""
    call = [sys.executable, "-P", "-m", "app", *words]
    core = int(named.get(NODE_RANK, "0")) % (os.cpu_count() or 1)
    process = subprocess.Popen(
        call, env={**os.environ, **named}, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if hasattr(os, "sched_setaffinity"):  # nodes that share a machine are given a core each
        os.sched_setaffinity(process.pid, {core})
    return process


def planned(folder: Path, hosts: int) -> Path:
    """The plan of a small model for so many hosts of one GPU."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "cluster.toml").write_text(CLUSTER.format(hosts=hosts))
    plan = folder / f"plan-{hosts}.json"
    words = ("--model", str(folder / "config.json"), "--cluster", str(folder / "cluster.toml"), *PLAN)
    if app("train", *words, "--set", f"dp={hosts}", "--json", "--output", str(plan)).wait():
        raise SystemExit(f"there is no plan for {hosts} hosts")
    return plan


def started(plan: Path, run: Path, **named: str) -> subprocess.Popen[str]:
    """A launcher of one node."""
    words = ("--device", "cpu", "--fp32", "--steps", str(STEPS), "--checkpoint-every", str(EVERY))
    network = ("--interface", loopback(), "--nnodes", "1:2") if named else ()
    return app("run", str(plan), "--run-dir", str(run), *words, *network, **named)


def losses(run: Path) -> dict[int, float]:
    """The loss of each step so far, of its last time."""
    path = run / METRICS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["step"]: row["loss"] for row in rows}


def wait(until: Callable[[], object], limit_s: float = 80.0) -> float:
    """Seconds until something holds."""
    began_s = time.monotonic()
    while not until():
        if time.monotonic() > began_s + limit_s:
            raise SystemExit("the run does not go on")
        time.sleep(0.05)
    return time.monotonic() - began_s


def kill(launcher: subprocess.Popen[str], rank: int) -> None:
    """End a node as a power cut would: its rank and its launcher."""
    for process in (launcher.pid, rank):
        os.kill(process, signal.SIGKILL)
    launcher.wait()


def lines(run: Path) -> int:
    """Steps that were told."""
    path = run / METRICS_FILE
    return path.read_text().count("\n") if path.exists() else 0


def main() -> None:
    """Run, kill, compare with a run on one rank, and print predicted against measured."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        alone, two = planned(folder, 1), planned(folder, 2)
        run, calm = folder / "run", folder / "calm"
        nodes = [started(two, run, **{NODE_RANK: str(node)}) for node in range(2)]
        try:
            start_s = wait(lambda: losses(run))
            wait(lambda: max(losses(run)) >= BEFORE)
            before = lines(run)
            kill(nodes[1], int((run / RANKS_FOLDER / "1").read_text()))
            gap_s = wait(lambda: lines(run) > before + 2)
            wait(lambda: max(losses(run)) > BEFORE + 2 * EVERY)
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
                node.wait()
        disturbed = losses(run)
        true = started(alone, calm)
        wait(lambda: max(losses(calm), default=0) >= max(disturbed))
        true.send_signal(signal.SIGTERM)
        true.wait()
        calm_losses = losses(calm)
    last = max(disturbed)
    report(
        "two nodes, the second killed with its rank",
        [
            ("next step after the kill_s", max(SILENT_S, start_s), gap_s),
            ("steps without a gap", last, len(disturbed)),
            (f"loss of step {BEFORE}", calm_losses[BEFORE], disturbed[BEFORE]),
            (f"loss of step {last}", calm_losses[last], disturbed[last]),
        ],
    )


if __name__ == "__main__":
    main()
