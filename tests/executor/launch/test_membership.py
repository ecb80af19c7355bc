"""Who lives and who decides, by plain files and clocks of the test's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.launch import turns as turns_module
from executor.launch.membership import SILENT_S, Heard, Members, MembershipTable
from executor.launch.nodes import Nodes
from executor.launch.schedulers import alone_hint
from executor.launch.supervise import begin_run, with_plan
from executor.launch.turns import (
    EARLIER_S,
    Crew,
    Turn,
    Turns,
    chosen,
    earlier_words,
    require_none_refused,
    telling,
)
from executor.training.settings import CHECKPOINTS, RunSettings, RunStatus, write_json
from planner.plan import Plan
from topology.base.errors import InputError


class Job:
    """Nodes of one GPU each, as many tables on one folder, and a clock."""

    def __init__(
        self, folder: Path, plan_of: Callable[..., Plan], count: int = 4, min_gpus: int = 2, come: int = 0
    ) -> None:
        self.folder, self.now_s, self.said = folder, 0.0, list[str]()
        self.plans = {gpus: plan_of(ParallelLayout(dp=gpus), batch=12) for gpus in range(1, count + 1)}
        self.count, self.min_gpus, self.come = count, min_gpus, come
        (folder / "meeting").mkdir()
        self.nodes = {node: self.launched(node) for node in range(count)}

    def launched(self, node: int) -> Turns:
        """A launcher that has just been started."""
        crew = Crew(
            plan=self.plans[self.count], count=self.count, hosts=(), min_gpus=self.min_gpus,
            replan=lambda gpus, _lost: self.plans.get(gpus),
        )  # fmt: skip
        settings = RunSettings(folder="", plan_file="", steps=1)
        return Turns(
            table=MembershipTable(folder=self.folder / "meeting", node=node),
            crew=crew,
            nodes=Nodes(count=self.count, rank=node, launch="7", come=self.come),
            settings=with_plan(settings, self.folder),
            say=self.said.append,
            write=lambda _plan: None,
            begin=lambda: begin_run(self.folder),
        )

    def pass_s(self, seconds: float, beating: Sequence[int]) -> None:
        """Let time pass, second by second, in which some nodes beat and all look."""
        for _ in range(round(seconds)):
            self.now_s += 1
            for node in beating:
                self.nodes[node].table.beat()
            for turns in self.nodes.values():
                turns.table.look(self.now_s)

    def settle(self, node: int, failure: str = "crashed") -> None:
        """Have a node do what falls to it now."""
        table = self.nodes[node].table
        number = table.latest()
        members = table.members(number) if number >= 0 else Members()
        turns = self.nodes[node]
        if number >= 0 or turns._complete(0.0):
            turns.settle(number, members, failure, under_way=number >= 0)

    def end(self, *nodes: int, lost: Sequence[int] = ()) -> None:
        """Ranks of the last turn end on some nodes."""
        for node in nodes:
            table = self.nodes[node].table
            table.beat(ended=table.latest(), lost=int(node in lost))

    def members(self) -> Members:
        """Those of the last turn."""
        table = self.nodes[0].table
        return table.members(table.latest())

    def turn(self, node: int) -> Turn:
        """The last turn as one of its nodes takes it."""
        table = self.nodes[node].table
        return self.nodes[node].taken(table.latest(), table.members(table.latest()))


@pytest.fixture
def job(tmp_path: Path, plan_of: Callable[..., Plan]) -> Job:
    """Four nodes in their first turn."""
    job = Job(tmp_path, plan_of)
    job.pass_s(2, range(4))
    for node in (3, 0):
        job.settle(node)
    assert job.members().nodes == (0, 1, 2, 3)
    return job


def test_the_first_turn_waits_for_every_node(tmp_path: Path, plan_of: Callable[..., Plan]) -> None:
    """Files of an earlier start count for nothing until they change."""
    job = Job(tmp_path, plan_of)
    job.nodes[3].table.beat()
    job.pass_s(2, (0, 1, 2))
    job.settle(0)
    assert job.nodes[0].table.latest() == -1
    job.pass_s(2, range(4))
    job.settle(0)
    assert job.nodes[0].table.latest() == 0


def test_a_job_that_was_given_fewer_nodes_than_the_most_begins_with_them(
    tmp_path: Path, plan_of: Callable[..., Plan]
) -> None:
    """Of 2:4 a scheduler gave three: nobody waits for the fourth, which is a spare if it comes."""
    job = Job(tmp_path, plan_of, come=3)
    job.pass_s(2, (0, 1))
    job.settle(0)
    assert job.nodes[0].table.latest() == -1
    job.pass_s(2, (0, 1, 2))
    job.settle(0)
    assert job.members().nodes == (0, 1, 2)
    assert job.turn(0).plan.layout.num_gpus == 3
    assert "not all nodes came: continuing on 3 of 4 nodes, 3 of 4 GPUs" in job.said


def test_nobody_waits_for_a_node_that_does_not_start(job: Job) -> None:
    """What it is not fit for is told by its own words to those that wait; once it is mended it takes them back."""
    meeting = job.folder / "meeting"
    with pytest.raises(InputError), telling(meeting, 2):
        raise InputError(what="this node is hot", cause="GPU 3", fix="mend it")
    with pytest.raises(InputError) as raised:
        require_none_refused(meeting)
    assert str(raised.value).splitlines()[0] == "error: node 2 does not start: this node is hot"
    with telling(meeting, 2):
        pass
    require_none_refused(meeting)


def test_words_of_an_earlier_start_end_none(job: Job) -> None:
    """Where all starts have one name; what is said anew, or a moment before this node came, is of this one."""
    meeting = job.folder / "meeting"

    def refuse() -> Path:
        with pytest.raises(InputError), telling(meeting, 2):
            raise InputError(what="this node is hot", cause="GPU 3", fix="mend it")
        return meeting / "refused-2"

    refuse()
    assert earlier_words(meeting, 0) == frozenset()
    old_s = time.time() - 2 * EARLIER_S
    os.utime(meeting / "refused-2", (old_s, old_s))
    earlier = earlier_words(meeting, 0)
    require_none_refused(meeting, earlier)
    refuse()
    with pytest.raises(InputError, match="node 2 does not start"):
        require_none_refused(meeting, earlier)


def test_it_is_said_for_whom_a_node_waits(
    tmp_path: Path, plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and in a Slurm job's shell what starts the others."""
    job = Job(tmp_path, plan_of)
    job.pass_s(2, (0, 2))
    turns = job.nodes[0]
    monkeypatch.setattr(turns_module, "SILENT_S", 0.0)
    monkeypatch.setattr(turns_module, "MEETING_S", 0.3)
    monkeypatch.setattr(turns_module, "LOOK_S", 0.05)
    turns.hint = alone_hint(Nodes(announced_by="Slurm"), {"SLURM_JOB_ID": "7"})
    assert alone_hint(Nodes(announced_by="Slurm"), {"SLURM_STEP_ID": "0"}) == alone_hint(Nodes(), {}) == ""
    assert turns.following(-1, "") is not None
    waits = [line for line in job.said if line.startswith("waiting")]
    assert waits == ["waiting for node 1, node 3, up to 0.3 s; start it with srun --ntasks-per-node=1"]


def test_of_two_claims_one_wins(job: Job) -> None:
    """And what the other wrote is nowhere."""
    first, second = (Members(nodes=(node,), tokens=(str(node),)) for node in (1, 2))
    claims = [job.nodes[node].table.claim(1, members, {}) for node, members in ((1, first), (2, second))]
    assert claims == [True, False]
    assert job.members() == first
    assert not list((job.folder / "meeting").glob(".draft-*"))


def test_a_silent_node_ends_the_turn_and_the_lowest_decides(job: Job) -> None:
    """Not before every survivor's ranks are gone, nor by another node."""
    turn = job.turn(1)
    job.pass_s(SILENT_S - 1, (0, 1, 3))
    assert not turn.over()
    job.pass_s(2, (0, 1, 3))
    assert turn.over()
    job.settle(0)
    job.end(0, 1)
    job.pass_s(1, (0, 1, 3))
    job.settle(0)
    assert job.nodes[0].table.latest() == 0
    job.end(3)
    job.pass_s(1, (0, 1, 3))
    job.settle(1)
    assert job.nodes[0].table.latest() == 0
    job.settle(0)
    assert job.members().nodes == (0, 1, 3)
    third = job.turn(3)
    assert (third.nodes.rank, third.nodes.count, third.plan.layout.num_gpus) == (2, 3, 3)
    assert job.said[-1] == "node 2 silent for 10 s: continuing on 3 of 4 nodes, 3 of 4 GPUs"


def test_when_the_one_who_decides_goes_silent_the_next_does(job: Job) -> None:
    """Rank 0's node is gone with the other."""
    job.pass_s(SILENT_S + 1, (0, 1, 3))
    job.end(0, 1, 3)
    job.pass_s(2, (0, 1, 3))
    for _ in range(int(SILENT_S)):
        job.settle(1)
        job.settle(3)
        assert job.members().nodes == (0, 1, 2, 3)
        job.pass_s(1, (1, 3))
    job.settle(3)
    job.settle(1)
    assert job.members().nodes == (1, 3)


def test_a_node_that_was_slow_is_a_spare_and_comes_back_at_the_next_incident(job: Job) -> None:
    """It has no rank in the turn that began without it, and takes the place of the next that is lost."""
    job.pass_s(SILENT_S + 1, (0, 1, 2))
    job.end(0, 1, 2)
    job.pass_s(1, (0, 1, 2))
    job.settle(0)
    assert job.members().nodes == (0, 1, 2)
    job.pass_s(2, range(4))
    job.end(3)
    job.settle(3)
    assert job.members().nodes == (0, 1, 2)  # nobody is gone: it waits
    write_json(job.folder / "status.json", RunStatus(state="finished"))
    assert job.nodes[3].following(0, "") is None  # until the run ends
    assert job.said[-1] == "node 3 has no ranks now: it waits as a spare"
    job.pass_s(SILENT_S + 1, (0, 2, 3))
    job.end(0, 2)
    job.pass_s(1, (0, 2, 3))
    job.settle(0)
    assert job.members().nodes == (0, 2, 3)


def test_a_launcher_that_was_started_again_is_another(job: Job) -> None:
    """Its ranks died with the one before: no silence is waited for, and it has its place back."""
    job.nodes[2] = job.launched(2)
    job.pass_s(2, range(4))
    assert job.turn(0).over()
    job.end(0, 1, 3)
    job.pass_s(1, range(4))
    job.settle(0)
    assert job.members().nodes == (0, 1, 2, 3)
    assert job.nodes[2].table.mine.token in job.members().tokens


def test_a_watcher_that_was_stopped_takes_nobody_for_gone(job: Job) -> None:
    """A minute passed here in which it did not look."""
    job.now_s += 60
    table = job.nodes[0].table
    table.look(job.now_s)
    assert table.gone(job.members()) == ()


def test_a_crash_with_all_nodes_there_ends_the_run_for_all(job: Job) -> None:
    """No GPU is lost, so fewer would not help."""
    job.end(0, 1, 2, 3)
    job.pass_s(1, range(4))
    job.settle(0, "a rank ended with exit code 1 after 3 restarts")
    for node in range(4):
        with pytest.raises(InputError, match="could not be restarted") as raised:
            job.nodes[node].following(0, "")
        assert "exit code 1" in raised.value.cause


def test_a_node_whose_ranks_are_killed_again_and_again_is_left_out(job: Job) -> None:
    """Its launcher lives: it says that it is a spare."""
    job.end(0, 1, 2, 3, lost=(1,))
    job.pass_s(1, range(4))
    job.settle(0)
    assert job.members().nodes == (0, 2, 3)
    assert job.members().why.startswith("ranks of node 1 lost: continuing on 3 of 4 nodes")


def test_a_spare_goes_on_alone(tmp_path: Path, plan_of: Callable[..., Plan]) -> None:
    """All that had ranks are gone at once."""
    job = Job(tmp_path, plan_of, count=2, min_gpus=1)
    job.pass_s(2, (0, 1))
    job.settle(0)
    job.end(0)
    job.pass_s(SILENT_S + 1, (0,))
    job.settle(0)
    assert job.members().nodes == (0,)
    job.nodes[1] = job.launched(1)
    job.pass_s(SILENT_S + 1, (1,))
    job.settle(1)
    assert job.members().nodes == (1,)
    assert job.turn(1).nodes == Nodes(count=1, rank=0, launch="7")
    assert job.said == ["node 0 silent for 10 s: continuing on 1 of 2 nodes, 1 of 2 GPUs"]


def test_too_few_nodes_are_told_to_every_survivor(job: Job) -> None:
    """In three lines with the numbers."""
    job.pass_s(SILENT_S + 1, (3,))
    job.end(3)
    job.pass_s(1, (3,))
    job.settle(3)
    with pytest.raises(InputError, match="too few nodes") as raised:
        job.nodes[3].following(0, "")
    assert raised.value.cause == "1 of 4 nodes with 1 of 4 GPUs are left, and --min-gpus 2 was given"


@pytest.mark.parametrize(
    ("gpus_per_node", "planned", "nodes"), [(1, 2, (0, 2)), (2, 2, (0,)), (2, 6, (0, 2, 3))]
)
def test_a_smaller_plan_takes_whole_nodes(
    gpus_per_node: int, planned: int, nodes: tuple[int, ...], plan_of: Callable[..., Plan]
) -> None:
    """Those of the lowest numbers; the rest are spares."""
    smaller = plan_of(ParallelLayout(dp=planned), batch=24)
    crew = Crew(
        plan=plan_of(ParallelLayout(dp=4 * gpus_per_node), batch=24), count=4, hosts=(), min_gpus=1,
        replan=lambda _gpus, _lost: smaller,
    )  # fmt: skip
    assert chosen(crew, (0, 2, 3)) == (nodes, smaller)
    assert chosen(crew, (0, 1, 2, 3)) == ((0, 1, 2, 3), crew.plan)
    with pytest.raises(InputError, match="no --min-gpus was given"):
        chosen(replace(crew, min_gpus=None), (0, 2, 3))


def test_a_node_lives_once_it_was_seen_to_change() -> None:
    """And is unknown until then, or until it was silent for too long."""
    heard = Heard(beat=MembershipTable(folder=Path(), node=0).mine)
    assert (heard.lives, heard.unknown) == (False, True)
    assert not replace(heard, silent_s=SILENT_S).unknown
    assert replace(heard, changes=1).lives
    assert not replace(heard, changes=1, silent_s=SILENT_S).lives


def checkpoint(job: Job, step: int) -> None:
    """A checkpoint is written."""
    (job.folder / CHECKPOINTS / f"step-{step:08d}").mkdir(parents=True)


def lose_and_return(job: Job, node: int) -> None:
    """A node is lost, the others go on, it is started again."""
    others = [one for one in range(4) if one != node]
    job.pass_s(SILENT_S + 1, others)
    job.end(*others)
    job.pass_s(1, others)
    for one in others:
        job.settle(one)
    assert job.members().nodes == tuple(others)
    job.nodes[node] = job.launched(node)
    job.pass_s(3, range(4))


def test_a_spare_joins_once_a_checkpoint_has_been_written(job: Job) -> None:
    """Not before, by the word of the first member alone; all others see it, and have time for a checkpoint."""
    lose_and_return(job, 2)
    checkpoint(job, 10)
    first, other = job.turn(0), job.turn(3)
    assert (first.over(), other.over()) == (False, False)
    checkpoint(job, 20)
    assert (other.over(), first.over(), other.over()) == (False, True, True)
    assert (first.in_order(), other.in_order()) == (True, True)
    job.end(0, 1, 3)
    job.pass_s(1, range(4))
    for node in range(4):
        job.settle(node)
    assert job.members().nodes == (0, 1, 2, 3)
    assert job.members().why == "node 2 joined: continuing on 4 of 4 nodes, 4 of 4 GPUs"


def test_a_spare_that_does_not_help_or_failed_before_is_left_out(job: Job) -> None:
    """Whether it helps is asked once; ranks that were killed again and again would be again."""
    lose_and_return(job, 2)
    asked: list[tuple[int, ...]] = []
    turn = job.turn(0)
    assert turn.joining is not None
    turn.joining.helps = lambda nodes: bool(asked.append(nodes))
    for step in (10, 20, 30):
        checkpoint(job, step)
        assert not turn.over()
    assert asked == [(0, 1, 2, 3)]
    job.nodes[2].table.beat(ended=1, lost=1)
    job.pass_s(1, range(4))
    turn = job.turn(0)
    for step in (40, 50):
        checkpoint(job, step)
        assert not turn.over()


def test_a_turn_that_loses_a_member_while_a_spare_joins_does_not_wait(job: Job) -> None:
    """Its ranks hang in a collective: no checkpoint can be written."""
    lose_and_return(job, 2)
    turn = job.turn(0)
    for step in (10, 20):
        checkpoint(job, step)
        turn.over()
    assert turn.in_order()
    job.pass_s(SILENT_S + 1, (0, 1, 2))
    assert (turn.over(), turn.in_order()) == (True, False)


def test_a_node_whose_network_is_cut_leaves_and_joins_again(job: Job) -> None:
    """It reaches the files: without a word of its own the others would wait for it, or it would decide."""
    cut = job.nodes[0].table
    cut.linked = lambda: False
    job.pass_s(5, range(4))
    assert (job.turn(0).over(), job.turn(1).over()) == (False, False)  # a link that flaps ends nothing
    job.pass_s(SILENT_S, range(4))
    assert (job.turn(0).over(), job.turn(1).over()) == (True, True)
    job.end(*range(4))
    job.pass_s(1, range(4))
    for node in range(4):
        job.settle(node)
    assert job.members().nodes == (1, 2, 3)
    assert job.members().why == "node 0 silent for 10 s: continuing on 3 of 4 nodes, 3 of 4 GPUs"
    cut.linked = lambda: True
    job.pass_s(2, range(4))
    turn = job.turn(1)
    for step in (10, 20):
        checkpoint(job, step)
        joins = turn.over()
    assert joins
    job.end(1, 2, 3)
    job.pass_s(1, range(4))
    for node in range(4):
        job.settle(node)
    assert job.members().nodes == (0, 1, 2, 3)
