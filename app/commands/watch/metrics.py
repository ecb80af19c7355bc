"""What Prometheus is told of a watched run, and the dashboard that Grafana shows of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from planner.analysis.campaign.watch import Watched
from topology.base.errors import InputError
from topology.base.prometheus import exposition, metric

UP = ("meshplan_watch_up", "1 where the last scrape could read the run, else 0.")
METRICS = (
    ("step", "meshplan_watch_step", "The furthest step that was reached."),
    ("steps", "meshplan_watch_steps", "Steps of the whole run."),
    ("step_s", "meshplan_watch_step_seconds", "Median time of a step, seconds."),
    ("planned_step_s", "meshplan_watch_planned_step_seconds", "Time of a step by the plan, seconds."),
    ("restarts", "meshplan_watch_restarts_total", "How often step numbers went back."),
    ("repeated_steps", "meshplan_watch_repeated_steps_total", "Steps that were done again."),
    ("useful_share", "meshplan_watch_useful_ratio", "Useful share of the time so far, 0 to 1."),
    ("planned_useful_share", "meshplan_watch_planned_useful_ratio", "Useful share by the plan, 0 to 1."),
    ("held_s", "meshplan_watch_checkpoint_seconds", "Median wait of steps for a checkpoint, seconds."),
    ("planned_held_s", "meshplan_watch_planned_checkpoint_seconds", "The same by the plan, seconds."),
    (
        "waited_s",
        "meshplan_watch_without_nodes_seconds_total",
        "Time without nodes, seconds.",
    ),
    ("days_left.p10", "meshplan_watch_days_left_low", "Days left, tenth percentile."),
    ("days_left.p50", "meshplan_watch_days_left", "Days left, median."),
    ("days_left.p90", "meshplan_watch_days_left_high", "Days left, ninetieth percentile."),
    ("is_of_plan", "meshplan_watch_is_of_plan", "1 where the log can be of the plan's run, else 0."),
    ("alerts", "meshplan_watch_alerts", "Things that are not as planned."),
)
"""A path into `Watched`, the name of the metric, and what it says; names end in their unit."""


def metrics_of(watched: Watched) -> str:
    """A run's standing in the text format; what is not known is left out.

    Each alert is a sample of its own metric with its cause and change as labels.
    """
    known = [metric(UP[0], UP[1], 1.0)]
    for path, name, words in METRICS:
        value = _value(watched, path)
        if value is not None:
            known.append(metric(name, words, value))
    known += [
        metric(
            "meshplan_watch_alert",
            "One thing that is not as planned.",
            1.0,
            cause=off.cause,
            change=off.change,
        )
        for off in watched.off[:1]
    ]
    return exposition(known)


def _value(watched: Watched, path: str) -> float | None:
    """A number of what was watched."""
    if path == "alerts":
        return float(len(watched.off))
    if path == "is_of_plan":
        return float(not watched.differs)
    value: Any = watched
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return None if value is None else float(value)


class Scrapes:
    """The text of each scrape: the run is read again where one of its files changed."""

    def __init__(self, files: Sequence[Path], read: Callable[[], Watched]) -> None:
        self.files, self.read = files, read
        self.seen: tuple[tuple[int, int], ...] | None = None
        self.kept = ""

    def text(self) -> str:
        """What a scrape is answered; a run that cannot be read now is down, and asked again."""
        try:
            states = [file.stat() for file in self.files]
            now = tuple((state.st_size, state.st_mtime_ns) for state in states)
            if now != self.seen:
                self.kept = metrics_of(self.read())
                self.seen = now
        except (OSError, InputError):
            self.seen = None
            return exposition([metric(UP[0], UP[1], 0.0)])
        return self.kept


def grafana() -> str:
    """A dashboard of these metrics as Grafana 10 and later import it; it asks for a Prometheus data source.

    Its schema: grafana.com/docs/grafana/latest/dashboards, JSON model.
    """
    share, days, seconds = "percentunit", "d", "s"
    panels = [
        _panel(1, "stat", "Reached", "none", 0, 0, 6, "{{__name__}}",
            "meshplan_watch_step", "meshplan_watch_steps",
        ),
        _panel(2, "stat", "Days left", days, 6, 0, 6, "", "meshplan_watch_days_left"),
        _panel(3, "stat", "Useful so far", share, 12, 0, 6, "", "meshplan_watch_useful_ratio"),
        _panel(4, "stat", "Not as planned", "none", 18, 0, 6, "", "meshplan_watch_alerts"),
        _panel(
            5, "timeseries", "Days left, 80 % band", days, 0, 6, 12, "{{__name__}}",
            "meshplan_watch_days_left_low", "meshplan_watch_days_left", "meshplan_watch_days_left_high",
        ),
        _panel(
            6, "timeseries", "Time of a step", seconds, 12, 6, 12, "{{__name__}}",
            "meshplan_watch_step_seconds", "meshplan_watch_planned_step_seconds",
        ),
        _panel(
            7, "timeseries", "Useful share", share, 0, 14, 12, "{{__name__}}",
            "meshplan_watch_useful_ratio", "meshplan_watch_planned_useful_ratio",
        ),
        _panel(
            8, "timeseries", "Restarts, steps done again in a day", "none", 12, 14, 12, "{{__name__}}",
            "increase(meshplan_watch_restarts_total[1d])",
            "increase(meshplan_watch_repeated_steps_total[1d])",
        ),
        _panel(
            9, "timeseries", "Steps wait for a checkpoint", seconds, 0, 22, 12, "{{__name__}}",
            "meshplan_watch_checkpoint_seconds", "meshplan_watch_planned_checkpoint_seconds",
        ),
        _panel(
            10, "timeseries", "Without nodes in a day", seconds, 12, 22, 12, "{{__name__}}",
            "increase(meshplan_watch_without_nodes_seconds_total[1d])",
        ),
        _panel(11, "table", "Cause and change", "none", 0, 30, 24, "", "meshplan_watch_alert"),
        _panel(12, "stat", "Log is of this plan", "none", 0, 38, 6, "", "meshplan_watch_is_of_plan"),
    ]  # fmt: skip
    dashboard = {
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
        ],
        "title": "Meshplan: a run against its plan",
        "uid": "meshplan-watch",
        "tags": ["meshplan"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-7d", "to": "now"},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}


def _panel(
    number: int, kind: str, title: str, unit: str, x: int, y: int, width: int, legend: str, *queries: str
) -> dict[str, Any]:
    """One panel of one or more queries, eight rows high, a stat six."""
    return {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": 6 if kind == "stat" else 8},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": kind == "table",
                **({"format": "table"} if kind == "table" else {}),
            }
            for place, query in enumerate(queries)
        ],
    }
