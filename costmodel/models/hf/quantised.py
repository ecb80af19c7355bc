"""Which parts of a quantised checkpoint its ``quantization_config`` leaves as they are, and its blocks.

Entries are names of modules, of parts of names, with ``*``, or, after ``re:``, expressions of a few forms:
any text, escaped dots, and alternatives in brackets. An expression of another form leaves nothing out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from costmodel.models.stored import PartFormat, StoredParts

_LISTS = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "exclude")
_MODULES: Mapping[str, tuple[str, ...]] = {
    "attention": ("self_attn.o_proj", "linear_attn.out_proj", "mixer.out_proj"),
    "mlp": ("mlp.down_proj", "feed_forward.down_proj"),
    "shared": ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj"),
    "experts": ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
}
"""A module of each part, by the names of `transformers`."""
_WIDEST_BLOCK = 1024
_MOST_PATTERNS, _MOST_FORMS, _MOST_STARS = 64, 32, 6


def stored_parts(config: Mapping[str, Any], num_layers: int) -> StoredParts:
    """What of a checkpoint is not quantised.

    >>> whole = {"quantization_config": {"ignore": ["lm_head", "re:.*self_attn.*"]}}
    >>> stored_parts(whole, 4).attention, stored_parts(whole, 4).mlp
    ('bf16', '')
    """
    stated = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(stated, dict):
        return StoredParts()
    lists = (stated.get(name) for name in _LISTS)
    entries = [
        entry for listed in lists if isinstance(listed, list) for entry in listed if isinstance(entry, str)
    ]
    plain = [entry for entry in entries if "*" not in entry and not entry.startswith("re:")]
    names = frozenset(entry[max(entry.find("layers."), 0) :] for entry in plain)
    forms = [entry for entry in entries if "*" in entry or entry.startswith("re:")][:_MOST_PATTERNS]
    patterns = tuple(itertools.islice((glob for entry in forms for glob in _globs(entry)), _MOST_FORMS))
    left = {
        part: [_is_left(f"model.layers.{layer}", modules, names, patterns) for layer in range(num_layers)]
        for part, modules in _MODULES.items()
    }
    formats: dict[str, PartFormat] = {
        part: "bf16" if 2 * sum(layers) > num_layers else "" for part, layers in left.items()
    }
    return StoredParts(
        attention=formats["attention"],
        mlp=formats["mlp"],
        shared=formats["shared"],
        experts=formats["experts"],
        edge_layers=0 if formats["mlp"] else _edges(left["mlp"]),
        block=_block(stated),
        group=_group(stated),
    )


def _block(stated: Mapping[str, Any]) -> int:
    """Side of the square blocks of weights that share a scale; 0 where none is stated.

    >>> _block({"weight_block_size": [128, 128]})
    128
    >>> groups = {"group_0": {"weights": {"strategy": "block", "block_structure": [128, 128]}}}
    >>> _block({"config_groups": groups}), _block({"weight_block_size": [1, 128]})
    (128, 0)
    """
    sides = {_side(stated.get("weight_block_size"))}
    groups = stated.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        sides.add(_side(weights.get("block_structure")) if isinstance(weights, dict) else 0)
    return max(sides)


def _group(stated: Mapping[str, Any]) -> int:
    """Weights along the inputs of a matrix that share a scale; 0 where none are stated, or rows do.

    >>> groups = {"group_0": {"weights": {"strategy": "group", "group_size": 64}}}
    >>> _group({"quant_method": "awq", "group_size": 128}), _group({"config_groups": groups})
    (128, 64)
    """
    groups = stated.get("config_groups")
    sizes = [stated.get("group_size")]
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        sizes.append(weights.get("group_size") if isinstance(weights, dict) else None)
    return max((size for size in sizes if type(size) is int and 0 < size <= _WIDEST_BLOCK), default=0)


def _side(block: object) -> int:
    """Side of a square block of two whole numbers; 0 of anything else."""
    if not isinstance(block, list) or len(block) != 2 or block[0] != block[1]:
        return 0
    side = block[0]
    return side if isinstance(side, int) and 0 < side <= _WIDEST_BLOCK else 0


def _edges(left: list[bool]) -> int:
    """Layers at both ends that are left out, as many at each."""
    first = sum(1 for _ in itertools.takewhile(bool, left))
    last = sum(1 for _ in itertools.takewhile(bool, reversed(left)))
    return min(first, last)


def _is_left(layer: str, modules: tuple[str, ...], names: frozenset[str], patterns: tuple[str, ...]) -> bool:
    """Whether a module of a layer is named, in whole or by a run of the words of its name."""
    for module in modules:
        words = f"{layer}.{module}".split(".")
        runs = (".".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        if any(run in names for run in runs):
            return True
        if any(fnmatchcase(f"{layer}.{module}", pattern) for pattern in patterns):
            return True
    return False


def _globs(entry: str) -> Iterator[str]:
    """An entry with stars, or an expression as such entries; nothing of one that says more."""
    if not entry.startswith("re:"):
        if entry.count("*") <= _MOST_STARS and not set("[]?") & set(entry):
            yield entry
        return
    text = entry[len("re:") :].removeprefix("^").removesuffix("$")
    branches = [
        part.split("|") if at % 2 else [part] for at, part in enumerate(re.split(r"\(\??:?([^()]*)\)", text))
    ]
    for chosen in itertools.islice(itertools.product(*branches), _MOST_FORMS):
        glob = "".join(chosen).replace(r"\.", ".").replace(".*", "*")
        if glob.count("*") <= _MOST_STARS and not set("[](){}?+|\\^$") & set(glob):
            yield glob
