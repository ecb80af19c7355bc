"""Training runs end well: they learn, resume, change layout, stop cleanly, and say what is wrong."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import resource
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import RankError, run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.parallel import device as devices
from executor.parallel.device import choose_device, fallback_line
from executor.training import loop, trainer
from executor.training.manifest import folder_of_step, steps_on_disk
from executor.training.settings import CHECKPOINTS, METRICS_FILE, RunSettings, RunStatus
from executor.training.trainer import check_world, prepare
from executor.validation.fake_rank import RankTask, fake_rank
from planner.plan import Plan
from planner.traces.kineto import read_kineto
from tests.counts import cases_of_run
from tests.executor.conftest import TINY, make_plan
from topology.base.errors import InputError

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("torch.utils.tensorboard")  # else every forked rank that reports imports it

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
LAYOUTS = {
    "same-layout": LAYOUT,
    "of-stages": ParallelLayout(pp=2),
    "of-four-ranks": ParallelLayout(tp=2, pp=2, sequence_parallel=True),
}
STEPS = 8


def settings_in(folder: Path, **fields: object) -> RunSettings:
    """Settings of a short fp32 run on CPU ranks."""
    base = RunSettings(
        folder="",
        plan_file="",
        steps=STEPS,
        device="cpu",
        precision="fp32",
        checkpoint_every=3,
        learning_rate=1e-2,
    )
    return with_plan(replace(base, **fields), folder)  # type: ignore[arg-type]


def run_here(settings: RunSettings, plan: Plan) -> list[RunStatus]:
    """Train on forked ranks, from the newest checkpoint if there is one."""
    write_run(settings, plan)
    return run_ranks(_train, plan.layout.num_gpus, settings, plan)


def _train(_rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    return loop.train(prepare(settings, plan, torch.device("cpu")))


def losses(folder: Path) -> dict[int, float]:
    """Last reported loss of every step."""
    lines = (folder / METRICS_FILE).read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


@pytest.fixture(scope="module")
def plan_of() -> Callable[..., Plan]:
    """Build a plan of a model with a layer for each stage."""
    return functools.partial(make_plan, spec=replace(TINY, num_layers=2))


@pytest.fixture(scope="module")
def uninterrupted(plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run_here(settings_in(folder), plan_of(LAYOUT))
    return folder


def copy_of(run: Path, to: Path, *, last_step: int) -> Path:
    """Copy a run as it was when it had just written the checkpoint of `last_step`."""
    shutil.copytree(run, to, dirs_exist_ok=True)
    for step in steps_on_disk(to / CHECKPOINTS):
        if step > last_step:
            shutil.rmtree(folder_of_step(to / CHECKPOINTS, step))
    (to / METRICS_FILE).unlink()
    return to


def test_training_learns_and_keeps_the_last_checkpoints(uninterrupted: Path) -> None:
    """Synthetic data is learnable; three checkpoints are kept, the last after the last step."""
    seen = losses(uninterrupted)
    assert list(seen) == list(range(1, STEPS + 1))
    assert seen[STEPS] < seen[1]
    assert steps_on_disk(uninterrupted / CHECKPOINTS) == [8, 6, 3]
    assert any((uninterrupted / "tensorboard").iterdir())


def test_ranks_forked_after_a_fake_rank_know_who_they_are(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """What DTensor remembers of a fake group's meshes must not reach real ranks: their parts would overlap."""
    plan = plan_of(LAYOUT)
    task = RankTask(
        spec=plan.request.model,
        layout=LAYOUT,
        sequence_length=16,
        num_microbatches=4,
        layers_of_stage=plan.layers_of_stage,
        recompute_of_stage=plan.recompute_of_stage,
        stage=0,
        precision="fp32",
    )
    with fake_rank(task) as rank:
        rank.forward_backward()
        rank.update()
    run_here(replace(settings_in(tmp_path), steps=1), plan)
    assert steps_on_disk(tmp_path / CHECKPOINTS) == [1]


@pytest.mark.parametrize("name", cases_of_run(LAYOUTS, ["of-four-ranks"]))
def test_resumed_run_equals_an_uninterrupted_one(
    name: str,
    uninterrupted: Path,
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the checkpoint after step 3, on its own layout or resharded into another, losses are the same.

    No initial value is drawn: all of them come from the checkpoint.
    """
    monkeypatch.setattr(trainer, "initialize", None)
    folder = copy_of(uninterrupted, tmp_path / "run", last_step=3)
    run_here(settings_in(folder), plan_of(LAYOUTS[name]))
    expected = {step: loss for step, loss in losses(uninterrupted).items() if step > 3}
    assert losses(folder) == pytest.approx(expected, rel=1e-5)


def _flip_a_bit(checkpoint: Path, largest: Path) -> None:
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "flipped-bit": _flip_a_bit,
    "truncated": lambda _, largest: largest.write_bytes(largest.read_bytes()[:-100]),
    "missing-file": lambda _, largest: largest.unlink(),
    "no-manifest": lambda checkpoint, _: (checkpoint / "manifest.json").unlink(),
}


@pytest.fixture(scope="module")
def resumed_after(
    uninterrupted: Path, plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Runs whose newest checkpoint was damaged in one way each, resumed one after the other by the same ranks."""
    plan, folders = plan_of(LAYOUT), {}
    for name, damage in DAMAGES.items():
        folders[name] = copy_of(uninterrupted, tmp_path_factory.mktemp(name) / "run", last_step=6)
        newest = folder_of_step(folders[name] / CHECKPOINTS, 6)
        damage(newest, max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size))
        write_run(settings_in(folders[name], steps=4), plan)
    run_ranks(_train_each, 2, [settings_in(folder, steps=4) for folder in folders.values()], plan)
    return folders


def _train_each(rank: int, runs: list[RunSettings], plan: Plan) -> None:
    for settings in runs:
        _train(rank, settings, plan)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_not_used(
    damage: str, uninterrupted: Path, resumed_after: dict[str, Path]
) -> None:
    """The newest checkpoint is damaged: the run goes on from the one before it, as it did then."""
    expected = {4: losses(uninterrupted)[4]}
    assert losses(resumed_after[damage]) == pytest.approx(expected, rel=1e-5)


def test_a_run_whose_only_checkpoint_is_damaged_does_not_begin_anew(
    uninterrupted: Path, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """The damaged folder is named, and everything stays as it is."""
    run = copy_of(uninterrupted, tmp_path / "run", last_step=3)
    only = folder_of_step(run / CHECKPOINTS, 3)
    next(iter(DAMAGES.values()))(only, max(only.glob("*.distcp"), key=lambda path: path.stat().st_size))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RankError, match=f"no checkpoint of {run / CHECKPOINTS} is whole(.|\n)*{only}"):
        run_here(settings_in(run), plan_of(LAYOUT))
    ours = [path for path in before if path.suffix == ".jsonl" or CHECKPOINTS in path.parts]
    assert {path: path.read_bytes() for path in ours} == {path: before[path] for path in ours}


def test_half_written_checkpoint_is_cleared(
    uninterrupted: Path, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """What a killed writer leaves behind is neither loaded nor kept."""
    folder = copy_of(uninterrupted, tmp_path / "run", last_step=6)
    leftover = folder / CHECKPOINTS / ".writing-step-00000007"
    leftover.mkdir()
    (leftover / "__0_0.distcp").write_bytes(b"half")
    run_here(settings_in(folder), plan_of(LAYOUT))
    assert not leftover.exists()
    assert list(losses(folder)) == [7, 8]


def test_sigterm_writes_a_checkpoint(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """A rank that is asked to stop takes all ranks with it, after the step, with a checkpoint."""
    plan, settings = plan_of(LAYOUT), settings_in(tmp_path, checkpoint_every=100)
    write_run(settings, plan)
    statuses = run_ranks(_train_until_asked, 2, settings, plan)
    assert {(status.state, status.step) for status in statuses} == {("stopped", 2)}
    assert steps_on_disk(tmp_path / CHECKPOINTS) == [2]


def _train_until_asked(rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    import os
    import signal

    trainer = prepare(settings, plan, torch.device("cpu"))
    original = trainer.source

    class Asking:
        def sample(self, index: int) -> np.ndarray:
            if rank == 1 and index >= plan.request.job.global_batch_size:  # during the second step
                os.kill(os.getpid(), signal.SIGTERM)
            return original.sample(index)

    trainer.source = Asking()
    return loop.train(trainer)


def test_loss_that_is_not_finite_stops_the_run(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """The message names the step and the intact checkpoint, which is from before the damage."""
    plan, settings = plan_of(LAYOUT), settings_in(tmp_path)
    write_run(settings, plan)
    with pytest.raises(RankError, match=r"training stopped at step 4: the loss is not finite") as raised:
        run_ranks(_train_with_bad_step, 2, settings, plan)
    assert "the one after step 3 is kept" in str(raised.value)
    assert steps_on_disk(tmp_path / CHECKPOINTS) == [3]


def _train_with_bad_step(_rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    trainer = prepare(settings, plan, torch.device("cpu"))
    original, calls = trainer.optimizer.step, []

    def step(rate: float) -> None:
        original(rate)
        calls.append(rate)
        if len(calls) == 3:  # after the third update, before the fourth step
            trainer.checkpointer.finish()
            trainer.checkpointer.save(3, 24)
            trainer.checkpointer.finish()
            trainer.optimizer.slots[0].part.data.fill_(float("nan"))

    trainer.optimizer.step = step  # type: ignore[method-assign]
    return loop.train(trainer)


def test_full_disk_keeps_the_last_good_checkpoint(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Files may not grow: the run says so, ends with an error, and leaves no broken checkpoint behind."""
    plan, settings = plan_of(LAYOUT), settings_in(tmp_path)
    run_here(replace(settings, steps=3), plan)
    write_run(settings, plan)
    with pytest.raises(RankError, match=r"the checkpoint after step 8 could not be written"):
        run_ranks(_train_on_full_disk, 2, settings, plan)
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["step-00000003"]


def _train_on_full_disk(_rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    trainer = prepare(settings, plan, torch.device("cpu"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    return loop.train(trainer)


def test_token_beyond_the_vocabulary_is_named(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """The file, the token and the vocabulary are in the message."""
    tokens = np.arange(400, dtype=np.uint16) % 250
    tokens[123] = 300
    np.save(tmp_path / "tokens.npy", tokens)
    with pytest.raises(RankError, match=r"token 300 at position 123, vocab_size is 259"):
        run_here(settings_in(tmp_path / "run", data=str(tmp_path / "tokens.npy"), steps=4), plan_of(LAYOUT))


@pytest.mark.parametrize("name", ["absent.npy", "folder.bin", "broken.npy", "short.txt"])
def test_data_that_cannot_be_read_is_an_input_error(
    name: str, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Missing, not a file, not an array, too short: an error that names the file."""
    from executor.data.source import open_source

    (tmp_path / "folder.bin").mkdir()
    (tmp_path / "broken.npy").write_bytes(b"not numpy")
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(InputError) as raised:
        open_source(str(tmp_path / name), vocab_size=259, sequence_length=16, seed=0)
    assert name in raised.value.what


def test_plain_text_trains_through_the_built_in_tokenizer(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """A text file is data: its bytes are tokens, and its regularity is learnt."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    run_here(settings_in(tmp_path / "run", data=str(tmp_path / "text.txt")), plan_of(ParallelLayout(dp=2)))
    seen = losses(tmp_path / "run")
    assert seen[STEPS] < seen[1] - 0.5


def test_wrong_number_of_ranks_is_refused(plan_of: Callable[..., Plan]) -> None:
    """A plan for two GPUs does not start on four."""
    with pytest.raises(InputError, match="4 ranks were started, dp·cp·tp·pp = 2"):
        check_world(plan_of(LAYOUT), 4)


def test_order_of_samples_does_not_depend_on_the_layout() -> None:
    """Every sample of an epoch is used once, whoever reads it."""
    from executor.data.source import TokenFile

    source = TokenFile(path="x", tokens=np.arange(161), vocab_size=200, sequence_length=16, seed=3)
    first = [int(source.sample(index)[0]) for index in range(10)]
    second = [int(source.sample(index)[0]) for index in range(10, 20)]
    assert sorted(first) == sorted(second) == list(range(0, 160, 16))
    assert first != second


@pytest.mark.clock
def test_profile_of_a_step_is_a_trace_file(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """One trace per rank for the step that was named, whose parts have names, and beside it what steps took."""
    run_here(settings_in(tmp_path, steps=3, profile_step=2), plan_of(LAYOUT))
    for rank in range(LAYOUT.dp):
        events = json.loads((tmp_path / f"trace-rank{rank}.json").read_text())["traceEvents"]
        assert any("flash_attention" in event.get("name", "") for event in events)
        walls = json.loads((tmp_path / f"wall_rank{rank}.json").read_text())
        assert (walls["rank"], walls["world"], walls["step"]) == (rank, LAYOUT.dp, 2)
        assert len(walls["wall_step_s"]) == 2
        trace = read_kineto(tmp_path / f"trace-rank{rank}.json")
        assert (trace.rank, trace.world_size, trace.gpu) == (rank, walls["world"], False)
        (window,) = trace.windows
        assert window.number == 2
        assert window.seconds == pytest.approx(walls["wall_step_s"][-1], rel=0.1)
        seconds = defaultdict[str, float](float)
        for event in trace.events.rows(trace.events.of("annotation")):
            assert window.start_s <= event.start_s
            assert event.end_s <= window.end_s
            seconds[event.name] += event.duration_s
        parts = [seconds[name] for name in ("loader", "forward", "backward", "grad_sync", "optimizer")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(window.seconds, rel=0.3)


def test_gather_group_is_whole_after_training() -> None:
    """No process group outlives a run in this process."""
    assert not dist.is_initialized()


def test_a_gpu_that_torch_does_not_see_is_no_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of training on a CPU would be noticed late; the user may still ask for it, or hide the GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    assert choose_device("auto", 0).type == "cpu"
    said = {name: fallback_line(name, choose_device(name, 0)) for name in ("auto", "cpu")}
    assert (said["cpu"], said["auto"].split(" (")[0]) == ("", "no GPU was found: this trains on the CPU")
    (tmp_path / "nvidia0").touch()
    with pytest.raises(InputError, match="GPUs that torch does not see") as raised:
        choose_device("auto", 0)
    assert str(tmp_path / "nvidia0") in raised.value.cause
    assert choose_device("cpu", 0).type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_device("auto", 0).type == "cpu"
