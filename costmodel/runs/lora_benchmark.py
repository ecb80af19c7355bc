"""Rows of the MLPerf LoRA benchmark, whose columns are its own, as rows of measured training runs.

A row names a system and a time, not what every submission has in common (the model, the rank, the dropout)
nor what its engine was told; the latter is data of the makers' own configurations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from costmodel.models.catalog import model
from costmodel.parallel.divisions import BATCH
from costmodel.runs.cells import Row, UnsupportedRunError, count
from topology.hardware.datasheets import generations, sheet_named
from topology.hardware.device_names import gpus_in_text

RECIPES_FILE = Path(__file__).parents[1] / "data" / "adapter_recipes.toml"
BENCHMARK_COLUMNS = ("accelerator", "org", "host_networking", "step_time_s", "global_batch_size")
MODEL = "llama-2-70b"
USUAL_PRECISION = "fp8"
"""Of rows that do not say: every submission that does has eight bits, or four."""
_DEGREES = ("dp", "tp", "pp", "cp")


def is_lora_benchmark(columns: Sequence[str]) -> bool:
    """Whether a table has the columns of the benchmark, and not those of training runs."""
    return set(BENCHMARK_COLUMNS) <= set(columns) and "gpu" not in columns


def lora_training_row(row: Row) -> dict[str, str]:
    """A row of the benchmark in the columns of training runs; an accelerator that is not known is left empty.

    >>> row = {"accelerator": "NVIDIA H100-SXM5-80GB", "org": "Dell", "round": "v4.1", "dp": "8"}
    >>> found = lora_training_row(row)
    >>> found["gpu"], found["source"], found["recompute"]
    ('h100-sxm', 'Dell', 'none')
    """
    name, spec = _gpu(row.get("accelerator", "")), model(MODEL)
    recipe = {**_recipe(_maker(name)), **_recipe(name)} if name else {}
    kept = ("id", "url", "num_gpus", "gpus_per_node", "global_batch_size", "step_time_s", *_DEGREES)
    return {
        **{column: row.get(column, "") for column in kept},
        "source": row.get("org", ""),
        "model": MODEL,
        "num_layers": str(spec.num_layers),
        "hidden_size": str(spec.hidden_size),
        "num_attention_heads": str(spec.num_attention_heads),
        "sequence_length": row.get("sequence_length", ""),
        "gpu": name,
        "framework": recipe.get("framework", ""),
        "precision": row.get("precision") or USUAL_PRECISION,
        "microbatch_size": row.get("microbatch_size") or "1",
        "recompute": recipe.get("recompute", "none"),
        "adapter": recipe.get("adapter", ""),
        "note": recipe.get("note", ""),
    }


def possible_rows(row: Row) -> list[dict[str, str]]:
    """The row with each layout that it can mean: its own, or all without a pipeline where it has none.

    Data parallelism takes as many ranks as there are sequences, or fewer; tensors stay inside a node.
    """
    if all(row.get(name) for name in _DEGREES):
        return [dict(row)]
    gpus, batch = count(row, "num_gpus"), count(row, "global_batch_size")
    node = count(row, "gpus_per_node", gpus)
    powers = [1 << i for i in range(gpus.bit_length())]
    result = []
    for tp in (tp for tp in powers if tp <= node):
        for cp in powers:
            dp = gpus // (tp * cp)
            if dp * tp * cp == gpus and dp and BATCH.rest(batch, dp) == 0:
                result.append({**row, "dp": str(dp), "tp": str(tp), "pp": "1", "cp": str(cp)})
    if not result:
        raise UnsupportedRunError(f"no layout of {gpus} GPUs takes {batch} sequences")
    return result


def _gpu(accelerator: str) -> str:
    """The catalog's name of an accelerator as result files write it."""
    return next(iter(gpus_in_text(accelerator)), "")


def _maker(name: str) -> str:
    return generations()[sheet_named(name).architecture].maker


@functools.cache
def _recipes() -> Mapping[str, Mapping[str, str]]:
    from topology.base.decode import read_toml

    return read_toml(RECIPES_FILE)


def _recipe(name: str) -> Mapping[str, str]:
    return {key: value for key, value in _recipes().get(name, {}).items() if key not in ("source", "as_of")}
