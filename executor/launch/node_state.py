"""How a node is: what its GPUs' own tool says of each, and the rate of its network cards.

Words: ``nvidia-smi --help-query-gpu``; rocm-smi's ``--json``; the kernel's files of RDMA devices, network
interfaces and of amdgpu's memory errors.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topology.base.units import GBIT, MIB
from topology.hardware.link_state import ACTIVE_PORT, UP
from topology.hardware.throttles import THROTTLES

SYS_CLASS = Path("/sys/class")
MOST_SECONDS = 30
"""Of a tool; one that takes longer waits for a driver that does not answer."""
KILLED_S = 1
"""That a killed tool is waited for: what hangs in a driver may never end."""
_FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.free", "clocks_event_reasons.active", "clocks.sm",
    "clocks.max.sm", "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending",
    "remapped_rows.failure", "driver_version",
)  # fmt: skip
_OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # before driver 535
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_ERRORS = re.compile(r"ue: *([0-9]+)")

Tool = Callable[[Sequence[str]], str]


class ToolError(Exception):
    """A tool that is there and does not answer, by the first line of what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU, as its tool calls it; what the tool does not say is None or empty."""

    index: int
    uuid: str = ""
    name: str
    memory_bytes: float
    free_bytes: float
    driver: str = ""
    throttles: tuple[str, ...] = ()
    clock_mhz: int | None = None
    most_mhz: int | None = None
    uncorrected_errors: int | None = None
    remaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The GPUs of a node that this process may use, and bytes/s of its cards one way, None where unknown.

    `failure` is what the tool says where it tells of no GPU.
    """

    gpus: tuple[GpuState, ...]
    nic_bytes_per_s: float | None
    failure: str = ""


def node_state(
    environment: Mapping[str, str], *, tool: Tool | None = None, sys_class: Path = SYS_CLASS
) -> NodeState | None:
    """How this node is; None where there is no tool of a GPU's maker."""
    query = _output if tool is None else tool
    failure = ""
    for read in (from_nvidia, lambda query: from_rocm(query, sys_class)):
        try:
            gpus = read(query)
        except ToolError as error:
            failure = failure or str(error)
            continue
        if gpus:
            return NodeState(gpus=visible(gpus, environment), nic_bytes_per_s=nic_rate(sys_class))
    return NodeState(gpus=(), nic_bytes_per_s=None, failure=failure) if failure else None


def from_nvidia(query: Tool) -> tuple[GpuState, ...]:
    """What ``nvidia-smi`` says, in the words of today's drivers or those before 535; nothing without it."""
    failure: ToolError | None = None
    for names in (_FIELDS, tuple(_OLDER.get(name, name) for name in _FIELDS)):
        words = ("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        try:
            text = query(words)
        except ToolError as error:
            failure = failure or error
            continue
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
        gpu_states = tuple(_of_row(dict(zip(_FIELDS, row, strict=True))) for row in rows if _is_row(row))
        if gpu_states:
            return gpu_states
        if text.strip():
            failure = failure or _failed(words, text)
    if failure is not None:
        raise failure
    return ()


def _failed(words: Sequence[str], text: str) -> ToolError:
    """A tool that tells of no GPU, by the first line that is no row of one."""
    lines = (line.strip() for line in text.splitlines())
    failed = next((line for line in lines if line and not _is_row([c.strip() for c in line.split(",")])), "")
    return ToolError(f"{words[0]}: {failed[:200] or 'it fails and says nothing'}")


def _is_row(row: Sequence[str]) -> bool:
    """Whether a line tells of a GPU, and is no message."""
    return len(row) == len(_FIELDS) and row[0].isdecimal() and row[3].isdecimal() and row[4].isdecimal()


def _of_row(row: Mapping[str, str]) -> GpuState:
    """One line; a field that a GPU does not have is ``[N/A]``."""
    try:
        reasons = int(row["clocks_event_reasons.active"], 16)
    except ValueError:
        reasons = 0
    remaps = {"remapped_rows.pending": "rows wait to be remapped", "remapped_rows.failure": "a row is lost"}
    return GpuState(
        index=int(row["index"]),
        uuid=row["uuid"],
        name=row["name"],
        memory_bytes=int(row["memory.total"]) * MIB,
        free_bytes=int(row["memory.free"]) * MIB,
        driver=row["driver_version"],
        throttles=tuple(word for bit, word in THROTTLES.items() if reasons & bit),
        clock_mhz=_number(row["clocks.sm"]),
        most_mhz=_number(row["clocks.max.sm"]),
        uncorrected_errors=_number(row["ecc.errors.uncorrected.volatile.total"]),
        remaps=tuple(
            word for name, word in remaps.items() if row[name] not in ("No", "0") and _is_known(row[name])
        ),
    )


def _is_known(text: str) -> bool:
    return not text.startswith("[")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def from_rocm(query: Tool, sys_class: Path) -> tuple[GpuState, ...]:
    """What ``rocm-smi`` says, and the kernel of each card's errors of memory."""
    words = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
    text = query(words)
    try:
        value = json.loads(text[text.index("{") :])  # warnings may stand before it
    except ValueError:
        value = {}
    system = value.get("system")
    driver = str(system.get("Driver version", "")) if isinstance(system, dict) else ""
    result = []
    for place, name in enumerate(name for name in value if name.startswith("card")):
        card = value[name] if isinstance(value[name], dict) else {}
        total, used = (_number(str(card.get(f"VRAM Total {word}Memory (B)", ""))) for word in ("", "Used "))
        if total is None or used is None:  # "N/A"
            continue
        result.append(
            GpuState(
                index=place,
                name=str(card.get("Card Series") or card.get("Card series") or ""),
                memory_bytes=total,
                free_bytes=total - used,
                driver=driver,
                uncorrected_errors=_memory_errors(sys_class / "drm" / name),
            )
        )
    if text.strip() and not result:
        raise _failed(words, text)
    return tuple(result)


def _memory_errors(card: Path) -> int | None:
    """Uncorrected errors that amdgpu has counted of a card's memory."""
    match = _ERRORS.search(_text(card / "device" / "ras" / "umc_err_count"))
    return None if match is None else int(match[1])


def visible(gpus: Sequence[GpuState], environment: Mapping[str, str]) -> tuple[GpuState, ...]:
    """The GPUs that a process may use, in its own order: tools show all of the node.

    As CUDA reads it: nothing is none, a name may be cut short, and the first unknown word ends the list. To
    AMD's runtime nothing is all.
    """
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    if any(gpu.uuid for gpu in gpus):
        listed = environment.get(names[0])
    else:
        listed = next((environment[name] for name in names if environment.get(name)), None)
    if listed is None:
        return tuple(gpus)
    gpu_states: list[GpuState] = []
    for word in map(str.strip, listed.split(",")):
        meant = [gpu for gpu in gpus if word == str(gpu.index) or (word and gpu.uuid.startswith(word))]
        if len(meant) != 1:
            break
        gpu_states += meant
    return tuple(gpu_states)


def nic_rate(sys_class: Path = SYS_CLASS) -> float | None:
    """Bytes/s one way of all cards: of the fabric (InfiniBand, RoCE), or of Ethernet if that is more.

    A card of the fabric over Ethernet is seen both ways, so they are not added; virtual interfaces have no
    device, and what is not up does not count (`topology.hardware.link_state`).
    """
    fabric = sum(
        float(match[1]) * GBIT
        for port in sys_class.glob("infiniband/*/ports/*")
        if (match := _RATE.match(_text(port / "rate"))) and _text(port / "state").startswith(ACTIVE_PORT)
    )
    ethernet = sum(_megabits(sys_class)) * GBIT / 1000
    return max(fabric, ethernet) or None


def _megabits(sys_class: Path) -> Iterator[int]:
    """Mbit/s of every card of Ethernet that is up."""
    for device in sys_class.glob("net/*/device"):
        text, state = (_text(device.parent / name).strip() for name in ("speed", "operstate"))
        if text.isdecimal() and state in UP:  # -1 or nothing where the link is down
            yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return ""


def _output(words: Sequence[str]) -> str:
    """What a tool prints; nothing where it is not there."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        tool = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise ToolError(f"{words[0]}: {error.strerror}") from error
    try:
        output, wrong = tool.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        tool.kill()
        for pipe in (tool.stdout, tool.stderr):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(KILLED_S)
        raise ToolError(f"{words[0]}: no answer in {MOST_SECONDS} s") from error
    if tool.returncode:
        raise _failed(words, (output + b"\n" + wrong).decode("utf-8", "replace"))
    return output.decode("utf-8", "replace")
