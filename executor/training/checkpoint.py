"""Checkpoints that survive anything: asynchronous, atomic, checksummed, and loadable into any other layout.

A checkpoint is a folder ``step-00000042`` of torch's distributed checkpoint files plus a manifest of them. It
is written under another name and renamed once complete, so a folder of that name is whole unless the disk has
damaged it, which the manifest tells. Tensors are stored under their names in the whole model, so any layout
can load them.
"""

from __future__ import annotations

import errno
import re
import shutil
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from costmodel.campaign.failures import default_site, seconds_between, sites, usual_devices
from costmodel.campaign.interval import young_daly_s
from executor.comm.meeting import PATIENCE
from executor.parallel.compressed import ReplicaErrors
from executor.training.checkpoint_reader import open_checkpoint
from executor.training.manifest import (
    MANIFEST,
    Manifest,
    StoredFile,
    folder_of_step,
    intact,
    read_manifest,
    require_signed,
    signed,
    steps_on_disk,
    stored_file,
)
from executor.training.optimizer import ShardedAdamW
from executor.training.settings import write_json
from topology.base.atomic import sync_folder
from topology.base.errors import InputError

WRITING = ".writing-"


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A checkpoint being written."""

    step: int
    samples: int
    places: dict[str, tuple[tuple[int, ...], ...]]
    folder: Path
    result: Future[list[StoredFile]]
    started_s: float


class Checkpointer:
    """Writes and reads the checkpoints of one run; every rank makes the same calls in the same order."""

    def __init__(
        self,
        root: Path,
        optimizer: ShardedAdamW,
        *,
        keep: int,
        key: bytes | None = None,
        replica: ReplicaErrors | None = None,
        untrained: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.untrained = dict(untrained or {})  # whole on every rank that has them
        self.root, self.optimizer, self.keep, self.key = root, optimizer, keep, key
        self.replica, self.restored = replica, ""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.control, self.writers = (
            dist.new_group(backend="gloo", timeout=PATIENCE, group_desc=name)
            for name in ("checkpoints", "writing checkpoints")
        )
        self.pending: _Pending | None = None
        self.last_step = -1
        self.write_s = 0.0
        if self.rank == 0:
            root.mkdir(parents=True, exist_ok=True)
            for leftover in root.glob(f"{WRITING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        dist.barrier(group=self.control)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────

    def save(
        self, step: int, samples: int, places: Mapping[str, npt.NDArray[np.int64]] | None = None
    ) -> str | None:
        """Copy the state aside and start writing it; returns why the previous write failed, if it did.

        `places` is where this rank's texts go on, by stream: (L, 5) each, −1 where it does not know.
        """
        failure = self.finish()
        agreed = {key: self._agreed(table) for key, table in (places or {}).items()}
        folder = self.root / f"{WRITING}{folder_of_step(self.root, step).name}"
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier(group=self.control)
        result: Future[list[StoredFile]] = Future()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            beside = {} if self.replica is None else self.replica.state()
            staged = dcp.async_save(self._state() | beside, checkpoint_id=folder, process_group=self.writers)
        threading.Thread(target=self._write, args=(staged, folder, result), daemon=True).start()
        self.pending = _Pending(
            step=step,
            samples=samples,
            places=agreed,
            folder=folder,
            result=result,
            started_s=time.monotonic(),
        )
        return failure

    def _agreed(self, places: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
        """Places of a stream as any rank knows them: those who know a lane's know the same."""
        table = torch.from_numpy(places)
        dist.all_reduce(table, op=dist.ReduceOp.MAX, group=self.control)
        return tuple(map(tuple, table.tolist()))

    def _write(self, staged: Any, folder: Path, result: Future[list[StoredFile]]) -> None:
        """Wait for torch to write, then take the checksums of this rank's files."""
        try:
            staged.result()
            mine = [path for path in sorted(folder.iterdir()) if self._is_mine(path.name)]
            result.set_result([stored_file(path) for path in mine])
        except BaseException as error:  # noqa: BLE001 - torch's CheckpointException is one; reported in `_complete`
            result.set_exception(error)

    def _is_mine(self, name: str) -> bool:
        """Whether this rank wrote a file: data is ``__rank_part.distcp``, rank 0 writes the rest."""
        data = re.match(r"__(\d+)_", name)
        return int(data[1]) == self.rank if data else self.rank == 0

    def poll(self) -> str | None:
        """Complete the pending checkpoint if every rank has written; returns why it failed, if it did."""
        if self.pending is None:
            return None
        done = torch.tensor([int(self.pending.result.done())])
        dist.all_reduce(done, op=dist.ReduceOp.MIN, group=self.control)
        return self._complete() if int(done) else None

    def finish(self) -> str | None:
        """Wait for the pending checkpoint and complete it; returns why it failed, if it did."""
        return None if self.pending is None else self._complete()

    def _complete(self) -> str | None:
        """Agree on the outcome; rank 0 writes the manifest and gives the folder its name."""
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        error = pending.result.exception()
        mine = None if error is not None else pending.result.result()
        gathered: list[Any] = [None] * self.ranks
        dist.all_gather_object(gathered, (mine, _reason(error)), group=self.control)
        failure = next((reason for _, reason in gathered if reason is not None), None)
        outcome = [failure]
        if self.rank == 0:
            files = tuple(stored for value, _ in gathered for stored in value or ())
            outcome = [failure if failure is not None else self._publish(pending, files)]
            if outcome[0] is not None:
                shutil.rmtree(pending.folder, ignore_errors=True)
        dist.broadcast_object_list(outcome, src=0, group=self.control)
        if outcome[0] is None:
            self.last_step = pending.step
            self.write_s = time.monotonic() - pending.started_s
        return outcome[0]

    def _publish(self, pending: _Pending, files: tuple[StoredFile, ...]) -> str | None:
        """Write the manifest, rename the folder, and drop checkpoints beyond the last few."""
        manifest = Manifest(
            step=pending.step,
            samples=pending.samples,
            files=files,
            torch_version=torch.__version__,
            places=pending.places,
        )
        try:
            write_json(pending.folder / MANIFEST, signed(manifest, self.key))
            final = folder_of_step(self.root, pending.step)
            shutil.rmtree(final, ignore_errors=True)
            sync_folder(pending.folder)
            pending.folder.rename(final)
            sync_folder(self.root)
        except OSError as error:
            return _reason(error)
        for step in steps_on_disk(self.root)[self.keep :]:
            shutil.rmtree(folder_of_step(self.root, step), ignore_errors=True)
        return None

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def load_latest(self) -> tuple[Manifest | None, tuple[int, ...]]:
        """Load the newest whole checkpoint; returns its manifest and the steps of damaged newer ones."""
        damaged: list[int] = []
        steps = [steps_on_disk(self.root)]
        dist.broadcast_object_list(steps, src=0, group=self.control)
        for step in steps[0]:
            folder = folder_of_step(self.root, step)
            manifest = read_manifest(folder)
            if manifest is not None:
                require_signed(manifest, self.key, folder)
            good = (
                manifest is not None
                and manifest.step == step
                and intact(folder, manifest.files[self.rank :: self.ranks])
            )
            agreed = torch.tensor([int(good)])
            dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=self.control)
            if int(agreed) and manifest is not None:
                self._load(folder, manifest)
                self.last_step = manifest.step
                return manifest, tuple(damaged)
            damaged.append(step)
        return None, tuple(damaged)

    def _load(self, folder: Path, manifest: Manifest) -> None:
        """Fill parameters and optimizer state in place from a checkpoint of any layout."""
        reader = open_checkpoint(folder, manifest)
        for slot in self.optimizer.slots:
            self.optimizer.forget(slot, manifest.step)

        def read(state: Mapping[str, torch.Tensor]) -> None:
            dcp.load(dict(state), storage_reader=reader, process_group=self.control)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saved = reader.metadata.state_dict_metadata
            try:
                since = {
                    f"model.{name}" for name in self.untrained
                } - saved.keys()  # older has none: as at a start
                read({name: value for name, value in self._state().items() if name not in since})
                if self.replica is not None:
                    sizes = {name: about.size.numel() for name, about in saved.items()}
                    self.restored = self.replica.restore(sizes, read)
            except CheckpointException as error:  # no `Exception`: it would leave without a word
                raise unloadable(folder, error) from error

    def _state(self) -> dict[str, torch.Tensor]:
        """Parameters and moments by name: this rank's parts, with their place in the whole."""
        state: dict[str, torch.Tensor] = {}
        for slot in self.optimizer.slots:
            state[f"model.{slot.name}"] = slot.placed(slot.part.detach())
            for name, value in self.optimizer.moments(slot).items():
                state[f"{name}.{slot.name}"] = slot.placed(value)
        return state | {f"model.{name}": value for name, value in self.untrained.items()}


def unloadable(folder: Path, error: BaseException) -> Exception:
    """What it means that files which have their checksums cannot be loaded.

    A disk that fails may not fail again: that is a crash, after which ranks start anew. All else is a wrong
    input, which no start mends: so is a place that no file can have, though the disk is what says it.
    """
    cause = _cause(error)
    if isinstance(cause, OSError) and cause.errno not in (errno.EINVAL, errno.EOVERFLOW):
        return RuntimeError(f"{folder} cannot be loaded: {_reason(error)}")
    return InputError(
        what=f"{folder} holds no tensors that can be loaded",
        cause=_reason(error) or type(error).__name__,
        fix="put the folder back from a copy, or remove it to go on from an older checkpoint",
    )


SHORT_WRITE = "inline_container.cc"  # torch's archive writer finds fewer bytes than it wrote


def _reason(error: BaseException | None) -> str | None:
    """One line that says why writing failed, the disk's own words where there are any."""
    if error is None:
        return None
    reason = _cause(error)
    if SHORT_WRITE in str(reason):
        return "a file was not written whole, as on a full disk"
    return f"{type(reason).__name__}: {(str(reason).splitlines() or [''])[0]}"


def _cause(error: BaseException) -> BaseException:
    """What lies behind an error: what the disk says, where it says anything."""
    failures = getattr(error, "failures", None)  # torch's CheckpointException keeps one exception per rank
    chain = [next(iter(failures.values()))[0] if failures else error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return next((seen for seen in chain if isinstance(seen, OSError)), chain[0])


# ── how often ─────────────────────────────────────────────────────────────────────────────────────────────


def seconds_between_failures(num_gpus: int, gpu: str = "") -> float:
    """Mean time between failures of a job, in seconds, at the rate published of such GPUs.

    >>> round(seconds_between_failures(16384) / 3600, 1)
    3.1
    """
    site = sites()[default_site(gpu)]
    return seconds_between(site, usual_devices(num_gpus, site))


def best_interval_steps(step_s: float, checkpoint_s: float, num_gpus: int, gpu: str = "") -> int:
    """Steps between checkpoints, at least one: Young and Daly's interval by the cost model's failures."""
    between_s = seconds_between_failures(num_gpus, gpu)
    return max(1, round(young_daly_s(checkpoint_s, between_s) / max(step_s, 1e-6)))
