"""How GPUs were while a job ran: `nvidia-smi -q -x`, `nvidia-smi --query-gpu=… --format=csv`, DCGM's metrics.

Words of nvidia-smi are those of `nvidia-smi --help-query-gpu`; drivers before 535 call clock event reasons
throttle reasons. DCGM's are the fields that its exporter writes in Prometheus' text format (version 0.0.4).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree as ET

from topology.base.errors import InputError, shortened
from topology.base.units import MEGA
from topology.discover.formats.nvidia_smi import is_query, query_tree
from topology.hardware.throttles import THROTTLES

MAX_SAMPLES: Final = 2_000_000
BLANK: Final = 2.0**63 - 16
"""From here on a value of DCGM is blank: 0x7ffffffffffffff0 and above say why."""
REASONS: Final[Mapping[str, int]] = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""nvidia-smi's words for bits of NVML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One GPU at one moment; what was not said is None or empty."""

    node: str = ""
    index: int
    uuid: str = ""
    product: str = ""
    busy: float | None = None
    """Share of the time before in which a kernel ran."""
    clock_hz: float | None = None
    most_hz: float | None = None
    throttles: tuple[str, ...] = ()
    uncorrected_errors: int | None = None
    remaps: tuple[str, ...] = ()
    """Rows of memory that could not be, or are not yet, replaced."""
    pcie_generation: int | None = None
    most_generation: int | None = None
    pcie_width: int | None = None
    most_width: int | None = None

    @property
    def words(self) -> str:
        """The GPU as a message names it."""
        return f"GPU {self.index}{f' of {self.node}' if self.node else ''}"


def device_samples(text: str, source: str) -> tuple[DeviceSample, ...]:
    """The GPUs of a text, in its order.

    Raises:
        InputError: It is none of the three forms, or says nothing of a GPU.
    """
    if is_query(text):
        samples = [_of_element(gpu, place) for place, gpu in enumerate(query_tree(text).findall("gpu"))]
    elif re.search(r"^DCGM_FI_\w+\{", text, re.MULTILINE):
        samples = list(_of_metrics(text))
    else:
        samples = list(_of_table(text, source))
    if not samples:
        cause = "it names no GPU"
        fix = "pass nvidia-smi -q -x, nvidia-smi --query-gpu=… --format=csv, or what DCGM's exporter answers"
        raise InputError(f"{source} says nothing of a GPU", cause, fix)
    return tuple(samples)


def _number(text: object) -> float | None:
    """The number that a text begins with; None of N/A and the like.

    >>> _number("1980 MHz"), _number("16x"), _number("[N/A]"), _number("-3")
    (1980.0, 16.0, None, None)
    """
    match = re.match(r"\s*(\d{1,18}(?:\.\d{1,9})?)(?![\w.]*e)", str(text or ""))
    return float(match[1]) if match else None


def _whole(text: object) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _scaled(number: float | None, unit: float) -> float | None:
    return None if number is None else number * unit


def _named(bits: int) -> tuple[str, ...]:
    """Names of the reasons whose bits are set."""
    return tuple(name for bit, name in THROTTLES.items() if bits & bit)


# ── nvidia-smi -q -x ──────────────────────────────────────────────────────────────────────────────────────


def _of_element(gpu: ET.Element, place: int) -> DeviceSample:
    """One `<gpu>`."""

    def text(*paths: str) -> str:
        return next((value.strip() for path in paths if (value := gpu.findtext(path))), "")

    bits = 0
    for old, new in (
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
        ("clocks_event_reasons", "clocks_event_reason_"),
    ):
        for word, bit in REASONS.items():
            bits |= bit * (text(f"{old}/{new}{word}") == "Active")
    volatile = gpu.find("ecc_errors/volatile")
    errors = [
        _whole(element.text)
        for element in (volatile.iter() if volatile is not None else ())
        if "uncorrectable" in element.tag
    ]
    link = "pci/pci_gpu_link_info"
    old = text("ecc_errors/volatile/double_bit/total")
    counted = [error for error in (*errors, _whole(old)) if error is not None]
    return DeviceSample(
        index=place,
        uuid=shortened(text("uuid"), 60),
        product=shortened(text("product_name"), 60),
        busy=_scaled(_number(text("utilization/gpu_util")), 0.01),
        clock_hz=_scaled(_number(text("clocks/sm_clock")), MEGA),
        most_hz=_scaled(_number(text("max_clocks/sm_clock")), MEGA),
        throttles=_named(bits),
        uncorrected_errors=sum(counted) if counted else None,
        remaps=tuple(
            word for word in ("pending", "failure") if text(f"remapped_rows/remapped_row_{word}") == "Yes"
        ),
        pcie_generation=_whole(text(f"{link}/pcie_gen/current_link_gen")),
        most_generation=_whole(text(f"{link}/pcie_gen/max_link_gen")),
        pcie_width=_whole(text(f"{link}/link_widths/current_link_width")),
        most_width=_whole(text(f"{link}/link_widths/max_link_width")),
    )


# ── nvidia-smi --format=csv ───────────────────────────────────────────────────────────────────────────────

COLUMNS: Final[Mapping[str, str]] = {
    "index": "index", "uuid": "uuid", "gpu_uuid": "uuid", "name": "name", "gpu_name": "name",
    "utilization.gpu": "busy", "clocks.sm": "clock", "clocks.current.sm": "clock", "clocks.max.sm": "most",
    "ecc.errors.uncorrected.volatile.total": "errors", "remapped_rows.pending": "pending",
    "remapped_rows.failure": "failure", "pcie.link.gen.current": "generation",
    "pcie.link.gen.gpucurrent": "generation", "pcie.link.gen.max": "most_generation",
    "pcie.link.width.current": "width", "pcie.link.width.max": "most_width", "hostname": "node",
}  # fmt: skip


def _of_table(text: str, source: str) -> Iterator[DeviceSample]:
    """Rows under a header of nvidia-smi's field names; units stand in brackets."""
    lines = csv.reader(line for line in text.splitlines() if line.strip())
    try:
        header = [re.sub(r"\s*\[.*\]$", "", cell.strip()).lower() for cell in next(lines, [])]
        names = [COLUMNS.get(cell, cell) for cell in header]
        if "index" not in names:
            cause = "its first line is no header with `index`"
            fix = (
                "write it by nvidia-smi --query-gpu=timestamp,index,clocks.sm,… --format=csv, with its header"
            )
            raise InputError(f"{source} is no table of nvidia-smi", cause, fix)
        for number, cells in enumerate(lines):
            if number >= MAX_SAMPLES:
                raise InputError(f"{source} is too long", f"more than {MAX_SAMPLES:,} rows", "pass fewer")
            row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
            index = _whole(row.get("index"))
            if index is not None:
                yield _of_row(row, index)
    except csv.Error as error:
        raise InputError(f"{source} is no table", shortened(str(error)), "pass nvidia-smi's output") from None


def _of_row(row: Mapping[str, str], index: int) -> DeviceSample:
    """One line of the table."""
    bits = 0
    for family in ("clocks_event_reasons", "clocks_throttle_reasons"):
        active = row.get(f"{family}.active", "")
        bits |= int(active, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active) else 0
        for word, bit in REASONS.items():
            bits |= bit * (row.get(f"{family}.{word}", "").lower() == "active")
    return DeviceSample(
        node=shortened(row.get("node", ""), 60),
        index=index,
        uuid=shortened(row.get("uuid", ""), 60),
        product=shortened(row.get("name", ""), 60),
        busy=_scaled(_number(row.get("busy")), 0.01),
        clock_hz=_scaled(_number(row.get("clock")), MEGA),
        most_hz=_scaled(_number(row.get("most")), MEGA),
        throttles=_named(bits),
        uncorrected_errors=_whole(row.get("errors")),
        remaps=tuple(w for w in ("pending", "failure") if row.get(w, "").lower() in ("yes", "1", "true")),
        pcie_generation=_whole(row.get("generation")),
        most_generation=_whole(row.get("most_generation")),
        pcie_width=_whole(row.get("width")),
        most_width=_whole(row.get("most_width")),
    )


# ── DCGM in Prometheus' text ──────────────────────────────────────────────────────────────────────────────

METRICS: Final[Mapping[str, str]] = {
    "SM_CLOCK": "clock", "MAX_SM_CLOCK": "most", "GPU_UTIL": "busy", "CLOCK_THROTTLE_REASONS": "bits",
    "CLOCKS_EVENT_REASONS": "bits", "ECC_DBE_VOL_TOTAL": "errors", "ROW_REMAP_PENDING": "pending",
    "ROW_REMAP_FAILURE": "failure", "PCIE_LINK_GEN": "generation", "PCIE_MAX_LINK_GEN": "most_generation",
    "PCIE_LINK_WIDTH": "width", "PCIE_MAX_LINK_WIDTH": "most_width",
}  # fmt: skip
"""Fields of DCGM after `DCGM_FI_DEV_`."""
_SAMPLE = re.compile(r"DCGM_FI_DEV_(\w{1,60})\{(.{0,4000})\}\s+(\S{1,40})(?:\s+-?\d{1,20})?\s*")
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,500})"')


def _of_metrics(text: str) -> Iterator[DeviceSample]:
    """One sample for each GPU of each scrape; a value that comes a second time begins the next scrape."""
    open_: dict[tuple[str, int], dict[str, Any]] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        name = METRICS.get(match[1]) if match else None
        if match is None or name is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        index, value = _whole(labels.get("gpu")), _value(match[3])
        if index is None or value is None or labels.get("GPU_I_ID"):
            continue  # a part of a GPU has the clocks of the whole
        key = labels.get("Hostname", ""), index
        sample = open_.setdefault(
            key, {"uuid": labels.get("UUID", ""), "product": labels.get("modelName", "")}
        )
        if name in sample:
            yield _of_fields(*key, open_.pop(key))
            sample = open_[key] = {"uuid": labels.get("UUID", ""), "product": labels.get("modelName", "")}
        sample[name] = value
    for key, sample in open_.items():
        yield _of_fields(*key, sample)


def _value(text: str) -> float | None:
    """A value of Prometheus; None where it is none, or is blank."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < BLANK else None


def _of_fields(node: str, index: int, fields: Mapping[str, Any]) -> DeviceSample:
    """One scrape of a GPU."""

    def whole(name: str) -> int | None:
        return None if name not in fields else int(fields[name])

    return DeviceSample(
        node=shortened(node, 60),
        index=index,
        uuid=shortened(fields["uuid"], 60),
        product=shortened(fields["product"], 60),
        busy=_scaled(fields.get("busy"), 0.01),
        clock_hz=_scaled(fields.get("clock"), MEGA),
        most_hz=_scaled(fields.get("most"), MEGA),
        throttles=_named(whole("bits") or 0),
        uncorrected_errors=whole("errors"),
        remaps=tuple(word for word in ("pending", "failure") if fields.get(word)),
        pcie_generation=whole("generation"),
        most_generation=whole("most_generation"),
        pcie_width=whole("width"),
        most_width=whole("most_width"),
    )
