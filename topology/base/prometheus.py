r"""Metrics in the text format that Prometheus scrapes (version 0.0.4).

https://prometheus.io/docs/instrumenting/exposition_formats/, read 2026-11-23: HELP, TYPE, then one line a
sample; in help texts ``\`` and line feeds are escaped, in labels quotes too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its values by their labels. A counter's name ends in ``_total``."""

    name: str
    help: str
    kind: Literal["gauge", "counter"] = "gauge"
    values: tuple[tuple[Mapping[str, str], float], ...]


def metric(name: str, help_text: str, value: float, **labels: str) -> Metric:
    """A metric of one value; a counter if its name says so."""
    kind: Literal["gauge", "counter"] = "counter" if name.endswith("_total") else "gauge"
    return Metric(name=name, help=help_text, kind=kind, values=((labels, value),))


def exposition(metrics: Iterable[Metric]) -> str:
    r"""The text of metrics.

    >>> print(exposition([metric("run_loss", "Loss, nats.", 2.5, run='a "b"')]), end="")
    # HELP run_loss Loss, nats.
    # TYPE run_loss gauge
    run_loss{run="a \"b\""} 2.5
    """
    lines = []
    for item in metrics:
        lines.append(f"# HELP {item.name} {_escaped(item.help)}")
        lines.append(f"# TYPE {item.name} {item.kind}")
        for labels, value in item.values:
            listed = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            lines.append(f"{item.name}{'{' + listed + '}' if listed else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
