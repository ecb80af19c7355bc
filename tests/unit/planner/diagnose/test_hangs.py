"""Which rank a job that stands still waits for, of recorded hangs and of played ones with one fault each."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from planner.diagnose.hangs import BUSY, GONE, LINK, PASSED, UNLIKE, Hang, hang_of
from planner.traces.events import ProcessGroup
from planner.traces.flight_records import flight_dump, read_flight_dump
from tests.counts import tries
from tests.unit.planner.traces.made_flights import Call, play
from topology.base.errors import InputError

CPU = "traces/cpu"
HANGS = {
    "hang4_skip": ("all_reduce 3 of dp [0, 2]", (0,), (2,), PASSED),
    "hang4_stuck": ("all_reduce 3 of dp [1, 3]", (3,), (1,), BUSY),
}
"""Of `traces/expected.csv`: which collective stands still, who waits in it, who never joins."""
CLEAN = ("gloo4_none", "gloo4_slow_rank", "gloo4_loader", "gloo4_dp2tp2")


def recorded(folder: Path, ending: str) -> Hang | None:
    return hang_of([read_flight_dump(folder / f"fr_rank{rank}.{ending}") for rank in range(4)])


@pytest.mark.parametrize("ending", ["json", "pickle"])
@pytest.mark.parametrize("name", HANGS)
def test_a_recorded_hang_names_its_first_missing_rank(shared_dir: Path, name: str, ending: str) -> None:
    hang = recorded(shared_dir / CPU / name, ending)
    assert hang is not None
    stop = hang.first
    assert (stop.words, stop.joined, stop.missing, stop.why) == HANGS[name]
    assert [other.operation for other in hang.others] == ["barrier"]
    assert hang.finding().rank == stop.missing[0]


@pytest.mark.parametrize("ending", ["json", "pickle"])
@pytest.mark.parametrize("name", CLEAN)
def test_a_run_that_ended_well_hangs_nowhere(shared_dir: Path, name: str, ending: str) -> None:
    assert recorded(shared_dir / CPU / name, ending) is None


# ── played ────────────────────────────────────────────────────────────────────────────────────────────────

SYNCHRONOUS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base")


def mesh(draw: random.Random) -> dict[str, list[list[int]]]:
    """Groups of a mesh of 4 to 32 ranks, tensor parallel innermost."""
    tp, dp = draw.choice((2, 4)), draw.choice((2, 4, 8))
    ranks = range(tp * dp)
    return {
        "default_pg": [list(ranks)],
        "tp": [list(range(at, at + tp)) for at in range(0, tp * dp, tp)],
        "dp": [list(range(at, tp * dp, tp)) for at in range(tp)],
    }


def program(draw: random.Random) -> list[Call]:
    """Some steps of a job, the same on every rank: layers in tp, gradients in dp, a barrier."""
    step = [Call("tp", draw.choice(SYNCHRONOUS), 1000 + layer) for layer in range(draw.randint(1, 4))]
    step += [Call("dp", draw.choice(SYNCHRONOUS), 7000 + bucket) for bucket in range(draw.randint(1, 3))]
    return [*step, Call("default_pg", "barrier", 1)] * draw.randint(2, 4)


def dumped(dumps: dict[int, dict[str, Any]]) -> Hang | None:
    """The hang of what was dumped, read as pickle and as JSON, which say the same."""
    read = [flight_dump(json.loads(json.dumps(dump)), f"fr_rank{rank}") for rank, dump in dumps.items()]
    assert [dump.records for dump in read] == [
        flight_dump(dump, "", rank).records for rank, dump in dumps.items()
    ]
    return hang_of(read)


@pytest.mark.parametrize("nccl", [True, False])
@pytest.mark.parametrize("fault", ["none", "busy", "dead", "unlike", "link"])
def test_a_played_fault_is_named(fault: str, nccl: bool) -> None:
    """The rank and the reason, on NCCL's fields and on gloo's, which say no ranks of groups."""
    for seed in range(tries(25, 400)):
        draw = random.Random(f"{fault}/{seed}")
        groups, calls = mesh(draw), program(draw)
        world = len(groups["default_pg"][0])
        culprit, at = draw.randrange(world), draw.randrange(1, len(calls))
        programs = [list(calls) for _ in range(world)]
        dead: tuple[int, ...] = ()
        stalled: tuple[str, int] | None = None
        if fault in ("busy", "dead"):
            del programs[culprit][at:]
            dead = (culprit,) if fault == "dead" else ()
        if fault == "unlike":
            programs[culprit][at] = Call(calls[at].group, calls[at].operation, calls[at].size + 1)
        if fault == "link":
            stalled = calls[at].group, sum(call.group == calls[at].group for call in calls[: at + 1])
        hang = dumped(play(groups, programs, dead=dead, stalled=stalled, nccl=nccl))
        if fault == "none":
            assert hang is None
            continue
        assert hang is not None
        if fault == "link":
            assert hang.first.why == LINK
            assert (hang.first.group.description, hang.first.number) == stalled
            continue
        if fault == "dead" and not nccl and (culprit == world - 1 or hang.first.why == LINK):
            # Nobody says the ranks of a gloo group: the last rank of the world is not missed, nor is one of a
            # group that no other is as large as.
            continue
        why = {"busy": BUSY, "dead": GONE, "unlike": UNLIKE}[fault]
        assert hang.first.why == why
        if fault == "unlike" and len(hang.first.group.ranks) == 2:
            assert culprit in hang.first.group.ranks  # of two that differ none is the usual one
        else:
            assert hang.first.missing == (culprit,)
        assert hang.finding().cause == "hang"


def test_a_rank_that_skips_a_call_is_named() -> None:
    """All ranks wait, each for another: the skipped call comes first in the order of the others."""
    for seed in range(tries(25, 400)):
        draw = random.Random(seed)
        groups, calls = mesh(draw), program(draw)
        world, culprit = len(groups["default_pg"][0]), draw.randrange(len(groups["default_pg"][0]))
        last = max(place for place, call in enumerate(calls) if call.group == "dp")
        programs = [list(calls) for _ in range(world)]
        del programs[culprit][last]
        for nccl in (True, False):
            hang = dumped(play(groups, programs, nccl=nccl))
            assert hang is not None
            assert hang.first.group.description == "dp"
            assert hang.first.missing == (culprit,)


def test_a_message_without_its_other_side_is_named() -> None:
    """Of a pipeline: stage 1 never receives the third microbatch."""
    groups = {"pp": [[0, 4], [1, 5], [2, 6], [3, 7]]}
    send = [Call("pp", "send", 64, (0, 1))] * 4
    receive = [Call("pp", "recv", 64, (0, 1))] * 4
    programs = [*([send] * 4), *([receive] * 4)]
    assert dumped(play(groups, programs)) is None
    programs[6] = receive[:2]
    hang = dumped(play(groups, programs))
    assert hang is not None
    assert (hang.first.operation, hang.first.number) == ("send 2->6", 3)
    assert (hang.first.joined, hang.first.missing, hang.first.why) == ((2,), (6,), BUSY)


def test_groups_of_a_trace_say_what_a_dump_does_not() -> None:
    """A gloo dump does not say that a silent rank is in the group."""
    groups = {"dp": [[0, 1, 2]]}
    calls = [Call("dp", "all_reduce", 5)] * 3
    dumps = play(groups, [calls, calls, calls[:2]], dead=(2,), nccl=False)
    read = [flight_dump(dump, "", rank) for rank, dump in dumps.items()]
    alone, beside = hang_of(read), hang_of(read, [ProcessGroup(ranks=(0, 1, 2), description="dp", size=3)])
    assert alone is not None
    assert beside is not None
    assert (alone.first.why, beside.first.why, beside.first.missing) == (LINK, GONE, (2,))


def test_the_recorder_of_torch_names_the_same_missing_ranks() -> None:
    """`torch.distributed.flight_recorder`, which needs the ranks of groups, on NCCL's fields."""
    torch_builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    from argparse import Namespace

    arguments = Namespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10
    )
    compared = 0
    for seed in range(tries(10, 100)):
        draw = random.Random(seed)
        groups, calls = mesh(draw), [call for call in program(draw) if call.operation != "barrier"]
        world = len(groups["default_pg"][0])
        programs = [list(calls) for _ in range(world)]
        culprit = draw.randrange(world)
        del programs[culprit][draw.randrange(1, len(calls)) :]
        dumps = play(groups, programs)
        mine = dumped(dumps)
        details = {
            str(rank): {"rank": rank, "host_name": "", **copy.deepcopy(dump)} for rank, dump in dumps.items()
        }
        theirs = torch_builder.build_db(details, arguments, "2.10")
        waits = {
            (c.pg_desc.split(":")[1], c.collective_seq_id): c.missing_ranks
            for c in theirs.collectives
            if c.missing_ranks
        }
        if mine is None or not waits:
            continue
        first = mine.first
        assert waits[first.group.description, first.number] == set(first.missing)
        compared += 1
    assert compared >= 5


def test_what_makes_no_set_of_dumps_is_answered_in_three_lines() -> None:
    dump = flight_dump({"entries": [], "pg_config": {}}, "fr_rank0")
    for dumps, what in (([], "no flight record"), ([dump, dump], "two flight records are of rank 0")):
        with pytest.raises(InputError, match=what) as error:
            hang_of(dumps)
        assert len(str(error.value).splitlines()) == 3
    assert hang_of([dump]) is None
