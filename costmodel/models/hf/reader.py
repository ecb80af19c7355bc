"""Typed access to a Hugging Face ``config.json`` that remembers every problem."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.models.sizes import LARGEST_SIZE
from costmodel.models.spec import Activation
from topology.base.converter import LARGEST_NUMBER
from topology.base.errors import shown

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
_LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReader:
    """A configuration being read.

    Attributes:
        config: The decoded file.
        problems: What makes it unreadable, collected instead of stopping at the first.
        departures: What is legal there, changes what the model computes, and has no field in a `ModelSpec`.
    """

    config: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)
    departures: list[str] = field(default_factory=list)

    def size(self, *keys: str, default: int | None = None) -> int:
        """Give the positive integer under the first of the keys that is there, or the default."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        if value is None:
            self.problems.append(f"missing key {keys[0]}")
        elif not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_SIZE:
            self.problems.append(f"{keys[0]} = {shown(value)} is not an integer between 1 and {LARGEST_SIZE}")
        else:
            return value
        return 1

    def count(self, key: str, default: int = 0) -> int:
        """Give the integer under a key where zero and null mean none."""
        return 0 if self.config.get(key, default) in (0, None) else self.size(key, default=default)

    def flag(self, key: str, *, default: bool) -> bool:
        """Give the truth value under a key, or the default."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} = {shown(value)} is neither true nor false")
            return default
        return value

    def weight(self, *keys: str) -> float:
        """Non-negative number under the first of these keys that is given, else 0."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_NUMBER:
            self.problems.append(f"{keys[0]} is {shown(value)}, not a number of at least 0")
            return 0.0
        return float(value)

    def positive(self, key: str, default: float) -> float:
        """Positive number under a key, or the default."""
        value = self.optional(key, default)
        return default if value is None else value

    def optional(self, key: str, default: float | None = None) -> float | None:
        """Positive number under a key, None where it is null, or the default where it is absent."""
        value = self.config.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
            self.problems.append(f"{key} is {shown(value)}, not a number above 0")
            return default
        return float(value)

    def table(self, key: str) -> Mapping[str, Any] | None:
        """Object under a key, None where there is none."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, dict):
            self.problems.append(f"{key} = {shown(value)} is not an object")
            return None
        return value

    def within(self, table: Mapping[str, Any]) -> ConfigReader:
        """Reader of an object inside this configuration, with the same lists."""
        return ConfigReader(config=table, problems=self.problems, departures=self.departures)

    def activation(self, key: str, default: Activation) -> Activation:
        """Activation of the feed-forward under a key."""
        stated = self.config.get(key)
        if stated is None:
            return default
        if not isinstance(stated, str) or stated not in _ACTIVATIONS:
            self.departures.append(f"{key} = {shown(stated)}")
            return default
        return _ACTIVATIONS[stated]

    def expects(self, key: str, usual: object) -> None:
        """Note a departure where a key is given and is not what the family computes with."""
        value = self.config.get(key)
        if value is not None and value != usual:
            self.departures.append(f"{key} = {shown(value)}")

    def windows(self, default: int = 0, *, trailing: int | None = None, pattern: int = 0) -> dict[str, Any]:
        """Which layers have a window, as fields of a `ModelSpec`; none when there is no window.

        Args:
            default: The family's window where the file has no key for it; null is none.
            trailing: The family's number of windowed layers, the last ones, where ``layer_types`` is absent.
            pattern: Or the family's p, every p-th layer being full.
        """
        window, layers = self.count("sliding_window", default), self.size("num_hidden_layers")
        kinds = self.config.get("layer_types")
        if kinds is None:
            full = layers // pattern if pattern else layers - min(layers, trailing or 0)
            return _windows(window, layers - full, pattern if 0 < pattern <= layers else 0)
        if not isinstance(kinds, list) or len(kinds) != layers:
            number = len(kinds) if isinstance(kinds, list) else shown(kinds)
            self.problems.append(f"layer_types names {number} layers, num_hidden_layers is {layers}")
            return {}
        others = (kind for kind in kinds if kind not in _LAYER_TYPES)
        self.departures.extend(f"layer_types has {shown(kind)}" for kind in itertools.islice(others, 1))
        return self._windows_of([kind == "sliding_attention" for kind in kinds], window)

    def _windows_of(self, sliding: list[bool], window: int) -> dict[str, Any]:
        """Windows of layers that are stated one by one: a run at the end, a period, or neither."""
        number = sum(sliding)
        first_full = sliding.index(False) + 1 if number < len(sliding) else 0
        if not any(sliding[: len(sliding) - number]):
            return _windows(window, number)
        if first_full > 1 and sliding == [(i + 1) % first_full != 0 for i in range(len(sliding))]:
            return _windows(window, number, first_full)
        if window:
            self.departures.append("layer_types is neither a period nor a run of windowed layers at the end")
        return _windows(window, number)


def _windows(window: int, layers: int, pattern: int = 0) -> dict[str, Any]:
    """Fields of a `ModelSpec` for a window on this many layers; with a pattern p, on all but every p-th."""
    if not window or not layers:
        return {}
    fields = {"sliding_window": window, "num_sliding_layers": layers}
    return {**fields, "sliding_window_pattern": pattern} if pattern else fields
