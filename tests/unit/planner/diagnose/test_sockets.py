"""NCCL over TCP is named by its log, with what the traces beside it lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of
from planner.questions.flags import Flags
from planner.traces.nccl_logs import transports
from tests.unit.planner.diagnose.simulated import simulate, write_ranks

LOG = """n1:71:93 [7] NCCL INFO Channel 00/0 : 6[6] -> 7[7] via P2P/CUMEM/read
n1:71:93 [7] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/{net}/0
n2:64:80 [0] NCCL INFO Channel 01/0 : 7[7] -> 8[0] [receive] via NET/{net}/0
"""


def test_transports_by_what_nccl_prints() -> None:
    assert transports(LOG.format(net="IB")) == {"P2P": 1, "NET/IB": 2}
    assert transports("Using network Socket\nvia NET/Socket") == {}


@pytest.mark.parametrize("net", ["Socket", "IB"])
def test_sockets_stand_first_where_communication_is_exposed(tmp_path: Path, net: str) -> None:
    """Alone the log tells no seconds; beside traces they are what is communicated while nothing computes."""
    job = simulate(101, "overlap off")
    paths = write_ranks(job, tmp_path)
    log = tmp_path / "run.log"
    log.write_text(LOG.format(net=net))
    side, _ = diagnosis_of(DiagnoseQuestion(files=(*paths, log)), Flags())
    named = {finding.cause: finding for finding in side.findings}
    assert ("sockets" in named) == (net == "Socket")
    if net == "Socket":
        assert named["sockets"].seconds * 1e6 == pytest.approx(job.truth_us, rel=0.02)
        alone, _ = diagnosis_of(DiagnoseQuestion(files=(log,)), Flags())
        assert [(each.cause, each.seconds) for each in alone.findings] == [("sockets", 0.0)]
