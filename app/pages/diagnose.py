"""Diagnose: traces of a step, dropped here: where its time goes, beside the prediction, and what is off."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.analysis.diagnosed_uploads import diagnosed_upload
from app.figures.diagnosis import residual_waterfall, step_lanes
from app.figures.diagnosis_view import DiagnosisView
from app.pages.base.frame import asked, draw, guarded, heading_text
from app.pages.base.sections import show_section
from app.reports.answer import Section
from app.requests.upload_sizes import MOST_TRACE_MIB
from planner.questions.flags import Flags


@guarded
def render() -> None:
    """Draw the page."""
    hero = st.container()
    files = st.file_uploader(
        "Traces of one or many ranks, flight records, memory snapshots, samples of GPUs; beside them the "
        "script or plan of the job. Nothing of them is run.",
        accept_multiple_files=True, key="diagnose_files", max_upload_size=MOST_TRACE_MIB,
    )  # fmt: skip
    if not files:
        hero.subheader("A step that was recorded", anchor=False)
        st.info(
            "Drop what torch.profiler, Nsight Systems or rocprofv3 recorded (a file for each rank, with its "
            "number in the name), a server's /metrics, or what nvidia-smi printed. With the script each part "
            "stands beside its prediction.",
            icon=":material/upload_file:",
        )
        return
    headline, sections, view = diagnosis_of_files(tuple((file.name, file.getvalue()) for file in files))
    hero.header(heading_text(f"{headline[:1].upper()}{headline[1:]}."), anchor=False)
    show_diagnosis(sections, view)


@st.cache_data(max_entries=8, show_spinner="Reading traces")  # type: ignore[untyped-decorator]
def diagnosis_of_files(
    files: Sequence[tuple[str, bytes]],
) -> tuple[str, tuple[Section, ...], DiagnosisView]:
    """The diagnosis of uploaded files; made once."""
    answer: tuple[str, tuple[Section, ...], DiagnosisView] = asked(diagnosed_upload, files, Flags())
    return answer


def show_diagnosis(sections: Sequence[Section], view: DiagnosisView) -> None:
    """Draw the lanes, the residuals, and everything that `plan diagnose` says."""
    if view.lanes:
        draw(step_lanes(view), "diagnose_lanes")
    if view.residuals:
        st.markdown("#### From the prediction to the record")
        draw(residual_waterfall(view), "diagnose_residuals")
    for section in sections:
        show_section(section)
