"""Every page of the dashboard in every state, seen in Chromium: run `python benchmarks/look_dashboard.py`.

At every one of `WIDTHS`, light and dark, each state is drawn and kept as a picture for somebody to look
at; what can be told without eyes is checked: no text lies on another, none is cut off, no tab or chart
leaves the page, nothing scrolls sideways, nothing broke. Findings are listed; the exit status is 1 with any.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_dashboard import MOST_WAIT_MS, ROOT, dashboard

WIDTHS = (1280, 1440, 1920, 390)
SCHEMES = ("light", "dark")
MOST_HEIGHT = 6000
MIXED = "model=deepseek-v3&gpus=2048&global_batch_size=4096&stack=megatron-core"
LARGE = "model=llama-3.1-405b&gpus=16384&global_batch_size=2048"
JOBS = ROOT / "tests" / "unit" / "planner" / "audit" / "files"
TRACES = ROOT.parent / "shared" / "data" / "traces" / "cpu" / "gloo4_slow_rank"
DROPPED = {
    "audited": [JOBS / "deepseek_v3.sh"],
    "audited log": [JOBS / "megatron.log"],
    "diagnosed": sorted(TRACES.glob("rank*.json.gz")),
}
"""Files that are dropped on a page once it stands, by state; traces where the data of this checkout are."""
INTERLEAVED = "tp=4&pp=4&virtual_stages=5&microbatch_size=1"

SETTLED = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
  && !document.querySelector("[data-testid=stSpinner], [data-testid=stSkeleton]")
  && document.querySelector("[data-testid=stHeading], [data-testid=stAlert]")
  && [...document.querySelectorAll("[data-testid=stPlotlyChart]")].every(c => c.querySelector(".main-svg"))"""

FINDINGS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").partition("\n")[2]


def states() -> dict[str, str]:
    """Address of every state, by name."""
    sys.path.insert(0, str(ROOT))
    from urllib.parse import quote_plus

    from app.pages.answer.pictures import PICTURES
    from app.requests.links import pack
    from costmodel.accuracy.anchor import Anchor, MeasuredStep, stack_level
    from costmodel.training.bands import Doubts
    from planner.questions.flags import Flags
    from planner.questions.training import understand

    def packed(**flags: str) -> str:
        words = {"sequence_length": "8192", "global_batch_size": "512", "tokens": "1T", **flags}
        return quote_plus(pack(understand(Flags(**words)).request))

    small, larger = packed(model="llama-3.1-8b", gpus="8"), packed(model="llama-3.1-8b", gpus="16")
    level = quote_plus(
        pack(
            Anchor(name="runs.csv", levels=(stack_level("megatron-core", [MeasuredStep(0.1, Doubts())] * 4),))
        )
    )
    bubble, links, money = map(quote_plus, ("Why is there a bubble?", "Which link hurts?", "Time or money?"))
    found = {f"tab {tab}": f"?picture={quote_plus(tab)}" for tab in PICTURES}
    found["schedule of many chunks"] = f"?{INTERLEAVED}&picture={bubble}"
    found["schedule, the middle"] = f"?{INTERLEAVED}&stretch=middle&picture={bubble}"
    found["fabric of 16,384"] = f"?{LARGE}&picture={links}"
    found["money of 16,384"] = f"?{LARGE}&offers=true&picture={money}"
    found["limits"] = f"?deadline=200d&budget=2M&picture={money}"
    found["mixture of experts"] = f"?{MIXED}"
    return found | {
        "baseline": f"?model=llama-3.1-8b&gpus=16&baseline={small}",
        "nothing fits": "?model=llama-3.1-405b&gpus=16",
        "illegal": "?tp=8&pp=8&dp=8",
        "refused link": "?model=llama-9-900b",
        "awaited file": "?model=uploaded+file",
        "with measured steps": f"?anchor=uploaded+runs+or+log&anchor_spec={level}",
        "audit": "audit",
        "audited": "audit?model=llama-3.1-8b&gpus=8",
        "audited log": "audit?model=llama-3.1-8b&gpus=8",
        "diagnose": "diagnose",
        **({"diagnosed": "diagnose"} if DROPPED.get("diagnosed") else {}),
        "compare nothing": "compare",
        "compare": f"compare?with={small}&with={larger}",
        "campaign": "campaign?model=llama-3.1-8b&gpus=8&frontier=true",
        "campaign of 16,384": f"campaign?{LARGE}&tokens=15T",
        "topology": "topology?topology_axis=dp",
        "topology of 16,384": f"topology?{LARGE}&topology_axis=pp",
        "accuracy": "accuracy",
        "serving": "serving?serve_gpus=8",
        "serving curve": "serving?model=llama-3.1-8b&serve_gpus=2&curve=true",
        "executor": "executor",
    }


def some_runs(folder: Path) -> Path:
    """Two training runs, each restarted once, as the executor writes them."""
    for name in ("monday", "tuesday"):
        (folder / name).mkdir()
        write_run(folder / name)
    return folder


def write_run(folder: Path) -> None:
    """A training run that restarted once."""
    steps = [*range(1, 31), *range(21, 61)]
    lines = [
        json.dumps(
            {"step": step, "loss": 6.0 - step / 40, "step_time_s": 1.9 + 0.1 * (step % 3),
             "predicted_step_time_s": 1.95, "tokens_per_s": 2100.0 - 50 * (step % 3), "mfu": 0.41,
             "peak_memory_bytes": 61 * 2**30}
        )
        for step in steps
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1000.0 * step + start, "dur": length}
        for step in range(60)
        for name, start, length in (
            ("gemm", 0.0, 700.0), ("ncclDevKernel_AllGather_RING", 300.0, 500.0),
            ("ncclDevKernel_ReduceScatter_RING", 650.0, 200.0),
        )
    ]  # fmt: skip
    (folder / "trace-rank0.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    status = {"state": "running", "step": 60, "history": []}
    (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")


def look(page: Any, url: str, shot: Path, width: int, dropped: Sequence[Path] = ()) -> list[tuple[str, str]]:
    """Draw a state, keep its pictures, and tell what is wrong with it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(url)
    page.wait_for_function(SETTLED)
    if dropped:
        page.locator("[data-testid=stMain] input[type=file]").first.set_input_files(
            [str(path) for path in dropped]
        )
        page.wait_for_timeout(1000)
        page.wait_for_function(SETTLED)
    page.wait_for_timeout(300)
    height = int(page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")) + 40
    page.set_viewport_size({"width": width, "height": max(900, min(height, MOST_HEIGHT))})
    page.wait_for_timeout(300)
    page.wait_for_function(SETTLED)
    found = [(str(what), str(where)) for what, where in page.evaluate(FINDINGS)]
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(150)
        page.wait_for_function(SETTLED)
        page.screenshot(path=str(shot.with_name(f"{shot.name}-{width}-{scheme}.png")))
    page.emulate_media(color_scheme=SCHEMES[0])
    return found


def look_at_all(wanted: Mapping[str, str], widths: Sequence[int], base: str, out: Path) -> int:
    """Print what is wrong with every state at every width; how much that is."""
    from playwright.sync_api import sync_playwright

    count = 0
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--headless", "--disable-gpu"]
        )
        context = browser.new_context()
        context.set_default_timeout(MOST_WAIT_MS)
        for name, query in wanted.items():
            page = context.new_page()
            for width in widths:
                shot = out / name.replace(" ", "-").replace("?", "").replace(",", "")
                found = look(page, f"{base}/{query}", shot, width, DROPPED.get(name, ()))
                count += len(found)
                for what, where in found:
                    print(f"{name:28} {width:>5} px  {what}: {where}", flush=True)
            page.close()
        browser.close()
    return count


def main() -> int:
    """Look at what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the pictures")
    parser.add_argument("--only", default="", help="states whose name holds this text")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS), help="in pixels")
    asked = parser.parse_args()
    out = asked.out or Path(tempfile.mkdtemp(prefix="dashboard-"))
    out.mkdir(parents=True, exist_ok=True)
    wanted = {name: query for name, query in states().items() if asked.only in name}
    with (
        tempfile.TemporaryDirectory() as folder,
        dashboard("--run", str(some_runs(Path(folder)))) as (port, _),
    ):
        count = look_at_all(wanted, asked.widths, f"http://127.0.0.1:{port}", out)
    pictures = len(wanted) * len(asked.widths) * len(SCHEMES)
    print(f"{count} findings in {len(wanted)} states, {pictures} pictures in {out}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
