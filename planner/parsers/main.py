"""The program that an engine's interpreter runs: cases in, answers out, one JSON line each.

    python main.py ENGINE < CASES > ANSWERS

A case is an object with `files`, `gpus`, the name of one as `gpu` and its `capability`, `environment` and
`model`; its answer has `derived`, what the engine made of the files by canonical field, or `error`, why it
stopped. Answers come in the order of the cases as they are found. What the engine prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Case: TypeAlias = Mapping[str, Any]
Derive: TypeAlias = Callable[[Case], dict[str, Any]]
SET_BY_PLANS = ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS")


def answer(derive: Derive, case: Case) -> dict[str, Any]:
    """What the engine derives in a folder with the files and in their environment, or why it stopped."""
    for name in SET_BY_PLANS:
        os.environ.pop(name, None)
    os.environ.update(case["environment"])
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            return {"derived": derive(case)}
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever stops the engine is the answer
            result = " ".join(str(error).split())[:600]
            return {"error": f"{type(error).__name__}: {result}"}
        finally:
            os.chdir("/")


def alone() -> None:
    """Name this folder's package, so that its files are found and nothing else of who asks."""
    package = types.ModuleType("planner")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["planner"] = package


def main() -> None:
    """Judge the cases on standard input."""
    alone()
    out = sys.stdout
    os.environ.update(
        RANK="0", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1", DS_ACCELERATOR="cpu"
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        derive: Derive = importlib.import_module(f"planner.parsers.{sys.argv[1]}").derive
        for line in sys.stdin:
            case = json.loads(line)
            os.environ["WORLD_SIZE"] = str(case["gpus"])
            print(json.dumps(answer(derive, case)), file=out, flush=True)


if __name__ == "__main__":
    main()
