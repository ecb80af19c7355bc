"""The process in which a user's module is built and traced: ``python -m executor.tracing.worker``.

Arguments: ``package.file:build``, the inputs, the file for the answer, the most bytes of address space. The
answer is ``{"module": …}`` or ``{"error": [what, cause, fix]}``; whatever the user's code prints stays here.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodel.models.traced import LIBRARIES
from executor.tracing.failure import LONGEST, explain, failing_line
from topology.base.errors import InputError, shortened


def main(builder: str, inputs: str, answer: str, most_bytes: str, length: str = "0") -> int:
    """Trace, and write what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # shapes need no weights and no hub
    sys.path.insert(0, str(Path.cwd()))
    try:
        values: dict[str, Any] = {"module": asdict(_trace(builder, inputs, int(length)))}
    except InputError as error:
        values = {"error": [error.what, error.cause, error.fix]}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody's code may raise anything
        values = {"error": list(explain(error, builder))}
    Path(answer).write_text(json.dumps(values), encoding="utf-8")
    return 0


def _trace(builder: str, inputs: str, length: int = 0) -> Any:
    """Import, build on the meta device, or with weights where that cannot be, and trace."""
    import torch

    from executor.tracing.libraries import build as of_library
    from executor.tracing.trace import example_inputs, trace_module

    library, _, name = builder.partition(":")
    if library in LIBRARIES:
        module, usual = _without_weights(lambda: of_library(library, name, 0 if inputs else length))
        if not (inputs or usual):
            raise InputError(
                what=f"the inputs of {shortened(builder)} are not known",
                cause="its configuration does not say them",
                fix="add --input with the sizes of each tensor of its forward, the batch first",
            )
        return trace_module(module, example_inputs(inputs or usual), name=builder)
    examples = example_inputs(inputs)
    module = _without_weights(_import(builder))
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            what=f"{builder} gives no module",
            cause=f"it returned {type(module).__name__}",
            fix="return a torch.nn.Module from it",
        )
    return trace_module(module, examples, name=builder)


def _without_weights(build: Callable[[], Any]) -> Any:
    """What a builder gives on the meta device, or with weights where that cannot be."""
    import torch

    try:
        with torch.device("meta"):
            return build()
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - what reads a value while it is built needs values
        return build()


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
            cause=shortened(f"{error}{failing_line(error)}", LONGEST),
            fix="run from the folder that holds the package, in the environment that it needs",
        ) from None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
