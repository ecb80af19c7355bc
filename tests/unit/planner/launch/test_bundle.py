"""A bundle starts the engine that was planned for, on every launcher, and stops where something is not named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from planner.engines.contracts import CONTRACTS
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.entries import ENTRIES
from planner.plan import Plan, from_json
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError

LAYOUT = ParallelLayout(dp=16, zero_stage=3)


@cache
def plan_for(engine: str) -> Plan:
    """Two nodes of eight GPUs, priced by the engine's own profile."""
    return priced(LAYOUT, stack=CONTRACTS[engine].stacks[0])


def written(folder: Path, engine: str, launcher: str) -> Path:
    """The folder with its files."""
    for name, text in bundle(plan_for(engine), engine, launcher)[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("engine", ENTRIES)
def test_every_file_is_sound(engine: str, launcher: str) -> None:
    """Shell scripts parse, no path is absolute but those inside a container, the plan is the plan."""
    files, _ = bundle(plan_for(engine), engine, launcher)
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch")):
            done = subprocess.run(["bash", "-n"], input=text, text=True, check=False, capture_output=True)
            assert (name, done.returncode, done.stderr) == (name, 0, "")
            assert not [line for line in text.splitlines() if " /" in line.replace(" >/dev/null", "")]
        if name.endswith(".py"):
            compile(text, name, "exec")
    assert from_json(files["plan.json"]).layout == LAYOUT
    assert files["ranks.csv"].splitlines()[-1] == "15,1,1,7"


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("engine", ENTRIES)
def test_shellcheck_finds_nothing(engine: str, launcher: str, tmp_path: Path) -> None:
    """Not even a matter of style, in scripts and in what they source."""
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck is not installed")
    written(tmp_path, engine, launcher)
    sourced = (
        "environment.sh",
        "hosts.sh",
        "megatron_args.sh",
    )  # read with start.sh, which uses what they set
    scripts = sorted(
        path.name
        for path in tmp_path.iterdir()
        if path.suffix in (".sh", ".sbatch") and path.name not in sourced
    )
    call = [tool, "--shell=bash", "--external-sources", "--check-sourced", *scripts]
    done = subprocess.run(call, cwd=tmp_path, text=True, check=False, capture_output=True)
    assert ("start.sh" in scripts, done.returncode, done.stdout) == (True, 0, "")


@pytest.mark.parametrize("launcher", ["kubernetes", "pytorchjob", "kubeflow", "skypilot"])
def test_manifests_are_yaml_with_a_pod_a_node(launcher: str) -> None:
    """A reader sees two nodes of eight GPUs."""
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    files, _ = bundle(plan_for("megatron"), "megatron", launcher)
    (text,) = (text for name, text in files.items() if name.endswith(".yaml"))
    document = reader.safe_load(text)
    spec = document.get("spec", document)
    found = {
        "skypilot": lambda: spec["num_nodes"],
        "kubernetes": lambda: spec["replicatedJobs"][0]["template"]["spec"]["completions"],
        "pytorchjob": lambda: sum(one["replicas"] for one in spec["pytorchReplicaSpecs"].values()),
        "kubeflow": lambda: spec["trainer"]["numNodes"],
    }
    assert found[launcher]() == 2
    assert "8" in text


def environment(tmp_path: Path, **named: str) -> dict[str, str]:
    """An environment whose launchers only say how they were called."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name in ("torchrun", "accelerate"):
        stub = bin_folder / name
        stub.write_text(
            f'#!/bin/bash\nprintf "%s\\n" {name} "$@"\necho "queue=${{CUDA_DEVICE_MAX_CONNECTIONS:-}}"\n'
        )
        stub.chmod(0o755)
    return {"PATH": f"{bin_folder}:{os.environ['PATH']}", "SKIP_PREFLIGHT": "1", **named}


@pytest.mark.parametrize("engine", ENTRIES)
def test_start_runs_the_engine_with_the_plan(engine: str, tmp_path: Path) -> None:
    """On node 1 of 2, with everything named; without the last of it, it stops and says which."""
    folder = written(tmp_path, engine, "torchrun")
    named = {name: f"my-{name.lower()}" for name in ENTRIES[engine].variables}
    node = {"NODE_RANK": "1", "MASTER_ADDR": "node0"}
    call = ["bash", str(folder / "start.sh"), "--more"]
    done = subprocess.run(
        call, env=environment(tmp_path, **node, **named), check=False, capture_output=True, text=True
    )
    said = done.stdout.splitlines()
    assert (done.returncode, done.stderr, said[-2], said[-1]) == (0, "", "--more", "queue=")
    assert said[0] == ("accelerate" if engine == "accelerate" else "torchrun")
    assert ("node0" in done.stdout, {"megatron": "--use-megatron-fsdp"}.get(engine, said[0]) in said) == (
        True,
        True,
    )
    bound = {**node, **named, "NUMA_BINDING": "node"}
    done = subprocess.run(
        call, env=environment(tmp_path, **bound), check=False, capture_output=True, text=True
    )
    assert ("--numa-binding=node" in done.stdout.splitlines()) == (engine != "accelerate")
    *_, last = named
    del named[last]
    done = subprocess.run(
        call, env=environment(tmp_path, **node, **named), check=False, capture_output=True, text=True
    )
    assert (done.returncode != 0, f"{last}: name the" in done.stderr, done.stdout) == (True, True, "")


def test_slurm_keeps_the_nodes_of_a_rack_together() -> None:
    """Where a scale-up domain spans nodes the scheduler is told; elsewhere it is not."""
    layout = ParallelLayout(dp=72, zero_stage=1)
    rack = priced(layout, gpu="gb200", global_batch_size=144)
    files, _ = bundle(rack, "megatron", "slurm")
    assert "#SBATCH --segment=18" in files["train.sbatch"].splitlines()
    assert "#SBATCH --nodes=18" in files["train.sbatch"].splitlines()
    assert "share a rack by 18" in bundle(rack, "megatron", "ray")[0]["README.md"]
    assert "--segment" not in bundle(plan_for("megatron"), "megatron", "slurm")[0]["train.sbatch"]


def test_a_plan_that_the_engine_cannot_be_told_has_no_bundle() -> None:
    """The refusal of the export is that of the bundle."""
    with pytest.raises(InputError, match="--for torchtitan"):
        bundle(plan_for("megatron"), "torchtitan", "slurm")
