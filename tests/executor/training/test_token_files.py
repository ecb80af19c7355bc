"""Token files are those that a run began with, or the run does not go on: sizes, bytes, whoever looks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from app.actions.runs.texts import with_data
from costmodel.layout import ParallelLayout
from executor.data.indexed import write_indexed
from executor.data.token_files import marks_of, token_files
from executor.launch.supervise import with_plan, write_run
from executor.training.settings import RunSettings, training_source
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.files import WHOLE_BYTES

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
TOKENS = 4000


def written(folder: Path, form: str) -> tuple[str, Path]:
    """A source of token ids in one of the forms, and the file of its tokens."""
    tokens = (np.arange(TOKENS) % 251).astype(np.uint16)
    path = folder / f"tokens.{form}"
    if form == "npy":
        np.save(path, tokens)
    elif form == "txt":
        path.write_bytes(tokens.astype(np.uint8).tobytes().replace(b"\x80", b"a").decode("latin-1").encode())
    elif form == "idx":
        write_indexed(path, [tokens], vocab_size=259)
        return str(path), path.with_suffix(".bin")
    else:
        path.write_bytes(tokens.tobytes())
    return str(path), path


def settings_of(folder: Path, data: str, **fields: object) -> RunSettings:
    """Settings of a run on token files."""
    settings = RunSettings(folder="", plan_file="", steps=4, data=data, device="cpu", precision="fp32")
    return with_plan(replace(settings, **fields), folder)  # type: ignore[arg-type]


def half(path: Path) -> None:
    """Cut a file in half, under its name."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def longer(path: Path) -> None:
    """Add a token."""
    path.write_bytes(path.read_bytes() + b"\x01\x00")


def other(path: Path) -> None:
    """Change one byte of it."""
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("change", [half, longer, other])
@pytest.mark.parametrize("form", ["npy", "bin", "idx", "txt"])
@pytest.mark.parametrize("flag", ["data", "eval_data", "blend"])
def test_a_run_goes_on_with_the_tokens_it_began_with(
    flag: str, form: str, change: Callable[[Path], None], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Another length or other bytes under the same name are refused, of each form and each flag."""
    name, tokens = written(tmp_path, form)
    data = {"data": name, "eval_data": "synthetic", "blend": f"0.5={name},0.5=synthetic"}[flag]
    fields = {"eval_data": name} if flag == "eval_data" else {}
    plan = plan_of(LAYOUT)
    begun, texts = with_data(settings_of(tmp_path / "run", data, **fields), plan)
    assert texts == {}
    write_run(begun, plan)
    assert with_data(settings_of(tmp_path / "run", data, **fields), plan)[0] == begun
    change(tokens)
    with pytest.raises(InputError, match="is not what the run began with"):
        with_data(settings_of(tmp_path / "run", data, **fields), plan)


def test_files_that_moved_are_known_by_their_bytes(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """By their bytes: what has moved and changed is refused, too."""
    name, tokens = written(tmp_path, "npy")
    plan = plan_of(LAYOUT)
    write_run(with_data(settings_of(tmp_path / "run", name), plan)[0], plan)
    (tmp_path / "there").mkdir()
    moved = Path(shutil.move(tokens, tmp_path / "there"))
    with_data(settings_of(tmp_path / "run", str(moved)), plan)
    other(moved)
    with pytest.raises(InputError, match="is not what the run began with"):
        with_data(settings_of(tmp_path / "run", str(moved)), plan)


@pytest.mark.parametrize("form", ["npy", "bin", "idx"])
def test_a_rank_looks_at_sizes(form: str, plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Also after a restart, when nobody has looked at the files but ranks."""
    name, tokens = written(tmp_path, form)
    plan = plan_of(LAYOUT)
    begun, _ = with_data(settings_of(tmp_path / "run", name), plan)
    training_source(begun, plan)
    half(tokens)
    with pytest.raises(InputError, match="has changed while it is trained on"):
        training_source(begun, plan)
    tokens.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        training_source(begun, plan)


def test_a_folder_of_an_earlier_version_goes_on(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """It kept no marks: those of now are kept from here on."""
    name, _ = written(tmp_path, "npy")
    plan = plan_of(LAYOUT)
    write_run(settings_of(tmp_path / "run", name), plan)
    begun, _ = with_data(settings_of(tmp_path / "run", name), plan)
    assert list(begun.checksums) == [name]


def test_marks_are_of_files_that_hold_tokens(tmp_path: Path) -> None:
    """A text is marked where its bytes are its tokens, not where a tokenizer reads it: that has its own."""
    name, _ = written(tmp_path, "txt")
    index, tokens = written(tmp_path, "idx")
    assert token_files(name, tokenizes=False) == [Path(name)]
    assert token_files(name, tokenizes=True) == []
    assert token_files(f"0.5={index},0.5={name}", tokenizes=True) == [Path(index), tokens]
    assert token_files("synthetic", tokenizes=False) == []


def test_large_files_are_marked_in_no_time(tmp_path: Path) -> None:
    """By both ends and blocks between them: not all bytes are read."""
    path = tmp_path / "tokens.bin"
    with path.open("wb") as stream:
        stream.truncate(64 * WHOLE_BYTES)
    before = marks_of(str(path), tokenizes=False)
    with path.open("r+b") as stream:
        stream.seek(-2, 2)
        stream.write(b"\x01\x00")
    assert marks_of(str(path), tokenizes=False) != before
