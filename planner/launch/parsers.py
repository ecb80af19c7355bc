"""An engine's own parser asked about files written for it, where the engine is installed.

It runs in an interpreter of its own, in an empty folder: engines import for seconds and keep state.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from planner.engines.contract import Contract
from planner.engines.formats import Files
from planner.engines.own import OWN
from planner.plan import Plan

TIMEOUT_S = 120.0

TORCHTITAN = """
import sys, types
from importlib.util import find_spec
from unittest.mock import MagicMock
if find_spec("triton") is None:  # as on a CPU; kernels are imported beside the converters
    sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = MagicMock()
from torchtitan.config import Configurable
from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig
# to build one asks for a GPU
Configurable.Config.build = lambda self: types.SimpleNamespace(convert=lambda model: model)
scope = {}
exec(open(sys.argv[1]).read(), scope)
config = scope["apply_plan"](types.SimpleNamespace(
    parallelism=ParallelismConfig(), training=TrainingConfig(), compile=CompileConfig(),
    activation_checkpoint=None, model_spec=types.SimpleNamespace(model=None),
))
p = config.parallelism
ParallelismConfig(**{name: getattr(p, name) for name in p.__dataclass_fields__})
"""
ACCELERATE = """
import sys
from accelerate.commands.config.config_args import load_config_from_file
assert load_config_from_file(sys.argv[1]).num_processes == int(sys.argv[2])
"""
DEEPSPEED = """
import json, sys, types
import deepspeed.runtime.config as runtime
runtime.dist.get_rank = lambda: 0
mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: int(sys.argv[3]))
runtime.DeepSpeedConfig(json.load(open(sys.argv[1])), mpu)
"""
PROGRAMS: Mapping[str, str] = {"torchtitan": TORCHTITAN, "accelerate": ACCELERATE, "deepspeed": DEEPSPEED}
"""By engine: a program that fails where the engine does not take the file it is given, for so many GPUs and
data-parallel ranks. Megatron's parser asks for a GPU and is held against exports by the tests."""


def parsed(contract: Contract, files: Files, plan: Plan) -> tuple[bool | None, str]:
    """Whether the engine's own parser takes its files, in a word and in words; None where it is not here."""
    engine = contract.engine
    if engine == OWN.engine:
        return True, "that is how it reads them"
    if engine not in PROGRAMS:
        return None, f"{engine}'s own parser does not run without a GPU"
    if find_spec(engine) is None:
        return None, f"{engine} is not installed here"
    fault = refused(PROGRAMS[engine], files, (str(plan.layout.num_gpus), str(plan.layout.dp)))
    return not fault, f"its own parser refuses: {fault}" if fault else "its own parser takes it"


def refused(program: str, files: Files, arguments: tuple[str, ...], python: str = sys.executable) -> str:
    """The last line of what a program says against the first of some files; empty if it takes it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        words = [python, "-P", "-c", program, next(iter(files)), *arguments]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {TIMEOUT_S:.0f} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")
