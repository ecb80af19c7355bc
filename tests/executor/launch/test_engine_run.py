"""`plan run --engine` starts a plan by its own engine once its twin holds, or refuses before it writes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.documents import held_to_schema

pytest.importorskip("torch")

from app.actions.runs import by_engine
from app.cli import run
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from executor.launch.nodes import Nodes
from planner.plan import Plan, PlanRequest, to_json
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from tests.executor.conftest import TINY
from topology.base.errors import InputError
from topology.builders import default_cluster

PROGRAM = """
import json
import os
from pathlib import Path

import planned
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
planned.check(**planned.PLAN)
weight = torch.nn.Parameter(torch.ones(1) * dist.get_rank())
(weight * 2).sum().backward()
dist.all_reduce(weight.grad)
torch.optim.SGD([weight], lr=1.0).step()
told = {"world": dist.get_world_size(), "gradient": weight.grad.item(), "plan": planned.PLAN["global_batch_size"]}
if dist.get_rank() == 0:
    Path(os.environ["FOUND"]).write_text(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
"""

ONE_RANK = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
exec python -u "$@"
"""
"""In torchrun's place a rank alone, whose exit code is torchrun's: it ends before it would use torch."""


def planned_for(engine: str, stack: str) -> Plan:
    """Two data-parallel ranks of a small model."""
    request = PlanRequest(
        model=TINY,
        cluster=default_cluster("h100-sxm", 2).spec,
        job=TrainingJob(sequence_length=16, global_batch_size=8),
        stack=stack,
        engine=engine,
        pins=parse_pins({"dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1}),
        memory_headroom=0.0,
    )
    plan = plan_of_layout(request, load_calibration())
    assert isinstance(plan, Plan), plan
    return plan


@pytest.fixture
def megatron_words(tmp_path: Path) -> list[str]:
    """`plan run` of a plan for Megatron-LM, not started."""
    path = tmp_path / "wanted.json"
    path.write_text(to_json(planned_for("megatron", "megatron-core")), encoding="utf-8")
    return ["run", str(path), "--run-dir", str(tmp_path / "run"), "--engine", "megatron", "--dry-run"]


@pytest.mark.slow
def test_an_engine_is_started_once_its_twin_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bundle's own start: torchrun, the script that holds a program to the plan, gloo ranks."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    Path("wanted.json").write_text(to_json(planned_for("deepspeed", "pytorch")), encoding="utf-8")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name, value in (("PROGRAM", "train.py"), ("FOUND", str(tmp_path / "found")), ("SKIP_PREFLIGHT", "1")):
        monkeypatch.setenv(name, value)
    assert run(["run", "wanted.json", "--engine", "deepspeed", "--json"]) == 0
    said = capfd.readouterr()
    assert "what was checked holds" in said.err
    assert held_to_schema("run", said.out)["exit_code"] == 0
    assert json.loads(Path("found").read_text()) == {"world": 2, "gradient": 4.0, "plan": 8}
    Path("train.py").write_text("import planned\nplanned.check(sequence_length=1)\n")
    Path("bin").mkdir()
    Path("bin/torchrun").write_text(ONE_RANK)
    Path("bin/torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")
    assert run(["run", "wanted.json", "--engine", "deepspeed", "--no-preflight"]) == 1
    said = capfd.readouterr()
    assert ("failed with exit code" in said.out, "sequence_length" in said.err) == (True, True)


def test_what_is_missing_is_named_at_once(
    megatron_words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it, with what each is; nothing is written."""
    monkeypatch.setenv("MEGATRON_LM", "/megatron")
    assert run([*megatron_words, "--learning-rate", "1e-4"]) == 2
    said = capsys.readouterr().err
    assert "not set: DATA_PATH (prefix" in said
    assert "MEGATRON_LM" not in said.split("help:")[0]
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_all_that_starts_it(
    megatron_words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Flags by the bundle's variables; data named in full, as the engine starts in another folder."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.idx").touch()
    for name in ("MEGATRON_LM", "CHECKPOINTS"):
        monkeypatch.setenv(name, f"/{name}")
    words = [
        *megatron_words,
        "--learning-rate",
        "1e-4",
        "--steps",
        "7",
        "--data",
        "corpus",
        "--tokenizer",
        "name",
    ]
    assert run(words) == 0
    said = capsys.readouterr().out
    for wanted in (
        f"DATA_PATH={tmp_path}/corpus ",
        "TRAIN_ITERS=7 ",
        "LEARNING_RATE=0.0001 ",
        "NODE_RANK=0 ",
    ):
        assert wanted in said
    assert said.endswith(f"bash {tmp_path}/run/start.sh\n")
    assert run(words) == 0  # the same run again
    monkeypatch.setenv("LEARNING_RATE", "1e-5")
    assert run([*words, "--learning-rate", "3e-4"]) == 0  # a flag's usual value is one too
    assert "LEARNING_RATE=0.0003 " in capsys.readouterr().out
    for data in ("0.7=a.bin,0.3=b.bin", "synthetic", "corpus.jsonl"):
        assert run([*words, "--data", data]) == 2
        assert f"--data {data} is not handed on" in capsys.readouterr().err
    (tmp_path / "run" / "plan.json").write_text("{}")
    assert run(words) == 2
    assert "there are files in it" in capsys.readouterr().err


def test_a_flag_that_the_engine_is_not_told_is_refused(
    megatron_words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And a plan of another engine."""
    assert run([*megatron_words, "--seed", "0", "--wandb"]) == 2
    assert "megatron is not told --seed, --wandb" in capsys.readouterr().err
    assert run([*megatron_words[:-2], "torchtitan", "--dry-run"]) == 2
    assert "the plan is not for torchtitan" in capsys.readouterr().err
    assert run([*megatron_words[:-3], "--device", "cpu", "--dry-run"]) == 0
    assert "its twin is trained; --engine megatron starts megatron itself" in capsys.readouterr().err


def test_a_plan_whose_twin_does_not_hold_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding is the answer, with the exit code of `plan validate`."""
    from executor.validation import validate
    from executor.validation.report import Check, ValidationReport

    wrong = ValidationReport(
        checks=(Check(name="counts", verdict="does not hold", detail="3 of 4", seconds=1.0),)
    )
    monkeypatch.setattr(validate, "validate", lambda *_: wrong)
    monkeypatch.setattr(by_engine, "run_start_script", lambda *_: pytest.fail("it was started"))
    monkeypatch.setenv("PROGRAM", "x.py")
    path = tmp_path / "wanted.json"
    path.write_text(to_json(planned_for("deepspeed", "pytorch")), encoding="utf-8")
    assert run(["run", str(path), "--run-dir", str(tmp_path / "run"), "--engine", "deepspeed"]) == 1
    assert "does not hold: counts" in capsys.readouterr().out


def test_several_nodes_meet_where_they_are_told_and_wait_for_the_first_ones_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its number; a job of another size than the plan's is refused."""
    plan = planned_for("megatron", "megatron-core")
    with pytest.raises(InputError, match="another number of nodes"):
        by_engine.rendezvous_of(plan, Nodes(count=2, rank=1), "host:1")
    monkeypatch.setattr(by_engine, "MEETING_S", 0.1)
    monkeypatch.setattr(by_engine, "LOOK_S", 0.1)
    with pytest.raises(InputError, match="has not written the run"):
        by_engine.write_bundle(plan, "megatron", tmp_path / "run", 1)
    assert by_engine.write_bundle(plan, "megatron", tmp_path / "run", 0)
    assert by_engine.write_bundle(plan, "megatron", tmp_path / "run", 1)
