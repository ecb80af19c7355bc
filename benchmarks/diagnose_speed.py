"""Read a trace of a million events, and say how long it takes and how much memory.

python benchmarks/diagnose_speed.py [--events 1000000]

The trace is a training step's kernels with their launches and operations, packed as profilers pack it.
Bounds: 10 s of computing and 1 GB for a million events.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = (
    "nvjet_hsh_128x256",
    "flash_fwd_kernel",
    "vectorized_elementwise_kernel",
    "ncclDevKernel_AllReduce",
)
STEPS = 10
MESSAGE = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float", "Group size": 8}
READ = """
import resource, sys, time
from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
start = time.process_time()
diagnosis = diagnosed([sys.argv[1]], Flags())
seconds = time.process_time() - start
events = len(diagnosis.job.traces[0].events)
peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"{events:,} events: {seconds:.1f} s of computing, {peak_kb / 1e6:.2f} GB")
sys.exit(seconds > 1e-5 * events or peak_kb > 1e6)
"""


def event(category: str, name: str, thread: int, start: float, lasts: float, **args: object) -> str:
    """One event as Kineto writes it."""
    row = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": lasts,
        "args": args,
    }
    return json.dumps(row)


def write(path: Path, events: int) -> None:
    """A trace of so many events: of each kernel an operation, a launch and a kernel."""
    each, at = events // 3 // STEPS, 1e6
    shapes = [[4096, 4096], [4096, 4096]]
    with gzip.open(path, "wt", compresslevel=1) as stream:
        stream.write('{"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [')
        for step in range(STEPS):
            begun = at
            for number in range(step * each, (step + 1) * each):
                name = KERNELS[number % len(KERNELS)]
                said = MESSAGE if name.startswith("nccl") else {"grid": [132, 1, 1], "block": [384, 1, 1]}
                linked = {"External id": number, "correlation": number}
                rows = (
                    event("cpu_op", "aten::mm", 1, at, 4.0, **{"External id": number, "Input Dims": shapes}),
                    event("cuda_runtime", "cudaLaunchKernel", 1, at + 1, 2.0, cbid=211, **linked),
                    event("kernel", name, 7, at + 9, 8.5, device=0, context=1, stream=7, **linked, **said),
                )
                stream.write("".join(f"{row},\n" for row in rows))
                at += 9.0
            stream.write(event("user_annotation", f"ProfilerStep#{step}", 1, begun, at - begun))
            stream.write(",\n" if step < STEPS - 1 else "]}")


def main() -> int:
    """Write, read in a process of its own, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json.gz"
        write(path, given.events)
        return subprocess.run([sys.executable, "-c", READ, str(path)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
