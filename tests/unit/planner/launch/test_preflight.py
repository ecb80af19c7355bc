"""The preflight script says plan against found, and stops where a node cannot carry the plan."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from executor.launch.node_state import nic_rate
from planner.engines.contracts import CONTRACTS
from planner.launch.bundle import bundle
from planner.launch.entries import ENTRIES
from planner.plan import Plan
from tests.unit.planner.engines.priced import priced
from tests.unit.planner.launch.test_bundle import plan_for
from topology.base.errors import InputError
from topology.base.units import GBIT

SMI = """#!/bin/bash
case "$1" in
  *memory*) echo 81559 ;;
  *name*) echo "NVIDIA H100 80GB HBM3, 570.86.15" ;;
  *driver*) echo "${DRIVER:-570.86.15}" ;;
  *) for i in 0 1 2 3 4 5 6 7; do echo "$i"; done ;;
esac
"""
PYTHON = f"""#!/bin/bash
[ "$1" = -c ] && exit 0
exec {sys.executable} "$@"
"""
INFINIBAND = "infiniband/mlx5_{}/ports/1/{}"


def checked(
    folder: Path, cards: Mapping[str, str], *, plan: Plan | None = None, path: str = "", **named: str
) -> tuple[int, str]:
    """How the script ends on a node with eight H100s and these cards, and what it says."""
    for name, text in bundle(plan or plan_for("megatron"), "megatron", "torchrun")[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    tools = {"bin/python": PYTHON, **({} if plan else {"bin/nvidia-smi": SMI})}
    for name, text in {**tools, **cards}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    core = folder / "checkout" / "megatron" / "core"
    core.mkdir(parents=True, exist_ok=True)
    version = named.pop("VERSION", "0.17.1rc3")
    (core / "__init__.py").write_text(f'__version__ = "{version}"' if version else "import nowhere")
    environment = {
        "PATH": f"{folder / 'bin'}:{path or os.environ['PATH']}",
        "SYS_CLASS": str(folder),
        "MEGATRON_LM": str(folder / "checkout"),
        **named,
    }
    call = ["bash", str(folder / "preflight.sh")]
    done = subprocess.run(call, env=environment, check=False, capture_output=True, text=True)
    return done.returncode, done.stderr


def fabric(rate: str, count: int = 8, down: int = 0) -> dict[str, str]:
    """Cards of InfiniBand as Linux shows them, the last few without a link."""
    states = ["4: ACTIVE"] * (count - down) + ["1: DOWN"] * down
    return {
        INFINIBAND.format(index, name): f"{text}\n"
        for index, state in enumerate(states)
        for name, text in (("rate", rate), ("state", state))
    }


def ethernet(*states: str, rate: str = "400000") -> dict[str, str]:
    """Cards of Ethernet by what the kernel says of their links."""
    return {
        f"net/eth{index}/{name}": f"{text}\n"
        for index, state in enumerate(states)
        for name, text in (("speed", rate), ("operstate", state), ("device/vendor", ""))
    }


@pytest.mark.parametrize(
    ("cards", "code", "told"),
    [
        (fabric("400 Gb/sec (4X NDR)"), 0, "found 3200\n"),
        (fabric("200 Gb/sec (4X HDR)"), 1, "found 1600\n"),
        (fabric("400 Gb/sec (4X NDR)", 7), 1, "found 2800\n"),
        (fabric("400 Gb/sec (4X NDR)", down=1), 1, "found 2800\n"),
        (fabric("400 Gb/sec (4X NDR)", down=8), 0, "found none that can be read here: not checked\n"),
        ({"net/eth0/speed": "400000\n", "net/eth0/device/vendor": ""}, 1, "found 400\n"),
        (ethernet(*["up"] * 7, "unknown"), 0, "found 3200\n"),
        (ethernet(*["up"] * 6, "down", "lowerlayerdown"), 1, "found 2400\n"),
        ({"net/lo/speed": "4000000\n"}, 0, "found none that can be read here: not checked\n"),
    ],
)
def test_cards_are_held_against_the_rate_of_the_plan(
    cards: dict[str, str], code: int, told: str, tmp_path: Path
) -> None:
    """A DGX H100 has eight cards of 400 Gbit/s; what is no device or has no link is none, as `nic_rate` has it."""
    found = checked(tmp_path, cards)
    here = nic_rate(tmp_path)
    assert ("not checked" if here is None else f"found {here / GBIT:.0f}\n") in told
    assert found[0] == code, found[1]
    assert f"NIC rate: plan 3200 Gbit/s of a node (8 x 400), {told}" in found[1]
    assert "NODE_RANK and MASTER_ADDR are not set: not checked" in found[1]


@pytest.mark.parametrize(
    ("driver", "code"), [("520.61.05", 0), ("570.86.15", 0), ("515.105.01", 1), ("470.256.02", 1)]
)
def test_a_driver_must_know_the_gpu(driver: str, code: int, tmp_path: Path) -> None:
    """Hopper came with the branch of CUDA 11.8."""
    found = checked(tmp_path, {}, DRIVER=driver)
    assert found[0] == code, found[1]
    assert f"preflight: driver: plan 520 or later, that of hopper, found {driver}\n" in found[1]


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        ("0.15.0", 0, "0.15.0"),
        ("0.19.2+abc", 0, "0.19.2+abc"),
        ("0.14.3", 1, "0.14.3"),
        ("0.20.0", 1, "0.20.0"),
        ("1.0", 1, "1.0"),
        ("", 1, "none: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_an_engine_must_be_a_release_that_the_contract_describes(
    version: str, code: int, told: str, tmp_path: Path
) -> None:
    """Found in the checkout that the ranks will import."""
    found = checked(tmp_path, {}, VERSION=version)
    assert found[0] == code, found[1]
    assert f"preflight: engine: plan megatron-core 0.15 to 0.19, found {told}\n" in found[1]


@pytest.mark.parametrize("engine", ENTRIES)
def test_an_image_has_the_release_that_was_planned_for(engine: str) -> None:
    """A base by version, and the engine by its last release where the base has not got it."""
    lines = bundle(plan_for(engine), engine, "torchrun")[0]["Dockerfile"].splitlines()
    base, tag = lines[0].removeprefix("FROM ").rsplit(":", 1)
    last = CONTRACTS[engine].releases[-1]
    assert re.search(r"\d+\.\d+", tag), base
    installed = [line for line in lines if line.startswith("RUN python -m pip install")]
    assert (f"{CONTRACTS[engine].package}=={last}.*" in "".join(installed)) == (engine not in GIVEN)
    assert lines[-2:] == ["WORKDIR /plan", "COPY . /plan"]
    assert tag.startswith(GIVEN.get(engine, tag))


GIVEN = {"horovod": "0.28.", "tensorflow": "2.20.", "meshplan": "3."}
"""Engines whose base image has them, and its tag; Meshplan is installed as what wrote the bundle."""


def test_ranks_must_be_able_to_meet(tmp_path: Path) -> None:
    """Node 0 needs the port, the others an answer of its host; a refused connection is one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RENDEZVOUS_PATIENCE_S": "0"}
        taken = checked(tmp_path, {}, NODE_RANK="0", **meeting)
        answered = checked(tmp_path, {}, NODE_RANK="1", **meeting)
    assert (taken[0], f"plan 127.0.0.1:{port}, found node 0 cannot listen" in taken[1]) == (1, True)
    assert (answered[0], f"plan 127.0.0.1:{port}, found it" in answered[1]) == (0, True)
    assert checked(tmp_path, {}, NODE_RANK="0", **meeting)[0] == 0
    assert checked(tmp_path, {}, NODE_RANK="1", **meeting)[0] == 0
    code, told = checked(tmp_path, {}, NODE_RANK="1", **meeting | {"MASTER_ADDR": "no-such-host.invalid"})
    assert (code, "no-such-host.invalid" in told, "found no answer" in told) == (1, True, True)


def test_one_node_has_no_network_to_check() -> None:
    """Neither cards nor a rendezvous."""
    alone = priced(ParallelLayout(dp=8, zero_stage=3))
    files, _ = bundle(alone, "megatron", "torchrun")
    assert ("rendezvous.py" in files, "NIC" in files["preflight.sh"]) == (False, False)


@pytest.mark.parametrize(("engine", "word"), [("megatron", "NUMA_BINDING"), ("accelerate", "CPU_AFFINITY")])
def test_environment_says_how_to_bind_and_why(engine: str, word: str) -> None:
    """It binds nothing unless told."""
    text = bundle(plan_for(engine), engine, "torchrun")[0]["environment.sh"]
    said = [line for line in text.splitlines() if line.startswith("# NUMA: ")]
    assert ("socket" in said[0], word in said[1], word in text.replace(said[1], "")) == (True, True, False)


def amd_plan(engine: str = "megatron") -> Plan:
    """Two nodes of eight MI300X."""
    layout = ParallelLayout(tp=2, dp=8, zero_stage=1, sequence_parallel=True)
    layout = layout if engine in ("megatron", "megatron-bridge") else ParallelLayout(dp=16, zero_stage=3)
    return priced(layout, stack=CONTRACTS[engine].stacks[0], gpu="mi300x")


ROCM_SMI = """#!/bin/bash
case "$1" in
  --showmeminfo) echo "WARNING: GPUs are in a low-power state"; echo "device,VRAM Total Memory (B),VRAM Used"
    for i in 0 1 2 3 4 5 6 7; do echo "card$i,${BYTES:-206141652992},301551616"; done; echo ;;
  --showproductname) echo "device,Card Series,Card Model"; echo "card0,AMD Instinct MI300X,0x74a1" ;;
  --showdriverversion) echo "name,value"; echo "Driver version,6.12.12" ;;
esac
"""
AMD_SMI = """#!/bin/bash
case "$*" in
  *metric*) echo "gpu,total_vram,used_vram"; for i in ${CARDS:-0 1 2 3 4 5 6 7}; do echo "$i,196592,285"; done ;;
  *asic*) echo "gpu,market_name,vendor_id"; echo "0,AMD Instinct MI300X,0x1002" ;;
  *) echo "gpu,name,version"; echo "0,amdgpu,6.12.12" ;;
esac
"""


@pytest.mark.parametrize(
    ("tool", "named", "code", "told"),
    [
        ("rocm-smi", {}, 0, "1 AMD Instinct MI300X"),
        ("rocm-smi", {"BYTES": "68702699520"}, 1, "65520 MiB of a GPU, the plan counts on 186368 of mi300x"),
        ("amd-smi", {}, 0, "driver: plan any, found 6.12.12"),
        ("amd-smi", {"CARDS": "0 1 2 3"}, 1, "4 GPUs, the plan has 8 of a node"),
        ("nvidia-smi", {}, 1, "no rocm-smi or amd-smi on"),
    ],
)
def test_gpus_of_amd_are_asked_by_their_own_tools(
    tool: str, named: dict[str, str], code: int, told: str, tmp_path: Path
) -> None:
    """ROCm's old tool or its new one; that of another maker answers nothing."""
    shown = {"rocm-smi": ROCM_SMI, "amd-smi": AMD_SMI, "nvidia-smi": SMI}[tool]
    path = "/usr/bin:/bin"  # no other tool of this machine
    found = checked(tmp_path, {f"bin/{tool}": shown}, plan=amd_plan(), path=path, **named)
    assert (found[0], told in found[1]) == (code, True), found[1]


def test_a_bundle_for_gpus_of_amd_speaks_no_cuda() -> None:
    """Image, variables, resource and torch are ROCm's; what Megatron-LM checks on any GPU stays, with why."""
    files, _ = bundle(amd_plan(), "megatron", "kubernetes")
    assert files["Dockerfile"].startswith("FROM rocm/")
    assert ("amd.com/gpu" in files["jobset.yaml"], "nvidia" in files["jobset.yaml"]) == (True, False)
    assert "torch.version.hip" in files["preflight.sh"]
    assert "nvidia" not in files["preflight.sh"]
    lines = files["environment.sh"].splitlines()
    where = lines.index("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    assert lines[where - 1].startswith("# HIP does not read it")
    assert any(line.startswith("export HIP_VISIBLE_DEVICES=") for line in lines)
    assert not [line for line in lines if "ALLOC_CONF" in line]


@pytest.mark.parametrize("engine", ["deepspeed", "torchtitan", "accelerate", "megatron-bridge", "meshplan"])
def test_no_engine_has_an_image_of_cuda_for_gpus_of_amd(engine: str) -> None:
    """One of AMD's, or one that the user names."""
    files, _ = bundle(amd_plan(engine), engine, "kubeflow")
    assert files["Dockerfile"].startswith(("FROM rocm/", "FROM <image with"))
    assert "CUDA_DEVICE" not in files["environment.sh"] or engine == "megatron-bridge"
    assert "nvidia.com" not in files["trainjob.yaml"]


@pytest.mark.parametrize("launcher", ["sagemaker", "vertex"])
def test_clouds_without_the_gpu_are_refused(launcher: str) -> None:
    """In three lines, with launchers that have it."""
    with pytest.raises(InputError, match="mi300x"):
        bundle(amd_plan(), "megatron", launcher)
