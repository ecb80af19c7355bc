"""What Prometheus reads of a run: by its own parser, while the run goes on, and from nowhere unasked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.actions.runs.scrape import host_and_port, scraped
from app.cli import run
from app.store.run_log import read_steps
from app.store.run_metrics import RunMetrics
from costmodel.layout import ParallelLayout
from executor.training.metrics import Reporter, StepMetrics
from planner.plan import Plan
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import losses
from topology.base.errors import InputError
from topology.base.prometheus import CONTENT_TYPE, Metric, exposition, metric


def step(number: int, loss: float) -> str:
    """A line of metrics."""
    return json.dumps({"step": number, "loss": loss, "samples": 8 * number, "step_time_s": 0.5}) + "\n"


def asked(port: int, page: str = "/metrics", **headers: str) -> tuple[str, str]:
    """Page and type that a scrape gets."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{page}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - an address of this test
        return answer.read().decode(), answer.headers["Content-Type"]


def values(text: str) -> dict[str, float]:
    """Samples without labels, by name."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "{" not in name}


def test_a_run_is_read_as_it_grows(tmp_path: Path) -> None:
    """The last whole line counts; a step that comes again is a return, also when it is scraped in between."""
    metrics, lines = RunMetrics(tmp_path, model="tiny"), tmp_path / "metrics.jsonl"
    assert values(metrics.text())["meshplan_run_returns_total"] == 0
    lines.write_text(step(1, 5.0) + step(2, 4.0) + step(3, 3.0)[:20])
    assert values(metrics.text())["meshplan_run_loss"] == 4.0
    with lines.open("a") as stream:
        stream.write(step(3, 3.0)[20:] + step(2, 4.0))
    found = values(metrics.text())
    names = ("step", "samples", "returns_total", "reported_steps_total", "step_seconds")
    assert [found[f"meshplan_run_{name}"] for name in names] == [2, 16, 1, 4, 0.5]
    (tmp_path / "evaluations.jsonl").write_text('{"step": 2, "loss": 4.5}\n')
    assert values(metrics.text())["meshplan_run_held_out_loss"] == 4.5


@pytest.mark.parametrize("compared", [True, False])
def test_what_is_the_plans_is_told_only_of_a_run_on_its_gpu(tmp_path: Path, compared: bool) -> None:
    """A step of the plan's GPU and a share of its peak: neither in the file nor for Prometheus elsewhere."""
    done = StepMetrics(
        step=1, loss=5.0, gradient_norm=1.0, learning_rate=1e-3, step_time_s=0.5, predicted_step_time_s=0.4,
        tokens_per_s=100.0, mfu=0.3, peak_memory_bytes=1e9, samples=8,
    )  # fmt: skip
    reporter = Reporter(tmp_path, 1, compared=compared, wandb=False)
    reporter.step(done)
    reporter.close()
    written = json.loads((tmp_path / "metrics.jsonl").read_text())
    told = values(RunMetrics(tmp_path, model="tiny").text())
    assert told["meshplan_run_step_seconds"] == written["step_time_s"] == 0.5
    names = ("meshplan_run_predicted_step_seconds", "meshplan_run_mfu_ratio")
    assert ("predicted_step_time_s" in written, "mfu" in written) == (compared, compared)
    assert tuple(name in told for name in names) == (compared, compared)
    (step,) = read_steps(tmp_path)
    assert (step.predicted_step_time_s, step.mfu) == ((0.4, 0.3) if compared else (0.0, 0.0))


def test_only_the_page_is_answered_and_only_to_who_asks_by_address(tmp_path: Path) -> None:
    """A page whose name was made to point here gets nothing; when the run ends nothing listens."""
    (tmp_path / "metrics.jsonl").write_text(step(1, 5.0))
    with scraped("127.0.0.1:0", RunMetrics(tmp_path, model="tiny").text) as port:
        text, kind = asked(port)
        assert ("meshplan_run_loss 5.0\n" in text, kind) == (True, CONTENT_TYPE)
        for page, headers in (("/", {}), ("/metrics", {"Host": "evil.example"})):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                asked(port, page, **headers)
        with pytest.raises(InputError, match=f"nothing can listen on 127.0.0.1:{port}"):
            scraped(f"127.0.0.1:{port}", str).__enter__()
    with pytest.raises(urllib.error.URLError):
        asked(port)
    threads = threading.active_count()
    with scraped(None, str):
        assert threading.active_count() == threads


@pytest.mark.parametrize("text", ["", "host", "a:b", "1:2:3", "host:99999", "[x]:1", "a b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """In three lines."""
    with pytest.raises(InputError, match="no address to listen on"):
        host_and_port(text)


def test_prometheus_reads_what_is_written() -> None:
    """Labels and help texts with everything that has to be escaped, and numbers that are none."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    odd = 'a "quoted" \\ back\nslash, {x="1"}'
    written = (
        metric("one", odd, 0.1 + 0.2, run=odd, other=""),
        metric("two_total", "Counted.", 3.0),
        Metric(name="three", help="", values=(({"a": "x"}, float("inf")), ({"a": "y"}, -1e-300))),
        metric("four", "None.", float("nan")),
    )
    families = list(parser.text_string_to_metric_families(exposition(written)))
    samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]
    assert samples[:-1] == [
        (one.name, dict(labels), value) for one in written[:-1] for labels, value in one.values
    ]
    assert str(samples[-1][2]) == "nan"
    assert [(family.type, family.documentation) for family in families][:2] == [
        ("gauge", odd),
        ("counter", "Counted."),
    ]


def test_a_run_as_prometheus_reads_it(tmp_path: Path) -> None:
    """Every name once, counters told as such, and the state of the run one of all."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    (tmp_path / "metrics.jsonl").write_text(step(1, 5.0))
    (tmp_path / "status.json").write_text('{"state": "running"}')
    text = RunMetrics(tmp_path, model="tiny", layout="dp 2").text()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert {name for name, family in families.items() if family.type == "counter"} == {
        "meshplan_run_returns",
        "meshplan_run_reported_steps",
    }
    states = {one.labels["state"]: one.value for one in families["meshplan_run_state"].samples}
    assert (states["running"], sum(states.values())) == (1.0, 1.0)
    assert families["meshplan_run_info"].samples[0].labels["layout"] == "dp 2"


@pytest.mark.slow
def test_a_run_that_trains_answers(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """`plan run --prometheus PORT`: what is scraped meanwhile is a loss that was reported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen = list[float]()
    watcher = threading.Thread(target=scrape_until_there_is_a_loss, args=(port, seen), daemon=True)
    watcher.start()
    words = run_words(tmp_path, estimated_plan_of(ParallelLayout()), tmp_path / "run")
    assert run([*words, "--steps", "6", "--prometheus", str(port)]) == 0
    watcher.join(10)
    assert seen[0] in losses(tmp_path / "run").values()


def scrape_until_there_is_a_loss(port: int, seen: list[float]) -> None:
    """Ask again and again, also before anything listens."""
    for _ in range(3000):
        time.sleep(0.02)
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            found = values(asked(port)[0])
            if "meshplan_run_loss" in found:
                seen.append(found["meshplan_run_loss"])
                return
