"""A node that is not what the plan is for starts nothing: kind, memory, clocks, errors, driver, cards, links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from app.cli import run
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch import node_state as state_of_node
from executor.launch.host_room import RANK_BYTES, check_room, free_bytes
from executor.launch.node_state import ToolError, from_nvidia, from_rocm, nic_rate, node_state, visible
from executor.launch.nodes import loopback
from executor.launch.preflight import check_node, peak_bytes, stage_of
from executor.parallel import link_check
from executor.parallel.link_check import check_links, planned_all_reduce_s
from planner.plan import Plan, to_json
from tests.executor.conftest import make_plan
from topology.base.errors import InputError
from topology.base.units import GBIT, GIB, MIB
from topology.builders import default_cluster

# A line a GPU, as nvidia-smi 570 prints them for an H100 at rest, an L40S without remapping, a GPU without ECC.
H100 = "{i}, GPU-6c{i}1, NVIDIA H100 80GB HBM3, 81559, 81008, 0x0000000000000001, 345, 1980, 0, No, No, 570.86.15"
L40S = "0, GPU-0a, NVIDIA L40S, 46068, 45589, 0x0000000000000000, 210, 2520, 0, [N/A], [N/A], 550.54.15"
RTX = "0, GPU-0b, NVIDIA GeForce RTX 4090, 24564, 24210, 0x0000000000000001, 210, 3105, [N/A], [N/A], [N/A], 550.54.15"
INVALID = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
MI300X = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "301551616", "Card Series": \
"AMD Instinct MI300X OAM", "Card Model": "0x74a1", "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]"}, \
"card1": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "155551616000", "Card Series": \
"AMD Instinct MI300X OAM", "Card Model": "0x74a1"}, "system": {"Driver version": "6.12.12"}}
""".replace("\\\n", "")
Tool = Callable[[Sequence[str]], str]


def nvidia(*lines: str) -> Tool:
    """A machine whose nvidia-smi prints these lines."""
    return lambda words: "\n".join(lines) + "\n" if words[0] == "nvidia-smi" else ""


def h100s(count: int = 8, **changed: str) -> list[str]:
    """Lines of healthy GPUs; the third is changed, by its field's value."""
    lines = [H100.format(i=index) for index in range(count)]
    for old, new in changed.items():
        lines[2] = lines[2].replace({"free": "81008", "reasons": "0x0000000000000001", "name": "H100 80GB HBM3",
                                     "total": "81559", "errors": " 0, No, No", "driver": "570.86.15"}[old], new)  # fmt: skip
    return lines


def plan(*, nodes: int = 1, peak: float = 60 * GIB, gpu: str = "h100-sxm") -> Plan:
    """One that fills so many nodes of eight GPUs, and so much of the memory of each."""
    made = make_plan(ParallelLayout(dp=8 * nodes))
    stage = replace(made.estimate.memory_by_stage[0], weights_bytes=peak)
    cluster = default_cluster(gpu, 8 * nodes).spec
    estimate = replace(made.estimate, memory_by_stage=(stage,))
    return replace(made, request=replace(made.request, cluster=cluster), estimate=estimate)


def refused(tool: Tool, asked: Plan, sys_class: Path = Path("/nowhere"), **environment: str) -> str:
    """What is said, empty where the node is as planned."""
    try:
        check_node(asked, range(8), device="auto", environment=environment, tool=tool, sys_class=sys_class)
    except InputError as error:
        return f"{error.what}; {error.cause}; {error.fix}"
    return ""


def cards(folder: Path, rate: str, count: int = 8, state: str = "4: ACTIVE") -> Path:
    """Ports of RDMA devices as Linux shows them."""
    for index in range(count):
        port = folder / "infiniband" / f"mlx5_{index}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text(f"{rate}\n")
        (port / "state").write_text(f"{state}\n")
    return folder


def test_a_gpu_is_read_as_its_driver_tells_it() -> None:
    """What it does not have is not known; messages are no GPUs."""
    (healthy,) = from_nvidia(nvidia("", H100.format(i=3), "Unable to determine"))
    assert (healthy.index, healthy.uuid, healthy.name) == (3, "GPU-6c31", "NVIDIA H100 80GB HBM3")
    assert (healthy.memory_bytes, healthy.free_bytes) == (81559 * MIB, 81008 * MIB)
    assert (healthy.throttles, healthy.uncorrected_errors, healthy.remaps) == ((), 0, ())
    assert (healthy.clock_mhz, healthy.most_mhz, healthy.driver) == (345, 1980, "570.86.15")
    (card,) = from_nvidia(nvidia(RTX))
    assert (card.uncorrected_errors, card.remaps, from_nvidia(nvidia(L40S))[0].remaps) == (None, (), ())


def test_an_older_driver_is_asked_in_its_own_words() -> None:
    """Clock events were throttle reasons before 535."""

    def older(words: Sequence[str]) -> str:
        return INVALID if "clocks_event_reasons" in words[1] else H100.format(i=0)

    assert len(from_nvidia(older)) == 1
    assert from_nvidia(lambda _: "") == ()
    with pytest.raises(ToolError, match="nvidia-smi: Field"):
        from_nvidia(nvidia(INVALID))


def test_gpus_of_amd_are_read_by_their_own_tool(tmp_path: Path) -> None:
    """With a warning before what it says; the kernel counts errors of memory."""
    errors = tmp_path / "drm" / "card1" / "device" / "ras"
    errors.mkdir(parents=True)
    (errors / "umc_err_count").write_text("ue: 2\nce: 17\n")

    def rocm(words: Sequence[str]) -> str:
        return MI300X if words[0] == "rocm-smi" else ""

    first, second = from_rocm(rocm, tmp_path)
    assert (first.name, first.memory_bytes, first.driver) == (
        "AMD Instinct MI300X OAM",
        206141652992,
        "6.12.12",
    )
    assert (first.uncorrected_errors, second.uncorrected_errors) == (None, 2)
    assert second.free_bytes == 206141652992 - 155551616000
    assert from_rocm(lambda _: "", tmp_path) == ()
    with pytest.raises(ToolError, match="rocm-smi: no json"):
        from_rocm(lambda _: "no json", tmp_path)


@pytest.mark.parametrize("name", ["AMD Instinct MI250X/MI250", "AMD Instinct MI250X"])
def test_the_dies_of_a_module_are_the_gpus_of_a_plan(name: str) -> None:
    """rocm-smi shows two cards a module; a plan for `mi250x` is for these."""
    card = {"VRAM Total Memory (B)": str(64 * GIB), "VRAM Total Used Memory (B)": "0", "Card Series": name}

    def rocm(words: Sequence[str]) -> str:
        return json.dumps({f"card{i}": card for i in range(8)}) if words[0] == "rocm-smi" else ""

    assert refused(rocm, plan(gpu="mi250x", peak=40 * GIB)) == ""
    assert "GPU 0 is AMD Instinct MI250X" in refused(rocm, plan(gpu="mi300x", peak=40 * GIB))


@pytest.mark.parametrize("odd", ['"N/A"', "null", '{"VRAM Total Memory (B)": "N/A"}'])
def test_a_card_that_tells_no_memory_is_left_out(odd: str, tmp_path: Path) -> None:
    """The others keep their numbers; a driver that is no table is none."""
    card = '{"VRAM Total Memory (B)": "8", "VRAM Total Used Memory (B)": "2", "Card Series": "MI"}'
    text = f'{{"card0": {odd}, "card1": {card}, "system": "N/A"}}'
    (only,) = from_rocm(lambda _: text, tmp_path)
    assert (only.index, only.free_bytes, only.driver) == (1, 6, "")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Unable to determine the device handle: GPU is lost.'; exit 15", "handle: GPU is lost."),
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "nvidia-smi: NVIDIA-SMI has failed"),
        ("exec sleep 60", "nvidia-smi: no answer in 0.2 s"),
        ("exit 1", "nvidia-smi: it fails and says nothing"),
    ],
)
def test_a_tool_that_does_not_answer_is_a_difference(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is lost, the driver hangs: not the same as a machine without the tool."""
    asked = tmp_path / "nvidia-smi"
    asked.write_text(f"#!/bin/sh\n{script}\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(state_of_node, "MOST_SECONDS", 0.2 if "sleep" in script else 20)
    with pytest.raises(InputError) as raised:
        check_node(plan(peak=32 * MIB), range(8), device="auto", environment={})
    assert said in raised.value.cause
    assert "--no-preflight" in raised.value.fix


def test_gpus_that_the_process_may_use_are_looked_at() -> None:
    """By number or name, in its order: the tool shows all of the node."""
    gpus = from_nvidia(nvidia(*h100s(4)))
    assert [gpu.index for gpu in visible(gpus, {"CUDA_VISIBLE_DEVICES": "3,GPU-6c01"})] == [3, 0]
    assert visible(gpus, {}) == gpus
    assert visible(gpus, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    for listed, found in (("1,7,2", [1]), ("GPU-6c2,0", [2, 0]), ("GPU-6c", []), ("-1", []), ("0,,1", [0])):
        assert [gpu.index for gpu in visible(gpus, {"CUDA_VISIBLE_DEVICES": listed})] == found


def test_cards_are_those_that_are_up(tmp_path: Path) -> None:
    """Of the fabric, or of Ethernet where that is more; virtual interfaces and what is down do not count."""
    assert nic_rate(tmp_path) is None
    assert nic_rate(cards(tmp_path / "a", "400 Gb/sec (4X NDR)")) == 3200 * GBIT
    for state in ("1: DOWN", "2: INIT", "3: ARMED"):
        assert nic_rate(cards(tmp_path / state[0], "400 Gb/sec (4X NDR)", state=state)) is None
    for name, speed, real in (("eth0", "400000", True), ("eth1", "-1", True), ("docker0", "10000", False)):
        (tmp_path / "net" / name / ("device" if real else "")).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(speed)
    assert nic_rate(tmp_path) == 400 * GBIT
    for state, rate in (
        ("down", None),
        ("lowerlayerdown", None),
        ("unknown", 400 * GBIT),
        ("up", 400 * GBIT),
    ):
        (tmp_path / "net" / "eth0" / "operstate").write_text(f"{state}\n")
        assert nic_rate(tmp_path) == rate


def test_a_node_as_planned_is_taken(tmp_path: Path) -> None:
    """With its cards, too; of a run on a CPU and a machine without tools only memory is looked at."""
    assert refused(nvidia(*h100s()), plan()) == ""
    assert refused(nvidia(*h100s()), plan(nodes=2), cards(tmp_path, "400 Gb/sec (4X NDR)")) == ""
    assert refused(nvidia(*h100s()), plan(nodes=2)) == ""  # no card can be read
    assert refused(lambda _: "", plan(peak=32 * MIB)) == ""
    check_node(plan(peak=32 * MIB), range(8), device="cpu", environment={}, tool=nvidia(RTX))
    assert node_state({}, tool=lambda _: "") is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            h100s(name="H100 PCIe"),
            "GPU 2 is NVIDIA H100 PCIe with 79.6 GiB, the plan is for h100-sxm; plan again with",
        ),
        (
            h100s(name="A100-SXM4-80GB", total="81920"),
            "the plan is for h100-sxm; plan again with --gpu a100-sxm-80gb",
        ),
        (h100s(total="46068"), "GPU 2 is NVIDIA H100 80GB HBM3 with 45 GiB, the plan is for h100-sxm"),
        (h100s(7), "7 GPUs can be used here, the plan has 8 ranks on this node"),
        (
            h100s(free="20480"),
            "GPU 2 has 20 GiB free of 79.6 GiB, its rank takes 60 GiB; end what holds the memory",
        ),
        (
            h100s(reasons="0x0000000000000048"),
            "GPU 2 is slowed down at 345 of 1980 MHz: hardware slowdown, thermal",
        ),
        (h100s(reasons="0x0000000000000080"), "power brake of the machine"),
        (h100s(errors=" 3, No, No"), "GPU 2 has counted 3 uncorrected errors of memory; reset it"),
        (h100s(errors=" 0, Yes, No"), "memory of GPU 2: rows wait to be remapped"),
        (h100s(errors=" 0, No, Yes"), "memory of GPU 2: a row is lost"),
        (h100s(driver="515.65.01"), "the driver is 515.65.01, hopper needs 520 or later; renew the driver"),
    ],
)
def test_what_differs_is_said_with_its_numbers(lines: list[str], said: str) -> None:
    """Of the first of eight GPUs that does."""
    assert said in refused(nvidia(*lines), plan())


@pytest.mark.parametrize(
    "reasons", ["0x0000000000000001", "0x0000000000000004", "0x0000000000000002", "[N/A]"]
)
def test_rest_and_power_caps_are_no_fault(reasons: str) -> None:
    """A GPU at rest is idle; one under load meets its cap; clocks may be set by the machine's owner."""
    assert refused(nvidia(*h100s(reasons=reasons)), plan()) == ""


@pytest.mark.parametrize(
    ("rate", "count", "said"),
    [
        ("200 Gb/sec (4X HDR)", 8, "cards of 1600 Gbit/s are up, the plan has 3200 (8 of 400)"),
        ("400 Gb/sec (4X NDR)", 7, "cards of 2800 Gbit/s are up"),
    ],
)
def test_cards_that_are_slow_or_down_are_named(rate: str, count: int, said: str, tmp_path: Path) -> None:
    """Where the plan sends over them: on one node nobody does."""
    folder = cards(tmp_path, rate, count)
    assert said in refused(nvidia(*h100s()), plan(nodes=2), folder)
    assert refused(nvidia(*h100s()), plan(), folder) == ""


def test_several_differences_are_counted() -> None:
    """The one that weighs most is told; more follow once it is mended."""
    said = refused(nvidia(*h100s(name="H100 PCIe", free="10")), plan())
    assert said.endswith("or --no-preflight to start all the same")
    assert said.startswith("this node is not what the plan is for (and 1 more)")


def test_memory_is_that_of_each_ranks_stage() -> None:
    """Stages outermost: the second half of the ranks has the second stage."""
    made = make_plan(ParallelLayout(pp=2, dp=4))
    first = made.estimate.memory_by_stage[0]
    stages = tuple(replace(first, weights_bytes=bytes_) for bytes_ in (10 * GIB, 70 * GIB))
    made = replace(made, estimate=replace(made.estimate, memory_by_stage=stages))
    order = [stage_of(made, rank) for rank in range(8)]
    assert sorted(order) == [0] * 4 + [1] * 4
    assert [peak_bytes(made, rank) for rank in range(8)] == [(10 * GIB, 70 * GIB)[stage] for stage in order]


SMI = """#!/bin/bash
cat <<'END'
{lines}
END
"""


def started(
    folder: Path, written: Path, lines: Sequence[str], *words: str, **named: str
) -> subprocess.Popen[str]:
    """`plan run` where nvidia-smi prints these lines."""
    (folder / "bin").mkdir(parents=True)
    tool = folder / "bin" / "nvidia-smi"
    tool.write_text(SMI.format(lines="\n".join(lines)))
    tool.chmod(0o755)
    call = [sys.executable, "-P", "-m", "app", "run", str(written), "--run-dir", str(written.parent / "run")]
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.Popen(
        [*call, "--device", "cuda", *words], env={**os.environ, "PATH": path, **named}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_nothing_starts_on_another_gpu(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Three lines and exit 2, and no file of a run; unless that is asked for, when ranks find no GPU here."""
    written = tmp_path / "wanted.json"
    written.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2))), encoding="utf-8")
    run = started(tmp_path / "one", written, [L40S, L40S.replace("0, GPU-0a", "1, GPU-0c")])
    error = run.communicate(timeout=60)[1]
    assert (run.returncode, [line.partition(":")[0] for line in error.splitlines()[-3:]]) == (
        2, ["error", "cause", "help"],
    )  # fmt: skip
    assert "GPU 0 is NVIDIA L40S with 45 GiB, the plan is for h100-sxm" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_other_nodes_hear_of_it(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """The second of two is not as planned: the first ends with its words, and waits for nobody."""
    written = tmp_path / "wanted.json"
    written.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2))), encoding="utf-8")
    words = ("--nnodes", "2", "--interface", loopback())
    ends = [started(tmp_path / "0", written, h100s(1), *words, NODE_RANK="0")]
    ends.append(started(tmp_path / "1", written, [L40S], *words, NODE_RANK="1"))
    errors = [run.communicate(timeout=90)[1] for run in ends]
    assert [run.returncode for run in ends] == [2, 2]
    assert "error: node 1 does not start: this node is not what the plan is for" in errors[0]
    assert all("GPU 0 is NVIDIA L40S" in error for error in errors)


def _linked(_rank: int, made: Plan, planned_s: float, measured_s: float | None = None) -> str:
    link_check.planned_all_reduce_s = lambda *_: planned_s
    if measured_s is not None:
        link_check.measured_all_reduce_s = lambda *_: measured_s
    try:
        return str(check_links(made, torch.device("cpu"), load_calibration(), MIB))
    except InputError as error:
        return str(error)


def test_ranks_that_reach_each_other_too_slowly_are_refused() -> None:
    """Two real ranks: as fast as is planned, and over four times as slow; all of them say the same."""
    made = make_plan(ParallelLayout(dp=2))
    assert run_ranks(_linked, 2, made, 60.0) == ["", ""]
    said = run_ranks(_linked, 2, made, 1e-9)
    assert said[0] == said[1]
    assert "error: ranks reach each other more slowly than the plan counts on" in said[0]
    assert "an all-reduce of 1 MiB among 2 ranks takes" in said[0]


def test_links_at_half_the_planned_rate_are_a_warning() -> None:
    """Over twice what is planned, up to four times: a fabric that nobody tuned is no broken one."""
    made = make_plan(ParallelLayout(dp=2))
    slow = {share: run_ranks(_linked, 2, made, 1.0, share)[0] for share in (1.9, 2.1, 3.9, 4.1)}
    assert slow[1.9] == ""
    assert all(slow[share].startswith("warning: ranks reach each other") for share in (2.1, 3.9))
    assert slow[4.1].startswith("error: ")


def test_the_planned_rate_is_that_of_the_cluster() -> None:
    """NVLink's busy bandwidth inside a node of eight H100s, no more than its links, no less than half of them."""
    size = 256 * MIB
    seconds = planned_all_reduce_s(plan(), load_calibration(), size)
    assert 225e9 < size / seconds * 2 * 7 / 8 < 450e9
    assert planned_all_reduce_s(plan(nodes=2), load_calibration(), size) > seconds


def test_a_machine_without_gpus_holds_what_its_memory_holds(tmp_path: Path) -> None:
    """Eight ranks of 30 GiB and what each takes before a model, in what Linux says is free."""
    asked, meminfo = make_plan(ParallelLayout(dp=8)), tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 25165824 kB\nMemAvailable:   23068672 kB\n", encoding="ascii")
    free = free_bytes(meminfo)
    assert free == 22 * GIB
    check_room(asked, range(8), lambda _: 2 * GIB, free)
    check_room(asked, range(8), lambda _: 30 * GIB, 8 * (30 * GIB + RANK_BYTES))
    with pytest.raises(InputError) as raised:
        check_room(asked, range(8), lambda _: 30 * GIB, free)
    assert "cannot hold 8 ranks" in raised.value.what
    assert "they take 242 GiB of its own memory, 22 GiB are free" in raised.value.cause
    assert free_bytes(tmp_path / "none") is None


def test_a_plan_for_many_gpus_starts_nothing_on_a_machine_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 70B plan is refused in three lines before any process is started, on a node or on its GPUs' absence."""
    written = tmp_path / "wanted.json"
    assert run(["--model", "70b", "--gpus", "32", "-o", str(written)]) == 0
    capsys.readouterr()
    folder = tmp_path / "run"
    assert run(["run", str(written), "--run-dir", str(folder), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "error: this machine, without GPUs, cannot hold 32 ranks of the plan" in said
    assert not folder.exists()
