"""Ten people at once: everyone is answered, and memory stays bounded, that of many sessions too."""

from pathlib import Path

import pytest

from benchmarks.bench_dashboard import MIB, SESSIONS, ask_at_once, dashboard, held_after
from tests.counts import tries

pytest.importorskip("streamlit")
websockets = pytest.importorskip("websockets")
pytestmark = [pytest.mark.slow]

QUESTIONS = [f"model=llama-3.1-8b&gpus=8&tp=2&global_batch_size={64 * n}" for n in range(1, 1 + SESSIONS)]
MOST_ANSWER_S = 60.0
MOST_MEMORY = 1024 * MIB
FEW_SESSIONS = tries(20, 50)
MOST_GROWTH = FEW_SESSIONS * 24 / 50 * MIB  # about three times what they were seen to hold more


def test_ten_sessions_at_once_are_answered_and_leave_no_memory_behind():
    """Ten new questions together, then the same from the cache; many more sessions hold no more, workers included."""
    with dashboard() as (port, server):
        first = ask_at_once(port, QUESTIONS)
        again = ask_at_once(port, QUESTIONS)
        before = held_after(port, server, FEW_SESSIONS)
        after = held_after(port, server, FEW_SESSIONS)
    assert not Path(f"/proc/{server}").exists(), "stopping `plan dash` must stop its server"
    assert max(*first, *again) <= MOST_ANSWER_S
    assert after <= MOST_MEMORY
    assert after - before <= MOST_GROWTH
