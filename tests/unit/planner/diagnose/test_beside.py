"""Files beside traces are known by how they begin, and each explains what it can."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest

from app.reports.answer import render
from app.reports.diagnose import diagnose_answer
from planner.diagnose.beside import beside_traces, kind_beside
from planner.diagnose.diagnosis import merged, recorded_files
from planner.diagnose.finding import StepFinding
from tests.unit.planner.diagnose.test_devices import ODD, as_csv, as_metrics, as_xml, node
from tests.unit.planner.diagnose.test_stragglers import play as play_pipeline
from tests.unit.planner.traces.made_flights import Call, play
from tests.unit.planner.traces.test_memory_snapshots import Allocator, step
from topology.base.errors import InputError
from topology.base.units import MIB


def test_each_file_is_known_and_explains_its_part(tmp_path: Path) -> None:
    calls = [Call("dp", "all_reduce", 8)] * 3
    for rank, dump in play({"dp": [[0, 1]]}, [calls, calls[:1]]).items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))
        (tmp_path / f"fr_rank{rank}.json").write_text(json.dumps(dump))
    allocator = Allocator(room=100 * MIB)
    for _ in range(4):
        step(allocator, random.Random(1))
    (tmp_path / "snapshot_rank3.pickle").write_bytes(pickle.dumps(allocator.snapshot()))
    (tmp_path / "memory_timeline.raw.json").write_text("[[5000, 2, 100, 0]]")
    for name, written in (("smi.xml", as_xml), ("smi.csv", as_csv), ("metrics.txt", as_metrics)):
        (tmp_path / name).write_text(written(node(**ODD["throttled clocks"])))
    kinds = {path.name: kind_beside(path) for path in tmp_path.iterdir()}
    assert kinds == {
        **{f"nccl_trace_rank_{rank}": "pickle" for rank in (0, 1)},
        **{f"fr_rank{rank}.json": "flight record" for rank in (0, 1)},
        "snapshot_rank3.pickle": "pickle",
        "memory_timeline.raw.json": "memory timeline",
        **dict.fromkeys(("smi.xml", "smi.csv", "metrics.txt"), "devices"),
    }
    beside = beside_traces(sorted(tmp_path.iterdir()), step_s=3.0)
    assert beside.hang is not None
    assert beside.hang.first.missing == (1,)
    assert [memory.peak_bytes for memory in beside.memory] == [100, allocator.peak]
    causes = {(finding.words, finding.rank) for finding in beside.findings}
    assert causes == {
        ("hang (rank 1)", 1),
        ("throttled clocks (GPU 5)", None),
        ("allocator (rank 3)", 3),
    }
    assert beside.findings[0].cause == "hang"


def test_a_table_of_operations_is_played(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def forward_s(step: int, replica: int, stage: int, m: int) -> float:
        return 0.2 if (replica, stage) == (1, 0) else 0.1

    columns = play_pipeline(
        random.Random(1), replicas=3, stages=3, microbatches=6, steps=3, forward_s=forward_s
    )
    parquet.write_table(pyarrow.table(columns), tmp_path / "job.parquet")
    beside = beside_traces([tmp_path / "job.parquet"])
    assert beside.slowdown is not None
    assert [(finding.cause, finding.rank) for finding in beside.findings] == [("slow rank", 3)]


def test_recorded_hangs_are_named_from_their_folders(shared_dir: Path) -> None:
    """Pickles and JSON of the same ranks together."""
    for name, rank in (("hang4_skip", 2), ("hang4_stuck", 1)):
        beside = beside_traces(sorted((shared_dir / "traces/cpu" / name).iterdir()))
        assert [(finding.cause, finding.rank) for finding in beside.findings] == [("hang", rank)]


@pytest.mark.parametrize("content", [b"", b"{}", b"hello", b"\x00" * 99, b"index\n1\n"])
def test_what_explains_nothing_is_answered_in_three_lines(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for given in (path, tmp_path / "none", tmp_path):
        with pytest.raises(InputError) as error:
            beside_traces([given])
        assert len(str(error.value).splitlines()) == 3


def test_walls_beside_traces_are_no_job(tmp_path: Path) -> None:
    """`plan run --profile-step` leaves them in its folder, which a shell's star hands over whole."""
    trace, walls = tmp_path / "trace-rank0.json", tmp_path / "wall_rank0.json"
    trace.write_text('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}')
    walls.write_text('{"rank": 0, "world": 2, "step": 3, "wall_step_s": [1.0, 1.1, 1.3]}')
    files = recorded_files([trace, walls])
    assert (files.traces, files.beside, files.job) == ((trace,), (), ())


def test_an_answer_says_each_finding_and_each_memory_once(tmp_path: Path) -> None:
    """The verdict has the evidence, so the list of causes has what cures it; a timeline and its raw events are one."""
    allocator = Allocator(room=100 * MIB)
    for _ in range(4):
        step(allocator, random.Random(1))
    (tmp_path / "snapshot_rank3.pickle").write_bytes(pickle.dumps(allocator.snapshot()))
    (tmp_path / "memory_timeline.raw.json").write_text("[[5000, 2, 100, 0]]")
    (tmp_path / "memory_timeline.json").write_text("[[5000], [[0, 100, 0, 0, 0, 0, 0, 0, 0]]]")
    side = beside_traces(sorted(tmp_path.iterdir()))
    assert [memory.rank for memory in side.memory] == [None, 3]
    text = " ".join(render(diagnose_answer(side, 0), "table").split())
    (finding,) = side.findings
    assert text.count(finding.evidence.split(";")[0]) == 1
    assert text.count(finding.fix.split(",")[0]) == 1


def test_a_cause_that_a_trace_and_a_record_show_is_one() -> None:
    """The trace says what it costs, the record the rank."""
    seen = StepFinding(cause="allocator", seconds=1.0, share=0.1, evidence="in gaps", fix="set it")
    record = replace(seen, rank=3, seconds=0.0, share=0.0, evidence="cudaFree")
    assert merged([record], [seen]) == [replace(seen, rank=3, evidence="in gaps; cudaFree")]
    other = replace(seen, rank=2)
    assert merged([record], [other]) == [other, record]
