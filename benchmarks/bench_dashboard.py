"""How fast the dashboard answers, against what was asked: run `python benchmarks/bench_dashboard.py`.

First paint and changes are timed in the system's Chromium: from the key until the new plan's numbers stand,
and until its pictures do; ten sessions are timed at the server's door, as ten browsers would ask it. Medians;
every timed question is a new one, so none is answered from the cache. On a busy machine, compare processor
times, and waits with those of a bare Streamlit page (a box and a line that repeats it) of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
SESSIONS = 10
MANY_SESSIONS = 200
CHANGING_SESSIONS = 50
LARGE = "model=llama-3.1-405b&gpus=16384"
MIXED = "model=deepseek-v3&gpus=2048&global_batch_size=4096"
LARGE_SEARCH = "model=deepseek-v3&gpus=2048&global_batch_size=4104"
IDLE = '() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"'
TYPED_EVERY_S = 0.2
COMPLETE = 0
"""`ScriptFinishedStatus` of a page that was drawn to its end; others were superseded."""
REST_MS, MOST_WAIT_MS = 300, 120_000
WATCH = """(text) => {
  const stands = () => [...document.querySelectorAll("[data-testid=stCaptionContainer]")]
    .some(caption => caption.textContent.includes(text));
  const idle = () => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning";
  const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  window.stands = new Promise(done => {
    let asked = 0, numbers = 0;
    const note = () => { asked = performance.now(); };
    document.addEventListener("keydown", note, {capture: true, once: true});
    const look = async () => {
      if (asked && !numbers && stands()) {
        numbers = -1;
        await painted();
        numbers = performance.now() - asked;
      }
      if (numbers > 0 && idle()) {
        observer.disconnect();
        await painted();
        done([numbers, performance.now() - asked]);
      }
    };
    const observer = new MutationObserver(look);
    observer.observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
  });
}"""
"""Sets `window.stands`: ms from the next key until a caption says `text`, and until all is drawn."""
BARE = """import streamlit as st
st.title("bare")
batch = st.selectbox("Global batch", ["512"], accept_new_options=True)
st.caption(f"{int(batch):,} sequences of 8,192 tokens")
"""
"""A page that does nothing: what Streamlit and this machine take."""
ANSWERED = '() => !!document.querySelector(".st-key-answer h2")'
"""The sentence that answers the question is there."""
STOOD = '() => !!document.querySelector("[data-testid=stCaptionContainer]")'
DRAWN = '() => document.querySelectorAll("[data-testid=stPlotlyChart] .main-svg").length >= 2'


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def bare_page() -> Iterator[tuple[int, int]]:
    """Port and process id of a Streamlit server whose page does nothing."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE, encoding="utf-8")
        words = [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port)]
        words += ["--server.headless", "true", "--server.address", "127.0.0.1"]
        words += ["--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                while not is_up(port):
                    time.sleep(0.05)
                yield port, server.pid
            finally:
                server.send_signal(signal.SIGTERM)


@contextmanager
def dashboard(*more: str) -> Iterator[tuple[int, int]]:
    """Port and process id of a dashboard's server, started with more words; stopped afterwards."""
    port = free_port()
    words = [sys.executable, "-m", "app", "dash", "--no-browser", "--port", str(port), *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as command:
        try:
            while not is_up(port):
                time.sleep(0.05)
            yield port, server_of(command.pid)
        finally:
            command.send_signal(signal.SIGTERM)


def is_up(port: int) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def server_of(pid: int) -> int:
    """The process that `plan dash` has started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def resident_bytes(pid: int) -> int:
    """Memory a process holds."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def family(pid: int) -> list[int]:
    """A process and those that it has started, in which the dashboard answers questions."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [
        pid,
        *(found for path in children for child in path.read_text().split() for found in family(int(child))),
    ]


def processor_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, query: str) -> tuple[float, int]:
    """Open a session at a URL query, as a browser does; seconds until its page is complete, and its bytes."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    started, received = time.perf_counter(), 0
    address = f"ws://127.0.0.1:{port}/_stcore/stream"
    async with websockets.connect(
        address, subprotocols=["streamlit"], max_size=None, origin=f"http://127.0.0.1:{port}"
    ) as socket_:
        question = BackMsg()
        question.rerun_script.query_string = query
        await socket_.send(question.SerializeToString())
        answer = ForwardMsg()
        while answer.WhichOneof("type") != "script_finished":
            content = await socket_.recv()
            received += len(content)
            answer.ParseFromString(content)
    return time.perf_counter() - started, received


def ask_at_once(port: int, queries: Sequence[str]) -> list[float]:
    """Seconds of sessions that ask at the same moment."""

    async def together() -> list[tuple[float, int]]:
        return await asyncio.gather(*(ask(port, query) for query in queries))

    with ThreadPoolExecutor(1) as alone:  # the caller's thread may run a loop already
        return [seconds for seconds, _ in alone.submit(asyncio.run, together()).result()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Seconds of one change: until its numbers stand, until its pictures do too, and of processor time."""

    numbers_s: float
    pictures_s: float
    server_s: float
    browser_s: float


def open_seconds(
    browser: Any, url: str, drawn: str = DRAWN, answered: str = ANSWERED
) -> tuple[float, float, float]:
    """Seconds from the address to the first content, the answer, and the drawn plan, of a new session."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(MOST_WAIT_MS)
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function(answered)
    answer = time.perf_counter() - started
    page.wait_for_function(drawn)
    page.wait_for_function(IDLE)
    complete = time.perf_counter() - started
    painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return painted_ms / 1000, answer, complete


def changes(browser: Any, url: str, batches: Sequence[int], server: int, drawn: str = DRAWN) -> list[Change]:
    """Choose one global batch after the other, and wait for each plan."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(MOST_WAIT_MS)
    page.goto(url)
    page.wait_for_function(drawn)
    page.wait_for_function(IDLE)
    processes = browser.new_browser_cdp_session()
    timed = [change(page, batch, processes, server) for batch in batches]
    context.close()
    return timed


def change(page: Any, batch: int, processes: Any, server: int) -> Change:
    """Choose a global batch; the page itself notes when the new plan stands."""
    box = page.get_by_test_id("stSelectbox").filter(has_text="Global batch").locator("input").first
    box.fill(str(batch))
    page.evaluate(WATCH, f"{batch:,} sequences of")
    page.wait_for_timeout(REST_MS)
    before = processor_s(server), browser_processor_s(processes)
    box.press("Enter")
    numbers_ms, pictures_ms = page.evaluate("window.stands")
    page.wait_for_timeout(REST_MS)
    after = processor_s(server), browser_processor_s(processes)
    return Change(
        numbers_s=numbers_ms / 1000, pictures_s=pictures_ms / 1000,
        server_s=after[0] - before[0], browser_s=after[1] - before[1],
    )  # fmt: skip


def browser_processor_s(processes: Any) -> float:
    """Processor seconds that all processes of the browser have used."""
    found = processes.send("SystemInfo.getProcessInfo")["processInfo"]
    return sum(float(entry["cpuTime"]) for entry in found)


def row(what: str, asked: str, values: Sequence[float]) -> None:
    """Print one line of the table."""
    print(f"{what:34} {asked:>10} {statistics.median(values):>8.2f} s {max(values):>8.2f} s", flush=True)


def change_rows(what: str, asked: str, timed: Sequence[Change]) -> None:
    """Print the lines of a change: what a person waits for, and what processors do meanwhile."""
    row(f"change, {what}: its numbers", asked, [entry.numbers_s for entry in timed])
    row("  its pictures too", "", [entry.pictures_s for entry in timed])
    row("  processor time of the server", "", [entry.server_s for entry in timed])
    row("  processor time of the browser", "", [entry.browser_s for entry in timed])


def time_in_browser(port: int, server: int) -> None:
    """First paint and changes."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    url = f"http://127.0.0.1:{port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--headless", "--disable-gpu"]
        )
        with bare_page() as (bare_port, bare_server):
            bare = f"http://127.0.0.1:{bare_port}/"
            opened = [open_seconds(browser, bare, STOOD, STOOD) for _ in range(5)]
            row("a bare page: it stands", "", [complete for _, _, complete in opened])
            nothing = changes(browser, bare, range(520, 560, 8), bare_server, STOOD)
            row("  a change of it", "", [entry.numbers_s for entry in nothing])
        opened = [open_seconds(browser, url) for _ in range(7)]
        row("first paint of a new session", "", [first for first, _, _ in opened])
        row("  its answer stands", "≤ 1.2 s", [answer for _, answer, _ in opened])
        row("  its pictures too", "", [complete for _, _, complete in opened])
        change_rows("70b on 32", "≤ 0.6 s", changes(browser, url, range(520, 600, 8), server))
        large = changes(browser, f"{url}?{LARGE}", range(2056, 2096, 8), server)
        change_rows("405b on 16,384", "≤ 1 s", large)
        mixed = changes(browser, f"{url}?{MIXED}", range(4112, 4136, 8), server)
        change_rows("DeepSeek-V3 on 2,048", "≤ 3 s", mixed)
        browser.close()


def time_sessions(port: int, server: int) -> None:
    """Ten sessions at once, and what they leave in memory."""
    before = resident_bytes(server)
    used_s = processor_s(server)
    row("ten sessions, one question", "", ask_at_once(port, [""] * SESSIONS))
    row("  processor time of each", "", [(processor_s(server) - used_s) / SESSIONS])
    new = [f"global_batch_size={batch}" for batch in range(800, 800 + 8 * SESSIONS, 8)]
    row("ten sessions, ten new questions", "≤ 2.5 s", ask_at_once(port, new))
    row("the same again", "", ask_at_once(port, new))
    typed = [f"global_batch_size={batch}" for batch in range(1600, 1600 + 8 * SESSIONS, 8)]
    used_s = sum(map(processor_s, family(server)))
    row("ten questions typed in a row", "≤ 1.5 s", [asyncio.run(type_quickly(port, typed))])
    row("  processor time of all ten", "", [sum(map(processor_s, family(server))) - used_s])
    after = resident_bytes(server)
    print(f"server: {after / MIB:.0f} MiB, {(after - before) / MIB:+.0f} MiB for {3 * SESSIONS} sessions")
    beside = time_beside(port)
    row("a small question beside a large one", "", [beside[0]])
    row("  the large one", "", [beside[1]])


def time_beside(port: int) -> tuple[float, float]:
    """Seconds of a small question that is asked while a large one is searched, and of the large one."""

    async def together() -> tuple[float, float]:
        large = asyncio.create_task(ask(port, LARGE_SEARCH))
        await asyncio.sleep(1)
        small, _ = await ask(port, "model=llama-3.1-8b&gpus=8&global_batch_size=136")
        return small, (await large)[0]

    return asyncio.run(together())


def held_after(port: int, server: int, sessions: int) -> int:
    """Bytes that the server and its workers hold after so many sessions, ten at a time, ten questions."""
    for _ in range(0, sessions, SESSIONS):
        ask_at_once(port, [f"global_batch_size={batch}" for batch in range(800, 800 + 8 * SESSIONS, 8)])
    return sum(map(resident_bytes, family(server)))


async def change_often(port: int, queries: Sequence[str]) -> None:
    """One session that asks these questions one after the other; every page has to be complete."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    address = f"ws://127.0.0.1:{port}/_stcore/stream"
    async with websockets.connect(
        address, subprotocols=["streamlit"], max_size=None, origin=f"http://127.0.0.1:{port}"
    ) as socket_:
        for query in queries:
            question = BackMsg()
            question.rerun_script.query_string = query
            await socket_.send(question.SerializeToString())
            answer = ForwardMsg()
            while answer.WhichOneof("type") != "script_finished":
                answer.ParseFromString(await socket_.recv())


async def type_quickly(port: int, queries: Sequence[str]) -> float:
    """One session whose question changes before it is answered; seconds from the last change to its page."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    address = f"ws://127.0.0.1:{port}/_stcore/stream"
    async with websockets.connect(
        address, subprotocols=["streamlit"], max_size=None, origin=f"http://127.0.0.1:{port}"
    ) as socket_:
        for query in queries:
            await asyncio.sleep(TYPED_EVERY_S)
            question = BackMsg()
            question.rerun_script.query_string = query
            await socket_.send(question.SerializeToString())
        started, answer = time.perf_counter(), ForwardMsg()
        while answer.WhichOneof("type") != "script_finished" or answer.script_finished != COMPLETE:
            answer.ParseFromString(await socket_.recv())
    return time.perf_counter() - started


def held_by_changes(port: int, server: int, sessions: int, count: int) -> None:
    """Print what the server and its workers hold after some changes of many sessions, and after all."""
    queries = [f"model=llama-3.1-8b&gpus=8&global_batch_size={64 + 8 * (n % 20)}" for n in range(count)]

    async def together(share: Sequence[str]) -> None:
        await asyncio.gather(*(change_often(port, share) for _ in range(sessions)))

    asyncio.run(together(queries[: max(20, count // 10)]))
    first = sum(map(resident_bytes, family(server)))
    started = time.perf_counter()
    asyncio.run(together(queries))
    seconds, after = time.perf_counter() - started, sum(map(resident_bytes, family(server)))
    print(
        f"{sessions} sessions, {count} changes each in {seconds:.0f} s: {first / MIB:.0f} MiB, then "
        f"{after / MIB:.0f} MiB, {100 * (after / first - 1):+.1f} % (asked: within 10 %)"
    )


def watch_memory(port: int, server: int) -> None:
    """What many sessions leave in memory, once the first have filled caches."""
    first = held_after(port, server, MANY_SESSIONS // 4)
    grown = held_after(port, server, MANY_SESSIONS) - first
    print(
        f"server and workers: {first / MIB:.0f} MiB, {grown / MIB:+.0f} MiB for {MANY_SESSIONS} more sessions"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, help="50 sessions, so many changes each; asked: 200")
    asked = parser.parse_args()
    if asked.changes:
        with dashboard() as (port, server):
            held_by_changes(port, server, CHANGING_SESSIONS, asked.changes)
        return
    print(f"{'what':34} {'asked':>10} {'median':>10} {'slowest':>10}")
    with dashboard() as (port, server):
        row("the server's very first answer", "", [asyncio.run(ask(port, ""))[0]])
        time_sessions(port, server)
        watch_memory(port, server)
        time_in_browser(port, server)
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"(other work on this machine: {busy:.1f} runnable processes per core)")


if __name__ == "__main__":
    main()
