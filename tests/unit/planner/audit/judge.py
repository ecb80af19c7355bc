"""What an audit reads from files beside what an expert reads from them, in the columns of ``expected.csv``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.reports.audit.report import audit_document
from costmodel.kernels.tables import load_calibration
from planner.audit.audit import Audit, measured_step_s
from planner.audit.contract_reading import add_chunks
from planner.audit.findings import findings_of
from planner.audit.job import Job
from planner.audit.read import read_files
from topology.base.errors import InputError

COLUMNS = {
    "tp": "layout.tp", "pp": "layout.pp", "vpp": "layout.virtual_stages", "cp": "layout.cp", "ep": "layout.ep",
    "etp": "layout.expert_tp", "dp": "layout.dp", "world": "cluster.num_gpus", "zero_fsdp": "layout.zero_stage",
    "microbatch": "layout.microbatch_size", "global_batch": "job.global_batch_size", "seq": "job.sequence_length",
    "layers": "model.num_layers", "hidden": "model.hidden_size", "heads": "model.num_attention_heads",
    "precision": "job.precision", "recompute": "layout.recompute", "sequence_parallel": "layout.sequence_parallel",
    "schedule": "layout.schedule", "measured_step_s": "measured.step_time_s", "measured_tflops_per_gpu": "measured.tflops_per_gpu",
}  # fmt: skip
TOLERANCE = 0.02
"""Of a measured number: a median of steady steps beside the one line that an expert picks."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of one file."""

    file: str
    column: str
    expected: str
    found: Any
    verdict: str
    warned: bool


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Rows of a folder whose files are there."""
    with (folder / "expected.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [row for row in rows if all((folder / name).is_file() for name in _files(row))]


def _files(row: dict[str, str]) -> list[str]:
    return [name.partition("::")[0] for name in row["file"].split("+")]


def judged(folder: Path, rows: Sequence[dict[str, str]]) -> Iterator[Cell]:
    """Every field of rows."""
    for row in rows:
        document, warned = read(folder, row)
        for column, field in COLUMNS.items():
            group, _, name = field.partition(".")
            found = (document.get(group) or {}).get(name)
            expected = row.get(column, "").strip()
            yield Cell(row["file"], column, expected, found, verdict(column, expected, found), warned)


def read(folder: Path, row: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """The document of a row's files, and whether it warns of anything."""
    variant = dict(re.findall(r"\b([A-Z][A-Z_]+)=([\w.]+)", row.get("variant", "")))
    try:
        reading = read_files([str(folder / name) for name in row["file"].split("+")], variant)
    except InputError:
        return {}, True
    add_chunks(reading)
    findings = findings_of(reading, Job(), None)
    found = Audit(
        reading=reading,
        job=Job(),
        findings=findings,
        doubts=tuple(reading.doubts),
        measured_step_s=measured_step_s(reading, Job()),
    )
    return audit_document(found), bool(findings or reading.doubts)


def verdict(column: str, expected: str, found: Any) -> str:
    """right, wrong, missing (stated and not read), extra (read and not stated) or absent (neither)."""
    unstated = not expected or "$" in expected or (column == "ep" and expected.startswith("yes"))
    if unstated:
        return "absent" if found is None else "extra"
    if found is None:
        return "missing"
    return "right" if matches(column, expected, found) else "wrong"


def matches(column: str, expected: str, found: Any) -> bool:
    """Whether a field has the expert's meaning."""
    word = expected.lower()
    if column == "zero_fsdp":
        stage = re.search(r"(?:zero|stage )([0-3])", word)
        wanted = int(stage.group(1)) if stage else 0 if word.startswith("none") else 3
        return bool(found == wanted)
    if column == "precision":
        return any(
            same in word for same in {"fp8": ("fp8", "float8"), "nvfp4": ("fp4",)}.get(found, (found,))
        )
    if column == "recompute":
        return word.startswith(str(found).split("-")[0]) or (word == "yes" and found != "none")
    if column == "sequence_parallel":
        return bool(found) is not word.startswith(("no", "false", "0"))
    if column == "schedule":
        return str(found) == "1f1b" if word.startswith("1f1b") else str(found) in word
    if column.startswith("measured"):
        return abs(float(found) / float(expected) - 1) <= TOLERANCE
    return float(found) == float(expected)


def prepared() -> None:
    """Read the tables once, so that the first file is not slower than the others."""
    load_calibration()
