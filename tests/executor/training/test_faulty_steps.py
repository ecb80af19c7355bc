"""A real fault in steps of real ranks is the first cause, with the seconds that the run itself recorded of it.

`python benchmarks/diagnose_runs.py` does 20 of each, and those of the loop of `plan run`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from planner.diagnose.diagnosis import diagnosed
from planner.plan import to_json
from planner.questions.flags import Flags
from planner.traces.kineto import read_kineto
from tests.executor.conftest import make_plan
from tests.executor.launch.namespaces import INTERFACE, modules_on_hosts, possible
from tests.executor.training.faulty_steps import INJECTED, KINDS, PLANNED, STEPS, FaultyKind, train
from tests.patience import undisturbed

SECONDS = 0.5
HOSTS = ("node0", "node1", "node2", "node3")
SHAPED = """
rate={full}
if [ "$HOST_NUMBER" -lt 2 ]; then rate={slow}; fi
tc qdisc add dev eth0 root tbf rate "$rate"mbit burst 64kb latency 400ms 2> tc-said && touch "shaped-$HOST_NUMBER"
"""
"""Links of two of the hosts carry a part of what the others' carry."""


def fresh(folder: Path) -> Path:
    """A folder of its own for each try."""
    return Path(tempfile.mkdtemp(dir=folder))


def outcome(kind: FaultyKind, culprit: int, seconds: float, folder: Path) -> str:
    """What is wrong with the diagnosis of one run; empty where nothing is."""
    run_ranks(train, 2, kind.name, culprit, seconds, folder)
    paths = [folder / f"trace-rank{rank}.json" for rank in range(2)]
    beside = []
    if kind.name in PLANNED:
        beside = [folder / "plan.json"]
        beside[0].write_text(to_json(make_plan(ParallelLayout(dp=2))))
    findings = diagnosed([*paths, *beside], Flags()).findings
    if not kind.cause:
        return f"accused of {findings[0].words}" if findings else ""
    if not findings:
        return "nothing is named"
    first, rank = findings[0], culprit if kind.on_one_rank else None
    if (first.cause, first.rank) != (kind.cause, rank):
        return f"named {first.words}, {first.seconds:.2f} s"
    if kind.share is None:
        return ""
    events = (read_kineto(path).events for path in paths)
    recorded = [sum(e.duration_s for e in of.rows() if e.name == INJECTED) / STEPS for of in events]
    lost = max(recorded) * kind.share
    return "" if abs(first.seconds - lost) <= 0.15 * lost else f"{first.seconds:.2f} s of {lost:.2f} s"


@pytest.mark.clock
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_fault_is_named_first(tmp_path: Path, kind: FaultyKind) -> None:
    assert undisturbed(lambda: outcome(kind, 1, SECONDS, fresh(tmp_path))) == ""


def outcome_of_link(full_mbit: int, slow_mbit: int, folder: Path) -> str:
    """What is wrong with the diagnosis of ranks whose links are unlike; empty where nothing is."""
    words = ["tests.executor.training.faulty_steps", str(folder)]
    named = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    shaped = SHAPED.format(full=full_mbit, slow=slow_mbit)
    code, said = modules_on_hosts(HOSTS, words, folder, named, shaped)
    if len([*folder.glob("shaped-*")]) < len(HOSTS):
        pytest.skip(f"no link can be shaped here: {(folder / 'tc-said').read_text()}")
    assert code == 0, said
    paths = [folder / f"trace-rank{rank}.json" for rank in range(4)]
    findings = diagnosed(paths, Flags()).findings
    if full_mbit == slow_mbit:
        return f"accused of {findings[0].words}" if findings else ""
    if not findings or findings[0].cause != "slow link" or "0, 1 as" not in findings[0].evidence:
        return f"named {findings[0].words}: {findings[0].evidence}" if findings else "nothing is named"
    events = (read_kineto(path).events for path in paths)
    spent = [sum(e.duration_s for e in of.rows() if e.name == INJECTED) / STEPS for of in events]
    lost = (spent[0] + spent[1] - spent[2] - spent[3]) / 2
    return (
        "" if abs(findings[0].seconds - lost) <= 0.15 * lost else f"{findings[0].seconds:.2f} of {lost:.2f} s"
    )


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.skipif(not possible(), reason="this machine gives no networks of one's own")
@pytest.mark.parametrize("slow_mbit", [50, 100])
def test_a_halved_link_is_named(tmp_path: Path, slow_mbit: int) -> None:
    assert undisturbed(lambda: outcome_of_link(100, slow_mbit, fresh(tmp_path))) == ""
