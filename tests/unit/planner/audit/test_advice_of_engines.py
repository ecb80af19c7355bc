"""Advice to generated files of every engine, followed in a copy: it gains what was promised, and its engine takes it."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from planner.audit.changes import Change
from planner.parsers.client import answers, interpreter
from tests.counts import IS_NIGHTLY, cases_of_run, tries
from tests.unit.planner.audit.generated_files import GENERATORS, Case, with_change
from tests.unit.planner.audit.shared_audits import audit_without_advice, whole_audit
from tests.unit.planner.audit.test_advice import ARGUMENTS
from tests.unit.planner.audit.test_trainers_words import KEYS

SEED = 20261129
TOLERANCE = 0.01
ADVISED = (
    "megatron", "megatron_experts", "bridge", "nemo", "swift_megatron", "primus", "megatron_deepspeed",
    "torchtitan_file", "torchtitan_flags", "deepspeed", "accelerate", "llama_factory", "torchtune_command",
)  # fmt: skip
"""Engines whose advice files of `test_advice.py` and `test_applied.py` follow in the suite."""
TAKEN = {
    "llama_factory": "LLaMA-Factory",
    "axolotl": "Axolotl",
    "trl": "HF Trainer",
    "trainer_flags": "HF Trainer",
}
"""Generators whose engines publish the keys that they take."""


def cases(engine: str) -> list[Case]:
    """The first files of an engine, the same in every run."""
    source = random.Random(f"{engine} {SEED}")
    return [GENERATORS[engine](source) for _ in range(tries(1, 10))]


def changes_of(case: Case) -> Iterator[Change]:
    """Changes of a file that can be written."""
    audit = whole_audit({case.name: case.text}, case.flags)
    assert audit.predicted is not None, (case.text, audit.job.missing, audit.findings)
    yield from (change for change in audit.changes if change.set or change.remove)


@pytest.mark.parametrize("engine", cases_of_run(GENERATORS, ADVISED))
def test_followed_advice_gains_what_was_promised(engine: str) -> None:
    """Seconds of a step and bytes of the fullest GPU, within a hundredth."""
    for case in cases(engine):
        for change in changes_of(case):
            text = with_change(case, change)
            after = audit_without_advice({case.name: text}, case.flags)
            assert after.predicted is not None, (text, change, after.findings, after.job.missing)
            assert after.predicted.step_time_s == pytest.approx(change.step_time_s, rel=TOLERANCE), (
                change,
                text,
            )
            peak = after.predicted.peak_memory_bytes
            assert peak == pytest.approx(change.peak_memory_bytes, rel=TOLERANCE), (change, text)


@pytest.mark.parametrize("engine", TAKEN)
def test_every_word_of_advice_is_a_key_of_its_engine(engine: str) -> None:
    """Of the published tables of `test_trainers_words.py`, behind dashes or alone."""
    words = [
        word
        for case in cases(engine)
        for change in changes_of(case)
        for word in (*change.set, *change.remove)
    ]
    keys = {re.split(r"[:= ]", word.lstrip("-"), maxsplit=1)[0] for word in words}
    assert keys <= KEYS[TAKEN[engine]]


def parser_files(engine: str, text: str) -> dict[str, str]:
    """A generated file as the files that its engine's parser is asked about."""
    if engine == "deepspeed":
        return {"ds.json": text}
    if engine == "accelerate":
        return {"accelerate.yml": text, "training_args.json": ARGUMENTS}
    words = shlex.split(text.replace("\\\n", " ").partition("pretrain_gpt.py")[2])
    export = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if "CUDA_DEVICE_MAX" in text else ""
    return {"job.sh": f"{export}MEGATRON_ARGS=({' '.join(map(shlex.quote, words))})\n"}


def gpus_of(case: Case) -> int:
    """GPUs that a case is started on."""
    nodes = re.search(r"--nnodes (\d+)", case.text)
    return int(case.flags.gpus or 8 * int(nodes[1] if nodes else 1))


@pytest.mark.skipif(not IS_NIGHTLY, reason="parsers take the advice of test_advice.py in the suite")
@pytest.mark.parametrize(
    ("generator", "engine"),
    [
        ("megatron", "megatron"),
        ("megatron_experts", "megatron"),
        ("deepspeed", "deepspeed"),
        ("accelerate", "accelerate"),
    ],
)
def test_the_parser_of_the_engine_takes_the_advice(generator: str, engine: str) -> None:
    """Of each file with each of its changes, and of the file itself."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"{engine} is not in the environment of MESHPLAN_PARSERS")
    asked: list[dict[str, Any]] = []
    for case in cases(generator):
        for change in (None, *changes_of(case)):
            text = case.text if change is None else with_change(case, change)
            asked.append({
                "files": parser_files(engine, text), "gpus": gpus_of(case), "capability": "9.0", "gpu": "NVIDIA H100",
                "environment": {}, "model": {},
            })  # fmt: skip
    refused = [
        (case["files"], answer["error"])
        for case, answer in zip(asked, answers(engine, asked, python, timeout_s=600), strict=True)
        if "error" in answer
    ]
    assert refused == []


def test_an_edit_is_one_of_the_text() -> None:
    """Flags, keys and arguments stand where an editor puts them, whatever was read of a file."""
    change = Change(
        set=("--fsdp 'shard_grad_op auto_wrap'",), remove=("--bf16",), fields=(), step_time_s=1, seconds_gained=0,
        peak_memory_bytes=1, memory_change_bytes=0, out_of_memory_chance=0, tied=False,
    )  # fmt: skip
    case = GENERATORS["trainer_flags"](random.Random(1))
    words = shlex.split(with_change(case, change))
    assert words[-2:] == ["--fsdp", "shard_grad_op auto_wrap"]
    assert words.count("--fsdp") == 1
    assert "--bf16" not in words
    keyed = Change(
        set=("fsdp: shard_grad_op",), remove=("bf16",), fields=(), step_time_s=1, seconds_gained=0, peak_memory_bytes=1,
        memory_change_bytes=0, out_of_memory_chance=0, tied=False,
    )  # fmt: skip
    data = yaml.safe_load(with_change(GENERATORS["llama_factory"](random.Random(1)), keyed))
    assert data["fsdp"] == "shard_grad_op"
    assert "bf16" not in data
