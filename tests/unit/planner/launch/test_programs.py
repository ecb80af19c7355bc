"""A program of the user's own runs with the plan's quantities, and cannot with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.engines.contracts import CONTRACTS
from planner.launch.bundle import bundle
from tests.unit.planner.launch.test_bundle import plan_for

WRAPPED = [name for name, contract in CONTRACTS.items() if contract.program]
SAYS = "import planned\nplanned.check(**{used})\nprint('trained')\n"


def run(folder: Path, text: str, *, torch: bool = False, **named: str) -> tuple[int, str, str]:
    """How a program of this text ends under the script of the bundle, where torch is or is not installed."""
    (folder / "without").mkdir(exist_ok=True)
    (folder / "without" / "torch.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    named = named if torch else named | {"PYTHONPATH": str(folder / "without")}
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "train.py").write_text(text, encoding="utf-8")
    call = [sys.executable, str(folder / "planned.py"), str(folder / "mine" / "train.py"), "--words", "a b"]
    done = subprocess.run(
        call, env=os.environ | named, cwd=folder.parent, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of DeepSpeed."""
    return written(tmp_path_factory.mktemp("deepspeed"), "deepspeed")


def written(folder: Path, engine: str) -> Path:
    """A bundle."""
    for name, text in bundle(plan_for(engine), engine, "torchrun")[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_only_these_engines_run_a_program_of_the_user() -> None:
    """The others bring their own."""
    assert WRAPPED == ["accelerate", "deepspeed", "colossalai", "horovod", "tensorflow"]


@pytest.mark.parametrize("engine", WRAPPED)
def test_every_planned_quantity_is_told_and_said_in_the_readme(engine: str, tmp_path: Path) -> None:
    """Those of the plan, which a program that uses them is run with."""
    folder, plan = written(tmp_path, engine), plan_for(engine)
    told = json.loads((folder / "program.json").read_text())
    layout, job = plan.layout, plan.request.job
    assert told == {
        "sequence_length": job.sequence_length,
        "attention": "unfused" if engine == "tensorflow" else "fused",
        "microbatch_size": layout.microbatch_size,
        "accumulation_steps": job.global_batch_size // (layout.dp * layout.microbatch_size),
        "global_batch_size": job.global_batch_size,
        "precision": "bf16",
        "optimizer": "adamw",
        "recompute": "full" if any(plan.recompute_of_stage) else "none",
    }
    readme = (folder / "README.md").read_text()
    assert [name for name, said in told.items() if f"`{name}` = `{said}`" not in readme] == []
    assert CONTRACTS[engine].program in readme
    assert run(folder, SAYS.format(used=told))[:2] == (0, "trained\n")
    assert "planned.py" in (folder / "start.sh").read_text()


@pytest.mark.parametrize(
    ("name", "other"),
    [("sequence_length", 2048), ("attention", "eager"), ("microbatch_size", 2), ("accumulation_steps", 1),
     ("global_batch_size", 8), ("precision", "fp16"), ("optimizer", "muon"), ("recompute", "other")],
)  # fmt: skip
def test_a_program_with_another_quantity_is_stopped(folder: Path, name: str, other: object) -> None:
    """As is one that leaves it out; both say which."""
    told = json.loads((folder / "program.json").read_text())
    code, out, errors = run(folder, SAYS.format(used=told | {name: other}))
    assert (code, out, f"{name}: the plan has {told[name]}, the program {other}" in errors) == (1, "", True)
    del told[name]
    code, out, errors = run(folder, SAYS.format(used=told))
    assert (code, out, f"{name}: the plan has" in errors) == (1, "", True)


def test_a_program_that_says_nothing_is_stopped(folder: Path) -> None:
    """At its end, and with torch before its first step."""
    code, out, errors = run(folder, "print('trained')")
    assert (code, out, "never called planned.check" in errors) == (1, "trained\n", True)
    pytest.importorskip("torch", reason="torch is not installed")
    step = "import torch\nw = torch.nn.Parameter(torch.ones(1))\no = torch.optim.AdamW([w])\nw.sum().backward()\n"
    code, out, errors = run(folder, step + "o.step()\nprint('stepped')", torch=True)
    assert (code, out, "never called planned.check" in errors) == (1, "", True)


def test_a_kernel_that_stores_no_scores_is_as_good_as_another(folder: Path) -> None:
    """Which it is is the program's own."""
    told = json.loads((folder / "program.json").read_text())
    assert run(folder, SAYS.format(used=told | {"attention": "flash_attention_2"}))[0] == 0


def test_variables_hand_the_plan_on_and_cannot_say_otherwise(folder: Path) -> None:
    """The program has them, its own words and its own folder; one that is set to something else stops it."""
    shows = (
        "import os, sys, planned\nplanned.check(**planned.PLAN)\n"
        "print(os.environ['PLAN_SEQUENCE_LENGTH'], os.path.basename(os.environ['PLAN_CONFIG']), sys.argv[1:])\n"
        "print(os.path.basename(sys.path[0]), os.path.basename(sys.argv[0]), __name__)\n"
    )
    code, out, errors = run(folder, shows)
    assert (code, errors) == (0, "")
    assert out == "4096 ds_config.json ['--words', 'a b']\nmine train.py __main__\n"
    code, out, errors = run(folder, shows, PLAN_SEQUENCE_LENGTH="512")
    assert (code, out, "PLAN_SEQUENCE_LENGTH is 512, the plan has 4096" in errors) == (1, "", True)


def test_a_program_ends_as_it_would_alone(folder: Path) -> None:
    """Its own exit status and error are kept."""
    assert run(folder, "import sys; sys.exit(7)")[0] == 7
    code, _, errors = run(folder, "raise ValueError('mine')")
    assert (code, "ValueError: mine" in errors) == (1, True)
