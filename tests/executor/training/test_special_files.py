"""Every file that `plan run` is given, or that lies in its folder: a pipe, a device or a giant is refused at once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.data.indexed import open_indexed, write_indexed
from executor.data.tokenizer import open_tokenizer
from executor.launch.run_lock import run_lock
from executor.training.settings import METRICS_FILE
from planner.plan import Plan, to_json
from topology.base.errors import InputError

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
WITHIN_S = 20


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes, and the token that ends its documents."""
    folder = tmp_path_factory.mktemp("tokenizer")
    known = tokenizers.Tokenizer(tokenizers.models.BPE())
    known.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    known.train_from_iterator(["a text"], trainer)
    known.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return folder


class HangError(BaseException):
    """Nothing came: no `Exception`, which somebody might take for a file that cannot be read."""


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what waits: a hang is what is tested for."""

    def hangs(*_: object) -> None:
        raise HangError(f"nothing came in {WITHIN_S} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(WITHIN_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    """A pipe that nobody writes."""
    os.mkfifo(path)


def zeros(path: Path) -> None:
    """A link to a device without an end."""
    path.symlink_to("/dev/zero")


def giant(path: Path) -> None:
    """A sparse file of a TiB."""
    path.touch()
    os.truncate(path, 1 << 40)


def words(tmp_path: Path, plan: Plan, *more: str) -> list[str]:
    """`plan run` of a plan on this machine's CPU."""
    path = tmp_path / "wanted.json"
    path.write_text(to_json(plan), encoding="utf-8")
    return ["run", str(path), "--run-dir", str(tmp_path / "run"), "--device", "cpu", "--dry-run", *more]


@pytest.mark.parametrize("make", [pipe, zeros, giant])
@pytest.mark.parametrize(
    ("flag", "name"),
    [
        *[("--data", name) for name in ("x.npy", "x.bin", "x.idx", "x.txt", "x")],
        *[("--eval-data", name) for name in ("x.npy", "x.txt")],
        *[("text", name) for name in ("x.jsonl", "x.txt", "x.jsonl.gz", "x.parquet", "x.arrow")],
        ("--tokenizer", "tokenizer.json"),
        ("--run-key", "key"),
        ("--settings", "settings.toml"),
    ],
)
def test_what_is_no_file_is_refused_at_once(
    flag: str,
    name: str,
    make: Callable[[Path], None],
    estimated_plan_of: Callable[..., Plan],
    tokenizer_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines, whichever flag names it, and nothing is filled."""
    path = tmp_path / name
    if (make, path.suffix) == (giant, ".bin"):
        pytest.skip("a TiB of raw tokens is a data set")
    make(path)
    given = [flag, str(path)]
    if flag == "text":
        given = ["--data", str(path), "--tokenizer", str(tokenizer_folder)]
    elif flag == "--tokenizer":
        text = tmp_path / "text.jsonl"
        text.write_text('{"text": "a"}\n')
        given = ["--data", str(text), *given]
    with bounded():
        code = run(words(tmp_path, estimated_plan_of(LAYOUT), *given))
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert code == 2, lines
    assert "wanted.json" not in lines[0]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]


@pytest.mark.parametrize(
    "name", ["run.json", "plan.json", "settings.toml", "status.json", METRICS_FILE, ".lock"]
)
@pytest.mark.parametrize("make", [pipe, zeros])
def test_a_folder_that_holds_what_is_no_file_is_refused(
    name: str,
    make: Callable[[Path], None],
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever a run reads there, or writes."""
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / name)
    with bounded():
        code = run(words(tmp_path, estimated_plan_of(LAYOUT)))
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert code == 2, lines
    assert "wanted.json" not in lines[0]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]


def test_a_lock_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """It would open, and take no lock's words."""
    pipe(tmp_path / ".lock")
    with bounded(), pytest.raises(InputError, match="not a regular file"), run_lock(tmp_path, print):
        pass


def test_a_header_that_names_more_than_there_is(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an array of 2⁶² tokens, which no machine can map."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(64, dtype=np.uint16))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"(64,), }" + b" " * 19, f"({2**62},), }}".encode()))
    assert path.read_bytes() != raw
    assert run(words(tmp_path, estimated_plan_of(LAYOUT), "--data", str(path))) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_sparse_index_is_refused_before_it_is_checked(tmp_path: Path) -> None:
    """An index of 2³⁶ empty sequences agrees with itself; to see that would take hours."""
    index = tmp_path / "x.idx"
    write_indexed(index, [[1, 2, 3]], vocab_size=100)
    head = bytearray(index.read_bytes()[:34])
    count = 1 << 36
    head[18:26], head[26:34] = count.to_bytes(8, "little"), (1).to_bytes(8, "little")
    index.write_bytes(bytes(head))
    os.truncate(index, 34 + 12 * count + 8)
    begin = time.process_time()
    with bounded(), pytest.raises(InputError, match="cannot be read") as caught:
        open_indexed(index)
    assert time.process_time() - begin < 5
    assert "sequences of" in caught.value.cause


def test_a_tokenizer_that_panics_is_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    """A pattern that Rust's library cannot search ends a call by what is no `Exception`."""
    value = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    value["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(?:(?:a+)+)+$|(a|b|ab)*(?=c)"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    (tmp_path / "tokenizer_config.json").write_text((tokenizer_folder / "tokenizer_config.json").read_text())
    known = open_tokenizer(tmp_path)
    with bounded(), pytest.raises(InputError, match="cannot be tokenized"):
        known.encode(["a" * 40 + "b" + "ab" * 200])
