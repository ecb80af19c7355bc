"""Pages of the dashboard, run without a browser."""

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.actions.workers import Workers


def _script(name: str) -> None:
    """Draw one page, as the navigation does."""
    import importlib

    importlib.import_module(f"app.pages.{name}").render()


@pytest.fixture(scope="session")
def _components() -> Iterator[None]:
    """Streamlit reads what every installed package says of itself, anew for every run of a page: once is enough."""
    scanner = pytest.importorskip("streamlit.components.v2.manifest_scanner")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            scanner, "scan_component_manifests", functools.cache(scanner.scan_component_manifests)
        )
        yield


@pytest.fixture
def _answered_here() -> Iterator[None]:
    """Compute here what a page hands to a process of the pool, so that an answer that is known is taken.

    Question and answer are handed over as there; the pool has tests of its own (`actions/test_workers.py`).
    """

    def call_while(
        _: Workers, __: Callable[[], None], ___: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        given, words, named = pickle.loads(pickle.dumps((function, args, kwargs)))  # noqa: S301 - our own
        return pickle.loads(pickle.dumps(given(*words, **named)))  # noqa: S301 - the same

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Workers, "call_while", call_while)
        yield


@pytest.fixture
def open_page(_components: None, _answered_here: None) -> Callable[..., Any]:
    """Open a page at a URL query: ``open_page("what_if", gpus="8")``."""
    testing = pytest.importorskip("streamlit.testing.v1")

    def opened(name: str, **query: str | list[str]) -> Any:
        page = testing.AppTest.from_function(_script, args=(name,), default_timeout=120)
        for key, value in query.items():
            page.query_params[key] = value
        return page.run()

    return opened
