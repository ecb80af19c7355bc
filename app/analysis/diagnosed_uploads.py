"""Recorded files that a browser sent, diagnosed: read from a temporary folder under names of ours."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of
from app.figures.diagnosis_view import DiagnosisView, diagnosis_view
from app.reports.answer import Section
from app.reports.diagnose import diagnose_answer
from app.requests.upload_sizes import MOST_TRACE_MIB
from planner.questions.flags import Flags
from topology.base.errors import InputError
from topology.base.units import MIB

_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]|^[.]+")


def diagnosed_upload(
    files: Sequence[tuple[str, bytes]], flags: Flags
) -> tuple[str, tuple[Section, ...], DiagnosisView]:
    """The verdict, the report and the picture of uploaded files. Raises InputError as `plan diagnose`."""
    with tempfile.TemporaryDirectory(prefix="meshplan-") as folder:
        paths = list[Path]()
        for name, content in files:
            if len(content) > MOST_TRACE_MIB * MIB:
                cause = f"it has {len(content):,} bytes, at most {MOST_TRACE_MIB} MiB are read here"
                raise InputError(f"{name[:80]} is too large", cause, "use plan diagnose on the command line")
            plain = _NOT_OF_A_NAME.sub("_", PurePosixPath(name.replace("\\", "/")).name)[-80:] or "file"
            path = Path(folder) / plain
            if path in paths:
                cause, fix = "ranks are told apart by their files' names", "rename one of them"
                raise InputError(f"two files are called {plain}", cause, fix)
            path.write_bytes(content)
            paths.append(path)
        try:
            diagnosis, code = diagnosis_of(DiagnoseQuestion(files=tuple(paths)), flags)
        except InputError as error:
            shown = [text.replace(f"{folder}/", "") for text in (error.what, error.cause, error.fix)]
            raise InputError(*shown) from None
    answer = diagnose_answer(diagnosis, code)
    return answer.headline, tuple(answer.sections), diagnosis_view(diagnosis)
