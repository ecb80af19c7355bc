"""From a plan to a job: the files that start it, to look through and to take home in one archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath

import streamlit as st

from app.pages.base.frame import MOST_CACHED_PLANS, asked, plain, request_key, show_error
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.entries import ENTRIES
from planner.plan import Plan
from topology.base.errors import InputError

LANGUAGES: Mapping[str, str] = {
    **dict.fromkeys((".sh", ".sbatch"), "bash"),
    **dict.fromkeys((".yaml", ".yml"), "yaml"),
    ".toml": "toml",
    ".json": "json",
    ".py": "python",
    ".md": "markdown",
}
DATED = (1980, 1, 1, 0, 0, 0)
"""The date of every file in an archive, so that one plan gives one archive."""


def show_launch(plan: Plan) -> None:
    """Draw the choice of engine and launcher, and the files; they are written when it is open."""
    box = st.popover(
        "Launch files", icon=":material/rocket_launch:", width="stretch", key="launch", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        left, right = st.columns(2)
        engines, launchers = list(ENTRIES), list(LAUNCHERS)
        index = engines.index(plan.request.engine) if plan.request.engine in engines else 0
        engine = left.selectbox("Engine", engines, index=index, key="launch_engine")
        launcher = right.selectbox("Started by", launchers, key="launch_launcher")
        try:
            files, notes = written(request_key(plan.request), plan, str(engine), str(launcher))
        except InputError as error:
            show_error(error)
            return
        for text in notes:
            st.caption(plain(text))
        name = f"{plan.request.model.name}-{launcher}.zip"
        st.download_button(
            f"All {len(files)} files", archive(files), name, "application/zip",
            icon=":material/download:", on_click="ignore", type="primary",
        )  # fmt: skip
        name = str(
            st.selectbox("Look at", list(files), index=list(files).index("README.md"), key="launch_file")
        )
        st.code(files[name], language=LANGUAGES.get(PurePosixPath(name).suffix), height=320)


@st.cache_data(max_entries=MOST_CACHED_PLANS, show_spinner="Writing the launch files")  # type: ignore[untyped-decorator]
def written(key: str, _plan: Plan, engine: str, launcher: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """What `plan export --to ENGINE --launcher LAUNCHER --save-dir` writes, and what is left to the user."""
    del key  # what is cached by
    files, notes = asked(bundle, _plan, engine, launcher)
    return dict(files), notes


def archive(files: Mapping[str, str]) -> bytes:
    """Files as one zip, scripts executable."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as box:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, DATED)
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            box.writestr(entry, text)
    return held.getvalue()
