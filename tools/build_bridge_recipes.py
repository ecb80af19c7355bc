"""Choose what recipes of Megatron-Bridge say of published runs, from the table of its recipe files.

    python tools/build_bridge_recipes.py ../shared/data/megatron_bridge_recipes.csv

A recipe has a name that tells model, GPU and precision. Kept are pretraining recipes of catalogued models
with what the cost model has a mechanism for. Up to release 26.06 a recipe is a record with defaults; from
26.08 on it is code, whose later calls may set another scope of CUDA graphs: that cell is left out.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.runs.bridge_recipes import BRIDGE_RECIPES, SWITCH_COLUMNS, WHERE, release_of  # noqa: E402
from costmodel.runs.model_names import named_model  # noqa: E402 - the checkout is not installed

GPUS = {"GB300": "gb300", "GB200": "gb200", "B300": "b300-sxm", "B200": "b200-sxm", "H100": "h100-sxm"}
PRECISIONS = {"BF16": "bf16", "FP8CS": "fp8", "FP8SC": "fp8", "FP8MX": "mxfp8", "NVFP4": "nvfp4"}
NAMED = re.compile(
    rf"(?P<model>.+?)_(?:PRETRAIN_)?(?:CONFIG_)?(?:\d+GPU_)?(?P<gpu>{'|'.join(GPUS)})_"
    rf"(?P<precision>BF16|FP8_?CS|FP8_?SC|FP8_?MX|NVFP4)"
)
FAMILIES = {"llama31": "llama-3.1", "llama3": "llama-3", "nemotronh": "nemotron-h"}
LAST_RECORD = (26, 6)
"""The last release whose recipes are records."""
SIZES = {
    "num_gpus": "num_gpus",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "virtual_stages": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "microbatch_size": "micro_batch_size",
}


def catalogued(words: str) -> str:
    """The catalog's name of a recipe's model; "" where it has none."""
    name = words.replace("_", "-").lower()
    for family, ours in FAMILIES.items():
        name = re.sub(rf"^{family}\b", ours, name)
    pair = named_model(name)
    return pair[0].name if pair else ""


def listed(text: str) -> str:
    """A list of modules as a cell holds it."""
    value = ast.literal_eval(text) if text.startswith("[") else text
    return ";".join(value) if isinstance(value, list) else str(value)


def cells(recipe: Mapping[str, str], release: tuple[int, ...]) -> dict[str, str]:
    """What a recipe says, by column of measured runs."""
    graphs = recipe["cuda_graph_impl"]
    scope = "full_iteration" if graphs == "full_iteration" else listed(recipe["cuda_graph_scope"])
    known_scope = scope and graphs not in ("", "none") and release <= LAST_RECORD
    overlap = recipe["moe_a2a_overlap"] or recipe["overlap_moe_expert_parallel_comm"]
    return {
        "recompute_modules": listed(recipe["recompute_modules"]),
        "cuda_graph_scope": scope if known_scope else "",
        "dispatcher": recipe["moe_flex_dispatcher_backend"],
        "moe_a2a_overlap": str(int(overlap == "True")) if overlap else "",
        "offload_layers": recipe["cpu_offloading_num_layers"],
    }


def chosen(recipes: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of the package's table, each once."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for recipe in recipes:
        named, release = NAMED.match(recipe["recipe"].upper()), release_of(recipe["release"])
        name = catalogued(named["model"]) if named else ""
        if not named or not name or recipe["peft"] not in ("", "none"):
            continue
        where = {
            "model": name,
            "gpu": GPUS[named["gpu"]],
            "precision": PRECISIONS[named["precision"].replace("_", "")],
            **{column: recipe[key] or "1" for column, key in SIZES.items()},
        }
        said = cells(recipe, release)
        if any(said.values()):
            row = {"release": recipe["release"], **where, **said}
            rows.setdefault(tuple(row.values()), row | {"recipe": recipe["recipe"]})
    return list(rows.values())


def main() -> None:
    """Write the table."""
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as stream:
        rows = chosen(list(csv.DictReader(stream)))
    with BRIDGE_RECIPES.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ("release", *WHERE, *SWITCH_COLUMNS, "recipe"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} recipes in {BRIDGE_RECIPES.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
