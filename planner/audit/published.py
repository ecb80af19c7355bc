"""Configurations that engines publish under a name, for launches that name one and do not show it.

The figures are of the named release, in the keys of its engine: torchtune (recipes/configs), torchtitan
(train_configs, config_registry.py), both BSD-3-Clause, and Megatron-Bridge (perf_recipes, Apache-2.0), whose
lengths of a sequence are those of its published runs. What a launch says beside the name holds over them.
`tools/build_published_configs.py` writes the table.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.formats.settings import Setting
from topology.base.decode import read_toml

PUBLISHED = Path(__file__).parent / "data" / "published_configs.csv"
NEMO_RECIPES = PUBLISHED.with_name("nemo_recipes.toml")
NEMO = "NeMo"
CALLED = "nemo.recipe"
"""The setting that keeps which recipe a Python file calls: of ``llm.llama3_8b.pretrain_recipe(…)``."""
COLUMNS = ("engine", "release", "config", "key", "value")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "torchtune": ("config",),
    "torchtitan": ("job.config_file", "config_file", "config"),
}
"""Words by which a launch of an engine names its configuration."""

_FOR_GPUS = re.compile(r"_(\d{1,6})gpu_")
_WRAPPED = "graph_trainer_"
"""Before names of torchtitan's experiments/graph_trainer, which takes the configuration of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedConfig:
    """A configuration as an engine publishes it.

    Attributes:
        name: By which a launch names it.
        release: Of the engine.
        settings: Its figures.
    """

    name: str
    release: str
    settings: tuple[Setting, ...]

    @property
    def gpus(self) -> int | None:
        """The GPUs that its name says it is for; None where it says none.

        >>> PublishedConfig(name="x_pretrain_64gpu_h100_bf16_config", release="", settings=()).gpus
        64
        """
        count = _FOR_GPUS.search(self.name)
        return int(count[1]) if count else None

    def words(self, engine: str) -> str:
        """Where its figures come from."""
        return f"{self.name} was not given: its figures are those of {engine} {self.release}"


def named_config(settings: Iterable[Setting], engine: str) -> str:
    """The configuration that a launch names; empty where it names none."""
    values = {".".join(setting.path): str(setting.value) for setting in settings}
    if engine == NEMO:
        return values.get(CALLED, "") or _factory_of_nemo(values)
    if engine == "Megatron-Bridge":
        return values.get("recipe") or _recipe_of_bridge(values)
    return next((values[word] for word in _NAMES.get(engine, ()) if values.get(word)), "")


_CALLS_RECIPE = re.compile(r"\b(\w{3,60})\.pretrain_recipe\(")


def recipe_called(text: str) -> Setting | None:
    """The recipe of NeMo that a Python file calls; None where it calls none, or several.

    >>> recipe_called("recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2)").value
    'llama3_8b'
    """
    names = {match[1]: text.count("\n", 0, match.start()) + 1 for match in _CALLS_RECIPE.finditer(text)}
    if len(names) != 1:
        return None
    [(name, line)] = names.items()
    return Setting(name=CALLED, value=name, line=line)


def _factory_of_nemo(values: Mapping[str, str]) -> str:
    """The recipe of ``nemo llm pretrain --factory NAME``, which may be called with arguments.

    >>> _factory_of_nemo({"factory": "llama3_70b(num_nodes=4)"})
    'llama3_70b'
    """
    return values.get("factory", "").partition("(")[0].removesuffix(".pretrain_recipe")


def _recipe_of_bridge(values: Mapping[str, str]) -> str:
    """The recipe that words of scripts/performance choose (utils/utils.py); of its number of GPUs alone.

    >>> _recipe_of_bridge(
    ...     {"model_recipe_name": "llama3_70b", "num_gpus": "64", "gpu": "h100", "compute_dtype": "fp8_cs"}
    ... )
    'llama3_70b_pretrain_64gpu_h100_fp8cs_config'
    """
    model = values.get("model_recipe_name") or "_".join(
        filter(None, (values.get("model_name"), values.get("model_size")))
    )
    gpus, gpu, task = values.get("num_gpus"), values.get("gpu"), values.get("task", "pretrain")
    precision = values.get("compute_dtype", "bf16").replace("_", "")
    return f"{model}_{task}_{gpus}gpu_{gpu}_{precision}_config".lower() if model and gpus and gpu else ""


def published_config(name: str, engine: str) -> PublishedConfig | None:
    """What an engine publishes under a name, the latest release that has it; None where it has none.

    >>> published_config("llama3_1/70B_lora", "torchtune").release
    '0.6.1'
    """
    stem = name.strip().removesuffix(".yaml")
    last = stem.rpartition("/")[2]
    for each in (stem, last, last.removeprefix(_WRAPPED)):
        if config := _table().get((engine, each)):
            return config
    return None


def published_length(start: str, engine: str) -> tuple[int, str] | None:
    """The length that all of an engine's configurations have whose names begin so, and its release.

    None where there is none, or where they differ.

    >>> published_length("llama3_8b_pretrain", "Megatron-Bridge")
    (8192, '26.08')
    """
    lengths = {
        (int(str(setting.value)), config.release)
        for (whose, name), config in _table().items()
        if whose == engine and name.startswith(f"{start}_")
        for setting in config.settings
        if setting.path[-1] == "seq_length"
    }
    return lengths.pop() if len(lengths) == 1 else None


@functools.cache
def _table() -> Mapping[tuple[str, str], PublishedConfig]:
    """Every configuration, by engine and name; of several releases the last in the file."""
    rows: dict[tuple[str, str], dict[str, list[Setting]]] = {}
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            release = rows.setdefault((row["engine"], row["config"]), {})
            setting = Setting(
                name=row["key"], value=row["value"], line=0,
                how=f"as {row['engine']} {row['release']} publishes {row['config']}",
            )  # fmt: skip
            release.setdefault(row["release"], []).append(setting)
    for name, entry in read_toml(NEMO_RECIPES).items():
        source = entry.pop("source")
        how = f"as {NEMO} publishes pretrain_recipe of {name}"
        rows[NEMO, name] = {
            f"2.0 ({source.partition('/blob/')[2][:8]})": [
                Setting(name=key, value=value, line=0, how=how) for key, value in entry.items()
            ]
        }
    return {
        (engine, name): PublishedConfig(name=name, release=last, settings=tuple(releases[last]))
        for (engine, name), releases in rows.items()
        for last in (list(releases)[-1],)
    }
