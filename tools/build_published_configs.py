"""Choose what configurations that engines publish under a name say of a job.

    python tools/build_published_configs.py torchtune=0.6.1=DIR torchtitan=0.2=DIR torchtitan=0.3.0=DIR \
        Megatron-Bridge=26.08=../shared/data/megatron_bridge_recipes.csv

DIR holds an unpacked release. Read are YAML files of ``recipes/configs``, TOML files, functions of
``config_registry.py``, and of Megatron-Bridge the table of its recipe files: those of pretraining that state
every size, of models whose published runs agree in the length of a sequence. Kept are figures of the job in
the engine's keys; paths, rates of learning and what only tests use are left out.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.runs.model_names import named_model  # noqa: E402
from planner.audit.published import COLUMNS, PUBLISHED  # noqa: E402 - the checkout is not installed
from planner.formats.python_config import recipes_of  # noqa: E402
from planner.formats.settings import NOT_KNOWN, Setting  # noqa: E402
from planner.formats.structured import toml_settings, yaml_settings  # noqa: E402

RUNS = ROOT / "costmodel" / "data" / "published_runs.csv"
TABLES = {
    "torchtitan": ("training", "parallelism", "activation_checkpoint", "compile", "model", "model_spec"),
    "torchtune": ("model",),
}
KEYS = {
    "torchtitan": ("loss", "optimizer.name"),
    "torchtune": (
        "tokenizer.max_seq_len", "dataset.packed", "batch_size", "gradient_accumulation_steps",
        "optimizer._component_", "optimizer_in_bwd", "loss._component_", "dtype",
        "enable_activation_checkpointing", "enable_activation_offloading", "compile", "fsdp_cpu_offload",
        "tensor_parallel_dim", "context_parallel_dim",
    ),
}  # fmt: skip
BATCH = ("batch_size", "local_batch_size", "micro_batch_size")
"""Words of which a configuration of a job has one."""
BRIDGE = (
    "global_batch_size", "micro_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "use_megatron_fsdp", "recompute_modules",
    "recompute_num_layers", "recompute_granularity", "recompute_method",
)  # fmt: skip
SIZES = (BRIDGE[0], BRIDGE[1], BRIDGE[2], BRIDGE[3])
LEFT_OUT = ("debug", "steps", "dataset", "max_norm", "hf_assets_path", "tokenizer_path", "__class__")
"""Parts of names of what says nothing of a step."""


def configurations(engine: str, folder: Path) -> Iterator[tuple[str, list[Setting]]]:
    """Configurations of a release, by the name that a launch gives them."""
    configs = folder / "recipes" / "configs"
    for path in sorted(configs.rglob("*.yaml")):
        yield (
            path.relative_to(configs).with_suffix("").as_posix(),
            yaml_settings(path.read_text(), path.name),
        )
    for path in sorted(folder.rglob("*.toml")) if engine == "torchtitan" else ():
        yield path.name, toml_settings(path.read_text(), path.name)
    for path in sorted(folder.rglob("models/*/config_registry.py")):
        for recipe in recipes_of(path.read_text(), path.name):
            yield recipe.name, [*recipe.settings, Setting(name="model.name", value=path.parent.name, line=0)]


def lengths_of_runs() -> dict[str, str]:
    """Tokens of a sequence by model, of the published runs of Megatron-Bridge that agree in it."""
    lengths: dict[str, set[str]] = {}
    with RUNS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            model = named_model(row["model"]) if row["framework"].startswith("Megatron-Bridge") else None
            if model is not None:
                lengths.setdefault(model[0].name, set()).add(row["sequence_length"])
    return {name: stated.pop() for name, stated in lengths.items() if len(stated) == 1}


def bridge_rows(release: str, path: Path) -> Iterator[tuple[str, list[Setting]]]:
    """Recipes of one release of Megatron-Bridge, by their names."""
    lengths = lengths_of_runs()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            model = named_model(row["recipe"].partition("_pretrain_")[0].upper())
            length = lengths.get(model[0].name) if model is not None else None
            whole = "_pretrain_" in row["recipe"] and all(row[size] for size in SIZES)
            if row["release"] == release and whole and length:
                stated = [key for key in BRIDGE if row[key] and not row[key].startswith("[]")]
                yield (
                    row["recipe"],
                    [
                        Setting(
                            name="model_recipe_name", value=row["recipe"].partition("_pretrain_")[0], line=0
                        ),
                        Setting(name="seq_length", value=length, line=0),
                        *(
                            Setting(name=key, value=row[key].strip("[]").replace("'", ""), line=0)
                            for key in stated
                        ),
                    ],
                )


def _filed(setting: Setting) -> Setting:
    """A setting under the table of which a local name of a function was made."""
    table, dot, rest = setting.name.partition(".")
    return replace(setting, name=f"{table.removesuffix('_config')}{dot}{rest}")


def told(engine: str, setting: Setting) -> bool:
    """Whether a setting is of the job."""
    parts = setting.name.split(".")
    if setting.value in (None, NOT_KNOWN, "") or any(part in LEFT_OUT for part in parts):
        return False
    return setting.name in KEYS[engine] or parts[0] in TABLES[engine]


def main(arguments: list[str]) -> None:
    """Write the table."""
    rows: list[dict[str, str]] = []
    for argument in arguments:
        engine, release, folder = argument.split("=", 2)
        bridge = engine == "Megatron-Bridge"
        every = bridge_rows(release, Path(folder)) if bridge else configurations(engine, Path(folder))
        for name, settings in every:
            kept = settings if bridge else [each for each in map(_filed, settings) if told(engine, each)]
            trains = any(setting.name.rpartition(".")[2] in BATCH for setting in kept)
            if "debug" in name or not trains:
                continue
            rows.extend(
                {
                    "engine": engine,
                    "release": release,
                    "config": name,
                    "key": setting.name,
                    "value": str(setting.value).lower()
                    if isinstance(setting.value, bool)
                    else str(setting.value),
                }
                for setting in kept
            )
    with PUBLISHED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
