"""Fixtures every test may use."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of large measured tables beside the checkout; tests that need it skip without it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the large measured tables (../shared/data) are not beside this checkout")
    return folder
