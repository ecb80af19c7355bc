"""Pages of the dashboard, run without a browser."""

from collections.abc import Callable
from typing import Any

import pytest


def _script(name: str) -> None:
    """Draw one page, as the navigation does."""
    import importlib

    importlib.import_module(f"app.pages.{name}").render()


@pytest.fixture
def open_page(pages_answer_here: None) -> Callable[..., Any]:
    """Open a page at a URL query: ``open_page("what_if", gpus="8")``."""
    testing = pytest.importorskip("streamlit.testing.v1")

    def opened(name: str, **query: str | list[str]) -> Any:
        page = testing.AppTest.from_function(_script, args=(name,), default_timeout=120)
        for key, value in query.items():
            page.query_params[key] = value
        return page.run()

    return opened
