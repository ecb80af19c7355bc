"""Ten people at once: everyone is answered, and the server's memory stays bounded."""

from pathlib import Path

import pytest

from benchmarks.bench_dashboard import MIB, SESSIONS, ask_at_once, dashboard, resident_bytes

pytest.importorskip("streamlit")
websockets = pytest.importorskip("websockets")
pytestmark = [pytest.mark.slow]

QUESTIONS = [f"model=llama-3.1-8b&gpus=8&tp=2&global_batch_size={64 * n}" for n in range(1, 1 + SESSIONS)]
MOST_ANSWER_S = 60.0
MOST_MEMORY = 1024 * MIB
MOST_GROWTH = 64 * MIB


def test_ten_sessions_at_once_are_answered_and_leave_no_memory_behind():
    """Ten new questions together, then the same again from the cache: faster, and without growth."""
    with dashboard() as (port, server):
        first = ask_at_once(port, QUESTIONS)
        after_first = resident_bytes(server)
        again = [seconds for _ in range(2) for seconds in ask_at_once(port, QUESTIONS)]
        after_all = resident_bytes(server)
    assert not Path(f"/proc/{server}").exists(), "stopping `plan dash` must stop its server"
    assert max(first) <= MOST_ANSWER_S
    assert max(again) <= max(first)
    assert after_all <= MOST_MEMORY
    assert after_all - after_first <= MOST_GROWTH
