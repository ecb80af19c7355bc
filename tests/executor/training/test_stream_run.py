"""Runs on text that is tokenized on the way: kills, other layouts, and what a run keeps of its texts."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")

import torch.distributed as dist

from app.cli import run
from app.store.run_settings import SETTINGS_FILE
from costmodel.layout import ParallelLayout
from executor.data.contents import TEXTS_FILE, every_text, look_through
from executor.data.stream import TextStream
from executor.training import loop, trainer
from executor.training.manifest import folder_of_step, read_manifest
from executor.training.metrics import Reporter
from executor.training.settings import CHECKPOINTS, EVALUATIONS_FILE, RUN_FILE, RunSettings, read_settings
from planner.plan import Plan
from tests.counts import IS_NIGHTLY
from tests.executor.conftest import TINY
from tests.executor.training.test_commands import LEGAL, run_words
from tests.executor.training.test_faults import kill, reported, when
from tests.executor.training.test_training import copy_of, losses, run_here, settings_in
from topology.base.errors import InputError

WORDS = [f"w{number}" for number in range(200)]
STEPS, LAYOUT = 10, ParallelLayout(dp=2, zero_stage=1)
SHALLOW = replace(TINY, num_layers=1)


def write_lines(path: Path, seed: int, count: int) -> Path:
    random = np.random.default_rng(seed)
    some = [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words (token 1 ends a document), two corpora to train on and one that is held out."""
    import pyarrow as pa
    from pyarrow import parquet

    made = tmp_path_factory.mktemp("texts")
    ids = {word: number for number, word in enumerate(["<unk>", "<end>", *WORDS])}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    write_lines(made / "a.jsonl", 1, 60)
    write_lines(made / "held-out.jsonl", 2, 30)
    rows = [
        json.loads(line)["text"] for line in write_lines(made / "b.lines", 3, 90).read_text().splitlines()
    ]
    parquet.write_table(pa.table({"text": rows}), made / "b.parquet", row_group_size=20)
    for name, to in (
        ("a.jsonl", "a/train.jsonl"),
        ("held-out.jsonl", "a/test.jsonl"),
        ("b.parquet", "b/en/0.parquet"),
    ):
        (made / to).parent.mkdir(parents=True, exist_ok=True)
        (made / to).write_bytes((made / name).read_bytes())
    about = "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/*\n"
    (made / "b" / "README.md").write_text(f"---\n{about}---\n")
    return made


def data_of(folder: Path, form: str = "files") -> dict[str, str]:
    """A blend of both corpora, documents apart, and all of the held-out one."""
    if form == "datasets":
        return {
            "data": f"0.7=hf:{folder}/a:default:train,0.3=hf:{folder}/b:en:train",
            "eval_data": f"hf:{folder}/a:default:test",
            "tokenizer": str(folder),
        }
    return {
        "data": f"0.7={folder / 'a.jsonl'},0.3={folder / 'b.parquet'}",
        "eval_data": str(folder / "held-out.jsonl"),
        "tokenizer": str(folder),
    }


@pytest.fixture(
    scope="module",
    params=[
        "files",
        pytest.param(
            "datasets",
            marks=[
                pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets"),
                pytest.mark.skipif(
                    not IS_NIGHTLY, reason="of the nightly run: test_hub.py trains ranks from datasets"
                ),
            ],
        ),
    ],
)
def form(request: pytest.FixtureRequest) -> str:
    """Texts that are read by ourselves, and Hugging Face datasets that their library streams."""
    return str(request.param)


@pytest.fixture(scope="module")
def uninterrupted(
    folder: Path, form: str, plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that nothing disturbed."""
    made = tmp_path_factory.mktemp("run")
    run_here(settings_of(folder, made, form), plan_of(LAYOUT, spec=SHALLOW))
    return made


def settings_of(folder: Path, to: Path, form: str) -> RunSettings:
    """Settings of a run on the texts."""
    fields = {**data_of(folder, form), "document_end": 1, "checkpoint_every": 2, "eval_interval": 5}
    return settings_in(to, steps=STEPS, keep_checkpoints=9, **fields)


def test_another_layout_goes_on_where_a_checkpoint_was(
    folder: Path, form: str, uninterrupted: Path, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """From step 4, whose places are in the checkpoint: the same losses on one replica of two ranks."""
    manifest = read_manifest(folder_of_step(uninterrupted / CHECKPOINTS, 4))
    assert manifest is not None
    assert [len(places) for places in manifest.places.values()] == [8, 8]
    windows = [sum(row[0] for row in places) for places in manifest.places.values()]
    assert sum(windows) == manifest.samples == 4 * 8
    again = copy_of(uninterrupted, tmp_path / "again", last_step=4)
    resumed = replace(settings_of(folder, again, form), folder=str(again), plan_file=str(again / "plan.json"))
    run_here(resumed, plan_of(ParallelLayout(tp=2, sequence_parallel=True), spec=SHALLOW))
    first = losses(uninterrupted)
    assert losses(again) == pytest.approx({step: first[step] for step in range(5, STEPS + 1)}, rel=1e-6)
    assert held_out_of(again)[-1] == pytest.approx(held_out_of(uninterrupted)[-1], rel=1e-6)


def held_out_of(run_dir: Path) -> list[float]:
    """Held-out losses of a run."""
    return [json.loads(line)["loss"] for line in (run_dir / EVALUATIONS_FILE).read_text().splitlines()]


@pytest.mark.clock
@pytest.mark.slow
def test_text_that_is_long_looked_for_is_no_hang(
    folder: Path,
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank reads for longer than a collective may take, before the first step and before a later one."""
    bound_s, looks_s, plain = 3, 5, TextStream.sample
    monkeypatch.setattr(trainer, "COLLECTIVE_TIMEOUT", timedelta(seconds=bound_s))
    monkeypatch.setattr(loop, "ROUND_S", 1.0)
    monkeypatch.setattr(loop, "FIRST_LINE_AFTER_S", 2.0)

    def sample(self: TextStream, index: int) -> object:
        if dist.get_rank() == 1 and index in {4, 4 * 8 + 4}:  # its first of a step
            time.sleep(looks_s)
        return plain(self, index)

    def say(_self: object, message: str) -> None:
        with (tmp_path / "said").open("a") as said:
            said.write(f"{message}\n")

    monkeypatch.setattr(TextStream, "sample", sample)
    monkeypatch.setattr(Reporter, "say", say)
    fields = {"data": str(folder / "a.jsonl"), "tokenizer": str(folder)}
    found = run_here(settings_in(tmp_path / "run", steps=6, **fields), plan_of(LAYOUT, spec=SHALLOW))
    assert [status.state for status in found] == ["finished"] * 2
    assert "1 of 2 ranks still read text, for " in (tmp_path / "said").read_text()


@pytest.mark.slow
def test_a_killed_rank_costs_no_sample(
    folder: Path, form: str, uninterrupted: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """`plan run`, kill −9 of a rank after step 5: losses to the last bit those of the run that nothing disturbed."""
    made = tmp_path / "run"
    words = run_words(tmp_path, estimated_plan_of(LAYOUT, num_layers=SHALLOW.num_layers), made)
    names = data_of(folder, form)
    words += ["--data", names["data"], "--eval-data", names["eval_data"], "--tokenizer", names["tokenizer"]]
    words += ["--fp32", "--steps", str(STEPS), "--learning-rate", "1e-2", "--warmup-steps", "0"]
    words += ["--document-end", "1", "--eval-interval", "5", "--checkpoint-every", "2"]
    when(lambda: len(reported(made)) >= 5, lambda: kill(made, 1))
    assert run(words) == 0
    rows = reported(made)
    assert len(rows) > STEPS  # some steps were done twice
    assert {row["step"]: row["samples"] for row in rows} == {step: 8 * step for step in range(1, STEPS + 1)}
    first = losses(uninterrupted)
    assert [row["loss"] for row in rows] == [first[int(row["step"])] for row in rows]
    assert held_out_of(made)[-1] == held_out_of(uninterrupted)[-1]
    parts = [part for part in re.split(r",?0\.\d=", names["data"]) if part]
    assert sorted(json.loads((made / TEXTS_FILE).read_text())) == sorted([*parts, names["eval_data"]])


def dry_run(
    folder: Path, plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str]:
    """What `plan run --dry-run` says to the folder's texts, or to what else is given."""
    words = run_words(tmp_path, plan, tmp_path / "run")
    names = data_of(folder)
    given = ["--data", names["data"], "--tokenizer", names["tokenizer"]]
    code = run([*words, "--dry-run", *given, *more])
    return code, capsys.readouterr().err


def copied(folder: Path, to: Path) -> Path:
    """The texts, to change them."""
    to.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return to


HALF = json.dumps({"text": "w1 \ud800 w2"}) + "\n"
"""A document with half of a surrogate pair, which JSON can spell and no tokenizer reads."""


@pytest.mark.parametrize("at", [0, 60])
def test_half_of_a_surrogate_pair_is_refused_before_anything_starts(
    at: int,
    folder: Path,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the first document and the last one, which are looked at: three lines, and no folder."""
    lines = (folder / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_text("".join([*lines[:at], HALF, *lines[at:]]))
    plan = estimated_plan_of(LEGAL)
    code, errors = dry_run(folder, plan, tmp_path, capsys, "--data", str(tmp_path / "half.jsonl"))
    assert (code, "half of a surrogate pair" in errors) == (2, True), errors
    assert [line.split(":")[0] for line in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("at", [1, 30, 59])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is_read(
    at: int, packed: bool, folder: Path, tmp_path: Path
) -> None:
    """By an error of its own three lines, which names the file: a rank ends with it, and is not restarted."""
    lines = (folder / "a.jsonl").read_text().splitlines(keepends=True)
    raw = "".join([*lines[:at], HALF, *lines[at:]]).encode()
    path = tmp_path / ("half.jsonl.gz" if packed else "half.jsonl")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(InputError, match="half of a surrogate pair") as raised:
        list(every_text(str(path), look_through(str(path), field="text", lanes=1)))
    assert str(path) in raised.value.cause
    assert str(raised.value).count("\n") == 2


def test_settings_repeat_a_run_on_the_same_texts_alone(
    folder: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They name tokenizer and texts with checksums; another tokenizer, or another text, is refused."""
    texts = copied(folder, tmp_path / "texts")
    plan, kept = estimated_plan_of(LEGAL), tmp_path / "run" / SETTINGS_FILE
    assert dry_run(texts, plan, tmp_path, capsys, "--text-field", "text")[0] == 0
    said = tomllib.loads(kept.read_text())
    assert (said["tokenizer"], said["text_field"]) == (str(texts / "tokenizer.json"), "text")
    assert sorted(said["checksums"]) == sorted(
        str(texts / name) for name in ("a.jsonl", "b.parquet", "tokenizer.json")
    )
    assert read_settings(tmp_path / "run" / RUN_FILE).checksums == said["checksums"]
    again = ["run", "--settings", str(kept), "--run-dir", str(tmp_path / "again"), "--dry-run"]
    assert run(again) == 0
    for name in ("tokenizer.json", "a.jsonl"):
        before = (texts / name).read_bytes()
        (texts / name).write_bytes(before.replace(b"w7", b"v7"))
        capsys.readouterr()
        assert run(again) == 2
        errors = capsys.readouterr().err
        assert "is not what" in errors
        assert "was written with" in errors
        assert dry_run(texts, plan, tmp_path, capsys)[0] == 2
        (texts / name).write_bytes(before)
    assert dry_run(texts, plan, tmp_path, capsys)[0] == 0


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
def test_a_dataset_is_kept_by_its_full_name(
    folder: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings name configuration and split, and say of which library; they repeat the run on the same files alone."""
    for name in ("a", "b"):
        shutil.copytree(folder / name, tmp_path / name)
    kept, plan = tmp_path / "run" / SETTINGS_FILE, estimated_plan_of(LEGAL)
    given = ["--data", f"3=hf:{tmp_path}/a,1=hf:{tmp_path}/b", "--eval-data", f"hf:{tmp_path}/a:test"]
    code, told = dry_run(folder, plan, tmp_path, capsys, *given)
    assert code == 0, told
    said = tomllib.loads(kept.read_text())
    full = [f"hf:{tmp_path}/a:default:train", f"hf:{tmp_path}/b:en:train", f"hf:{tmp_path}/a:default:test"]
    assert (said["data"], said["eval_data"]) == (f"3={full[0]},1={full[1]}", full[2])
    assert sorted(said["checksums"]) == sorted([str(folder / "tokenizer.json"), *full])
    assert said["versions"]["datasets"]
    assert f"{full[1]} is 1 file, 0.0 MB" in told
    again = ["run", "--settings", str(kept), "--run-dir", str(tmp_path / "again"), "--dry-run"]
    assert run(again) == 0
    assert tomllib.loads((tmp_path / "again" / SETTINGS_FILE).read_text())["data"] == said["data"]
    (tmp_path / "a" / "train.jsonl").write_bytes((tmp_path / "a" / "test.jsonl").read_bytes())
    capsys.readouterr()
    assert run(again) == 2
    assert "is not what" in capsys.readouterr().err
    code, told = dry_run(folder, plan, tmp_path, capsys, *given)
    assert (code, "a/train.jsonl has other bytes" in told) == (2, True)


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data", "hf:{0}/a:dev"], "has no split dev"),
        (["--data", "hf:{0}/a", "--text-field", "body"], "has text"),
        (
            ["--data", "hf:{0}/a", "--eval-data", "hf:{0}/a:train"],
            "a/train.jsonl is in --data and in --eval-data",
        ),
        (["--data", "{0}/a/train.jsonl", "--eval-data", "hf:{0}/a"], "train.jsonl is in --data and in"),
        (["--data", "1={0}/a.jsonl,1=hf:org/name"], "org/name is not here, and the hub is not asked"),
    ],
)
def test_datasets_that_cannot_be_trained_on_are_refused(
    more: list[str],
    said: str,
    folder: Path,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In three lines, and nothing is written."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    words = [word.replace("{0}", str(folder)) for word in more]
    code, errors = dry_run(folder, estimated_plan_of(LEGAL), tmp_path, capsys, *words)
    assert (code, said in errors) == (2, True), errors
    assert [one.split(":")[0] for one in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()


def test_without_the_library_it_is_said_what_to_install(
    folder: Path,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In three lines; files are read without it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    code, errors = dry_run(folder, estimated_plan_of(LEGAL), tmp_path, capsys, "--data", f"hf:{folder}/a")
    assert (code, errors.splitlines()[-1]) == (2, 'help:  pip install "meshplan[datasets]"')
    assert dry_run(folder, estimated_plan_of(LEGAL), tmp_path, capsys)[0] == 0


def test_what_is_read_of_a_folder_is_told(
    folder: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts are joined, so they are named; the tokenizer's own files are no text, others are counted."""
    texts = copied(folder, tmp_path / "texts")
    for part, name in (("train", "a.jsonl"), ("test", "b.parquet")):
        (texts / part).mkdir()
        (texts / name).rename(texts / part / name)
    code, said = dry_run(texts, estimated_plan_of(LEGAL), tmp_path, capsys, "--data", str(texts))
    assert code == 0
    assert f"{texts} is 3 files, 0.0 MB (1 of test, 1 of train); 1 others are left out" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data", "synthetic"], "--tokenizer has nothing to read"),
        (["--data", "{0}/missing.jsonl"], "there is no such file or folder"),
        (["--tokenizer", "{0}/a.jsonl"], "is not a tokenizer"),
        (["--text-field", "body"], "no text in 'body'"),
        (["--eval-data", "{0}"], "the held-out data is trained on"),
        (["--data", "{0}", "--eval-data", "{0}/b.parquet"], "b.parquet is in --data and in --eval-data"),
        (
            ["--eval-data", "1={0}/held-out.jsonl,1=synthetic"],
            "how much of the held-out data to read is not said",
        ),
        (["--eval-data", "{0}/held-out.jsonl", "--eval-batches", "99"], "too few sequences"),
        (["--document-end", "202"], "token 202"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(
    more: list[str],
    said: str,
    folder: Path,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines."""
    more = [word.replace("{0}", str(folder)) for word in more]
    code, errors = dry_run(folder, estimated_plan_of(LEGAL), tmp_path, capsys, *more)
    assert code == 2
    assert said in errors
    assert [one.split(":")[0] for one in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()
