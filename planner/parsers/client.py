"""The engines' own parsers asked about files written for them, many in one go.

An engine is looked for in this interpreter and in the one that `MESHPLAN_PARSERS` names
(`tools/build_parsers.py` makes one). It runs in a process of its own: engines import for seconds and keep
state.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from planner.engines.contract import Contract
from planner.engines.fields import Facts
from planner.engines.formats import Files
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

VARIABLE: Final = "MESHPLAN_PARSERS"
PACKAGES: Final[Mapping[str, str]] = {
    "megatron": "megatron-core",
    "megatron-bridge": "megatron-bridge",
    "torchtitan": "torchtitan",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}
"""Distribution of each engine that has a parser."""
SERVERS: Final[Mapping[str, str]] = {"vllm": "vllm", "sglang": "sglang"}
"""The same of engines that serve."""
OTHERS: Final[Mapping[str, str]] = {"dynamo": "ai-dynamo", "triton": "tritonclient"}
"""The same of what runs them."""
PROGRAMS: Final[Mapping[str, str]] = {name: name for name in (*PACKAGES, *SERVERS)} | {
    "megatron-bridge": "bridge"
}
START_S: Final = 12.0
POLL_S: Final = 0.2
TIMEOUT_S: Final = 120.0
HOW: Final = f"build their environment (tools/build_parsers.py) and name its interpreter in {VARIABLE}"
_INSTALLED = "import importlib.metadata as m, sys; print(*{d.metadata['Name'] for d in m.distributions()})"


@functools.cache
def _installed(python: str) -> frozenset[str]:
    """Distributions of an interpreter, in lower case with hyphens; none where it cannot be started."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _INSTALLED], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(done.stdout.lower().replace("_", "-").split())


def interpreter(engine: str) -> str | None:
    """The interpreter that has an engine; None where none of them has it."""
    pythons = (os.environ.get(VARIABLE, ""), sys.executable)
    needed = {{**PACKAGES, **SERVERS, **OTHERS}[engine], "torch"}
    return next((python for python in pythons if python and needed <= _installed(python)), None)


def case_of(contract: Contract, files: Files, facts: Facts, gpu: Gpu) -> dict[str, Any]:
    """What an engine's parser is told of one plan: files, and the environment that goes with them."""
    environment = {
        variable.name: variable.value for variable in contract.environment if variable.needed(facts, gpu)
    }
    return {
        "files": dict(files),
        "gpus": facts["cluster.num_gpus"],
        "capability": generation_of(gpu).compute_capability,
        "gpu": f"NVIDIA {gpu.name.split('-')[0].upper()}",
        "environment": environment,
        "model": {name.removeprefix("model."): facts[name] for name in _SHAPE},
    }


_SHAPE = tuple(
    f"model.{name}"
    for name in (
        "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "num_experts", "num_experts_per_token", "moe_intermediate_size", "kv_lora_rank",
    )
)  # fmt: skip


def answers(
    engine: str,
    cases: Sequence[Mapping[str, Any]],
    python: str,
    alive: Callable[[float], None] = lambda _: None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[dict[str, Any]]:
    """What the engine derives of each case, or why it stopped, in their order.

    Args:
        engine: Its name.
        cases: From `case_of`.
        python: An interpreter that has it.
        alive: Told a few times a second which share of the cases is answered.
        timeout_s: Seconds for all of them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cases").write_text("".join(f"{json.dumps(case)}\n" for case in cases), encoding="utf-8")
        main = Path(__file__).with_name("main.py")
        with (
            (folder / "cases").open("rb") as given,
            (folder / "answers").open("wb") as buffered_writer,
            (folder / "errors").open("wb") as value,
        ):
            process = subprocess.Popen(
                [python, "-P", str(main), PROGRAMS[engine]],
                stdin=given,
                stdout=buffered_writer,
                stderr=value,
                cwd=name,
            )
            _wait(process, folder / "answers", len(cases), alive, timeout_s)
        lines = (folder / "answers").read_text(encoding="utf-8").splitlines()
        done: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if len(done) < len(cases):
            last = (folder / "errors").read_text(encoding="utf-8").strip().splitlines()[-1:]
            why = {"error": last[0] if last else f"no answer in {timeout_s:.0f} s"}
            done += [why] * (len(cases) - len(done))
    return done


def _wait(
    process: subprocess.Popen[bytes], out: Path, wanted: int, alive: Callable[[float], None], timeout_s: float
) -> None:
    """Until it ends or its time is over."""
    until = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
            process.wait()
            return
        time.sleep(POLL_S)
        alive(out.read_bytes().count(b"\n") / wanted)


def faults(facts: Facts, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """What an engine refuses, or derives otherwise than the plan."""
    if "error" in answer:
        return (f"its own parser refuses: {answer['error']}",)
    result = {name: tuple(x) if isinstance(x, list) else x for name, x in answer["derived"].items()}
    return tuple(
        f"{name} = {facts[name]}, its own parser derives {there}"
        for name, there in result.items()
        if facts[name] != there
    )
