"""The process in which a user's module is built and traced: ``python -m executor.tracing.worker``.

Arguments: ``package.file:build``, the inputs, the file for the answer, the most bytes of address space. The
answer is ``{"module": …}`` or ``{"error": [what, cause, fix]}``; whatever the user's code prints stays here.
"""

from __future__ import annotations

import json
import resource
import sys
import sysconfig
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from topology.base.errors import InputError, shortened

LONGEST = 300  # characters of a message of somebody's code


def main(builder: str, inputs: str, answer: str, most_bytes: str) -> int:
    """Trace, and write what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: dict[str, Any] = {"module": asdict(_trace(builder, inputs))}
    except InputError as error:
        found = {"error": [error.what, error.cause, error.fix]}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody's code may raise anything
        found = {"error": list(explain(error, builder))}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


def _trace(builder: str, inputs: str) -> Any:
    """Import, build on the meta device, or with weights where that cannot be, and trace."""
    import torch

    from executor.tracing.trace import example_inputs, trace_module

    examples = example_inputs(inputs)
    build = _import(builder)
    try:
        with torch.device("meta"):
            module = build()
    except Exception:  # noqa: BLE001 - what reads a value while it is built needs values
        module = build()
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            what=f"{builder} gives no module",
            cause=f"it returned {type(module).__name__}",
            fix="return a torch.nn.Module from it",
        )
    return trace_module(module, examples, name=builder)


def _import(builder: str) -> Any:
    """The function or class that builds the module."""
    import importlib

    place, _, name = builder.partition(":")
    if not (place and name):
        raise InputError(
            what=f"{shortened(builder)} names no builder",
            cause="a module is named package.file:function",
            fix="give for example --module mymodels.vision:build",
        )
    try:
        return getattr(importlib.import_module(place), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(
            what=f"{shortened(builder)} cannot be imported",
            cause=shortened(f"{error}{_place(error)}", LONGEST),
            fix="run from the folder that holds the package, in the environment that it needs",
        ) from None


def explain(error: BaseException, builder: str) -> tuple[str, str, str]:
    """What stopped a trace, the line of the user's code, and what helps."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    fix = "correct that line; `python -c` with the builder and a real input shows the whole error"
    what = f"{shortened(builder)} cannot be traced"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
        what = f"memory ran out while {shortened(builder)} was built"
        fix = "build it without reading values, so that torch.device('meta') needs no memory for weights"
    elif "meta" in text and ("item()" in text or "data-dependent" in text or "nonzero" in text):
        what, fix = f"{shortened(builder)} looks at values", "make its shapes depend on shapes alone"
    elif "CUDA" in text or "cuda" in text:
        what, fix = f"{shortened(builder)} needs a GPU to run", "use operations that every device has"
    return what, shortened(f"{type(error).__name__}: {text}{_place(error)}", LONGEST), fix


def _place(error: BaseException) -> str:
    """The last line of the user's own code that the error passed through."""
    ours, library = str(Path(__file__).parents[2] / "executor"), sysconfig.get_paths()["purelib"]
    standard = sysconfig.get_paths()["stdlib"]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, library, standard, "<"))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
