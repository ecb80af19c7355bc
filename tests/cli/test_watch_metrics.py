"""What Prometheus and Grafana are told of a watched run: every query names a metric that is exported."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from app.actions.runs.scrape import scraped
from app.cli import run
from app.commands.watch.metrics import METRICS, UP, Scrapes, grafana, metrics_of
from costmodel.campaign.record import Band
from planner.analysis.campaign.watch import Off, Watched
from topology.base.errors import InputError

WATCHED = Watched(
    step=900, steps=1000, step_s=2.5, planned_step_s=2.0, restarts=3, repeated_steps=40, wall_s=2000.0,
    useful_share=0.8, planned_useful_share=0.95, held_s=40.0, planned_held_s=4.0,
    interruptions={"a node failed": 3}, waited_s=600.0, days_left=Band(p10=1.0, p50=2.0, p90=3.0),
    off=(Off(cause='a "slow" step', change="look for one slow node"),),
)  # fmt: skip
ALERT = "meshplan_watch_alert"


def names(text: str) -> set[str]:
    """Metrics of an exposition."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def test_every_number_of_a_watched_run_is_exported() -> None:
    """By its name, and an alert with its one cause and one change."""
    text = metrics_of(WATCHED)
    assert names(text) == {UP[0], ALERT, *(name for _, name, _ in METRICS)}
    for line in (
        "meshplan_watch_step 900.0",
        "meshplan_watch_useful_ratio 0.8",
        "meshplan_watch_days_left_high 3.0",
        "meshplan_watch_restarts_total 3.0",
        r'meshplan_watch_alert{cause="a \"slow\" step",change="look for one slow node"} 1.0',
    ):
        assert line in text.splitlines()


def test_every_query_of_the_dashboard_names_a_metric_that_is_exported() -> None:
    """And every metric of a run is in the dashboard, but whether it is up."""
    asked = {
        name
        for panel in json.loads(grafana())["panels"]
        for target in panel["targets"]
        for name in re.findall(r"meshplan_\w+", target["expr"])
    }
    assert asked == names(metrics_of(WATCHED)) - {UP[0]}


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Its model: numbered panels on a grid of 24 that do not overlap, one data source that is asked for."""
    board = json.loads(grafana())
    assert {"title", "uid", "schemaVersion", "panels", "time", "__inputs"} <= set(board)
    (source,) = board["__inputs"]
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["type"] in ("stat", "timeseries", "table")
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": source["pluginId"], "uid": f"${{{source['name']}}}"}


def test_the_dashboard_is_read_by_grafanas_own_model() -> None:
    """Where its package is installed: read and written again, it has the same panels and queries."""
    sdk = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is not here"
    )
    prometheus = pytest.importorskip("grafana_foundation_sdk.models.prometheus")
    board = json.loads(grafana())
    read = sdk.Dashboard.from_json(board)
    assert [panel.title for panel in read.panels] == [panel["title"] for panel in board["panels"]]
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert prometheus.Dataquery.from_json(target).expr == target["expr"]


def test_a_scrape_reads_a_run_that_changed_and_says_when_it_cannot(tmp_path: Path) -> None:
    """Over loopback: read once while nothing changes, again when it grew, down when it is gone."""
    log, reads = tmp_path / "train.log", []
    log.write_text("a", encoding="utf-8")

    def read() -> Watched:
        reads.append(1)
        return WATCHED

    scrapes = Scrapes([log], read)
    with scraped(":0", scrapes.text) as port:
        for text, count in (("a", 1), ("a", 1), ("ab", 2)):
            if log.read_text(encoding="utf-8") != text:
                log.write_text(text, encoding="utf-8")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                assert "meshplan_watch_up 1.0" in page.read().decode()
            assert len(reads) == count
        log.unlink()
        assert names(scrapes.text()) == {UP[0]}
        assert "meshplan_watch_up 0.0" in scrapes.text()


def test_a_run_that_says_nothing_yet_is_down() -> None:
    """An error of reading is none of the door."""

    def read() -> Watched:
        raise InputError("there is no step to watch", "no line", "wait")

    assert "meshplan_watch_up 0.0" in Scrapes([Path(__file__)], read).text()


def test_the_command_prints_the_dashboard_and_asks_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a run; otherwise something to watch must be named."""
    assert run(["watch", "--grafana"]) == 0
    assert capsys.readouterr().out == grafana()
    assert run(["watch"]) == 2
    assert "there is nothing to watch" in capsys.readouterr().err
