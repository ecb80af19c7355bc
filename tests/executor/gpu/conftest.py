"""Where GPU tests leave what they measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

FOLDER = "MESHPLAN_MEASUREMENTS"
"""Variable that names another folder than docs/measurements."""


@pytest.fixture(scope="session")
def measured_rows() -> Iterator[list[Any]]:
    """Rows that are written at the end, those of tests that failed too."""
    rows: list[Any] = []
    yield rows
    if not rows:
        return
    import torch

    from tests.executor.gpu.measurements import file_name, page, versions

    gpu, day = torch.cuda.get_device_name(0), datetime.now(UTC).date()
    folder = Path(os.environ.get(FOLDER) or Path(__file__).parents[3] / "docs" / "measurements")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file_name(gpu, day)).write_text(page(rows, versions(gpu), day), encoding="utf-8")
