"""A run's folder from somebody else: resuming it executes nothing, reads nothing beside it, and can demand a signature."""

from __future__ import annotations

import errno
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import RankError, run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.training import loop, manifest
from executor.training.checkpoint import unloadable
from executor.training.checkpoint_reader import _Inert, open_checkpoint
from executor.training.manifest import folder_of_step
from executor.training.publish import find_checkpoint, load_whole
from executor.training.settings import CHECKPOINTS, RunSettings, RunStatus, write_json
from executor.training.trainer import prepare
from planner.plan import Plan
from topology.base.errors import InputError

LAYOUT = ParallelLayout()
KEY, OTHER_KEY = "k" * 32, "o" * 32


def settings_in(folder: Path, **fields: object) -> RunSettings:
    """Settings of two steps in fp32 on one CPU rank."""
    base = RunSettings(folder="", plan_file="", steps=2, device="cpu", precision="fp32")
    return with_plan(replace(base, **fields), folder)  # type: ignore[arg-type]


def run_here(settings: RunSettings, plan: Plan) -> list[RunStatus]:
    """Train on a forked rank, from the newest checkpoint if there is one."""
    write_run(settings, plan)
    return run_ranks(_train, 1, settings, plan)


def _train(_rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    return loop.train(prepare(settings, plan, torch.device("cpu")))


@pytest.fixture(scope="module")
def finished(plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's run of two steps, signed with their key."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "key").write_text(KEY)
    run_here(settings_in(folder, run_key=str(folder / "key")), plan_of(LAYOUT))
    return folder


def checkpoint_of(run: Path) -> Path:
    """Its checkpoint after the second step."""
    return folder_of_step(run / CHECKPOINTS, 2)


def copy_of(run: Path, to: Path) -> Path:
    """Copy a run, without its signature."""
    shutil.copytree(run, to)
    publish(checkpoint_of(to))
    return to


def publish(checkpoint: Path, **fields: Any) -> None:
    """Write the manifest anew, as anybody can who writes in the folder."""
    found = manifest.read_manifest(checkpoint)
    assert found is not None
    files = tuple(manifest.stored_file(checkpoint / stored.name) for stored in found.files)
    write_json(checkpoint / manifest.MANIFEST, replace(found, **({"files": files, "signature": ""} | fields)))


def unpickled(checkpoint: Path) -> Any:
    """What torch reads."""
    return pickle.loads((checkpoint / ".metadata").read_bytes())  # noqa: S301 - written by this test


class Evil:
    """Executes when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave a mark."""
        return Path.touch, (self.mark,)


def evil_metadata(checkpoint: Path, mark: Path) -> None:
    """The whole file is a program."""
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Evil(mark)))


def evil_beside_tensors(checkpoint: Path, mark: Path) -> None:
    """The program is an extra of metadata that are otherwise right."""
    metadata = unpickled(checkpoint)
    metadata.planner_data = Evil(mark)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


def evil_value(checkpoint: Path, mark: Path) -> None:
    """Metadata without any program say that a tensor is some value: torch unpickles those."""
    metadata = unpickled(checkpoint)
    name = next(iter(metadata.state_dict_metadata))
    for index in [index for index in metadata.storage_data if index.fqn == name]:
        place = metadata.storage_data.pop(index)
    stream = io.BytesIO()
    torch.save(Evil(mark), stream)
    data = checkpoint / place.relative_path
    place.offset, place.length = data.stat().st_size, len(stream.getvalue())
    data.write_bytes(data.read_bytes() + stream.getvalue())
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex(name)] = place
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


EVILS: dict[str, Callable[[Path, Path], None]] = {
    "metadata": evil_metadata,
    "beside-tensors": evil_beside_tensors,
    "value": evil_value,
}


@pytest.mark.parametrize("evil", EVILS)
def test_resuming_a_foreign_folder_executes_nothing(
    evil: str, finished: Path, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """It is refused in three lines; torch's own reader would have run it."""
    run, mark = copy_of(finished, tmp_path / "run"), tmp_path / "executed"
    EVILS[evil](checkpoint_of(run), mark)
    publish(checkpoint_of(run))
    with pytest.raises(RankError, match="is not a checkpoint of ours: nothing of it was loaded or run"):
        run_here(settings_in(run, steps=3), plan_of(LAYOUT))
    assert not mark.exists()
    _load_with_torch(checkpoint_of(run))
    assert mark.exists()


def _load_with_torch(checkpoint: Path) -> None:
    """What was done before, which shows that the file is dangerous."""
    import contextlib
    import warnings

    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(checkpoint)
    with warnings.catch_warnings(), contextlib.suppress(BaseException):
        warnings.simplefilter("ignore")
        name = next(iter(reader.read_metadata().state_dict_metadata))
        dcp.load({name: torch.zeros(1)}, storage_reader=reader, no_dist=True)


@pytest.mark.parametrize("place", ["../../../../etc/passwd", "/dev/zero", "unlisted"])
def test_a_checkpoint_reaches_no_file_beside_it(place: str, finished: Path, tmp_path: Path) -> None:
    """Tensors lie in files of the manifest, whatever the metadata say."""
    checkpoint = checkpoint_of(copy_of(finished, tmp_path / "run"))
    metadata = unpickled(checkpoint)
    for stored in metadata.storage_data.values():
        stored.relative_path = place
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    found = manifest.read_manifest(checkpoint)
    assert found is not None
    with pytest.raises(InputError, match="which the manifest does not list"):
        open_checkpoint(checkpoint, found)


@pytest.mark.parametrize(("offset", "length"), [(2**62, 8), (0, 2**40), (1, 2**63)])
def test_a_tensor_lies_within_its_file(offset: int, length: int, finished: Path, tmp_path: Path) -> None:
    """A place that no file has is a wrong input, not a disk that fails."""
    checkpoint = checkpoint_of(copy_of(finished, tmp_path / "run"))
    metadata = unpickled(checkpoint)
    for stored in metadata.storage_data.values():
        stored.offset, stored.length = offset, length
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    found = manifest.read_manifest(checkpoint)
    assert found is not None
    with pytest.raises(InputError, match=f"ends at byte {offset + length:,} of"):
        open_checkpoint(checkpoint, found)


@pytest.mark.parametrize("name", ["../plan.json", "/dev/zero", "__0_0.distcp/x"])
def test_a_manifest_that_names_other_files_is_damaged(name: str, finished: Path, tmp_path: Path) -> None:
    """They are not even opened: one of them never ends."""
    checkpoint = checkpoint_of(copy_of(finished, tmp_path / "run"))
    document = json.loads((checkpoint / manifest.MANIFEST).read_text())
    document["files"][0]["name"] = name
    (checkpoint / manifest.MANIFEST).write_text(json.dumps(document))
    assert manifest.read_manifest(checkpoint) is None


def test_our_own_checkpoint_is_read_as_torch_reads_it(finished: Path) -> None:
    """The same tensors at the same places."""
    checkpoint = checkpoint_of(finished)
    found = manifest.read_manifest(checkpoint)
    assert found is not None
    ours = open_checkpoint(checkpoint, found).read_metadata()
    theirs = unpickled(checkpoint)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data


@pytest.mark.parametrize(
    ("written_with", "key", "cause"),
    [
        (KEY, None, "it is signed, and no key was given"),
        (KEY, OTHER_KEY, "its signature is of another key or another manifest"),
        (None, KEY, "it is not signed"),
    ],
)
def test_a_checkpoint_without_the_right_signature_is_refused(
    written_with: str | None, key: str | None, cause: str, finished: Path, tmp_path: Path
) -> None:
    """Missing key, wrong key, no signature: three lines with the cause."""
    found = manifest.read_manifest(checkpoint_of(finished))
    assert found is not None
    found = found if written_with else replace(found, signature="")
    with pytest.raises(InputError) as raised:
        manifest.require_signed(found, key.encode() if key else None, tmp_path)
    assert (raised.value.what, raised.value.cause) == (f"the checkpoint {tmp_path} is not vouched for", cause)


def test_a_signed_run_resumes_with_its_key_and_no_other(
    finished: Path, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Through a whole run, and any change of the manifest breaks the signature."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (tmp_path / "other").write_text(OTHER_KEY)
    with pytest.raises(RankError, match="of another key or another manifest"):
        run_here(settings_in(run, steps=3, run_key=str(tmp_path / "other")), plan_of(LAYOUT))
    statuses = run_here(settings_in(run, steps=3, run_key=str(run / "key")), plan_of(LAYOUT))
    assert [(status.state, status.step) for status in statuses] == [("finished", 3)]
    found = manifest.read_manifest(checkpoint_of(finished))
    assert found is not None
    with pytest.raises(InputError, match="of another key or another manifest"):
        manifest.require_signed(replace(found, samples=0), KEY.encode(), run)


@pytest.mark.parametrize("content", [None, "short", "x" * 5000], ids=["absent", "short", "long"])
def test_a_key_that_is_none_is_refused(content: str | None, tmp_path: Path) -> None:
    """Three lines that say how to make one."""
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(InputError) as raised:
        manifest.read_key(str(tmp_path / "key"))
    assert "openssl rand" in raised.value.fix


def test_a_member_named_by_getattr_is_a_record() -> None:
    """Python up to 3.11.3 writes members of enumerations so; reading one asks nothing of any class."""
    named = b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nVmro\ntR."
    record = _Inert(io.BytesIO(named)).load()
    assert type(record).__name__ == "getattr"
    assert record.arguments[1] == "mro"


def test_files_of_something_else_with_right_checksums_end_the_run_at_once(
    finished: Path, tmp_path: Path, plan_of: Callable[..., Plan]
) -> None:
    """Torch says so by what is no `Exception`: three lines, and no start that mends nothing; publishing too."""
    folder = copy_of(finished, tmp_path / "run")
    for path in checkpoint_of(folder).glob("*.distcp"):
        size = path.stat().st_size
        with zipfile.ZipFile(path, "w") as other:
            other.writestr("a", "b" * max(1, size))
    publish(checkpoint_of(folder))
    with pytest.raises(RankError, match="holds no tensors that can be loaded"):
        run_here(settings_in(folder, steps=3), plan_of(LAYOUT))
    checkpoint = find_checkpoint(folder / CHECKPOINTS, None)
    names = open_checkpoint(*checkpoint).metadata.state_dict_metadata
    state = {name: torch.empty(about.size) for name, about in names.items()}
    with pytest.raises(InputError, match="holds no tensors that can be loaded"):
        load_whole(state, checkpoint)


@pytest.mark.parametrize("field", ["step", "samples"])
def test_a_manifest_that_counts_below_zero_is_none(finished: Path, tmp_path: Path, field: str) -> None:
    """Nobody has consumed fewer than no samples."""
    folder = copy_of(finished, tmp_path / "run")
    publish(checkpoint_of(folder), **{field: -5})
    assert manifest.read_manifest(checkpoint_of(folder)) is None


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EINVAL, InputError), (errno.EOVERFLOW, InputError), (errno.EIO, RuntimeError)]
)
def test_a_place_that_no_file_has_is_no_failing_disk(number: int, kind: type[Exception]) -> None:
    """Ranks start anew after a disk that fails; a byte that is wrong stays wrong."""
    assert type(unloadable(Path("run"), OSError(number, "said"))) is kind
