"""Pages that answer in the tests' own process, so that an answer which is known there is taken."""

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def packages_read_once() -> Iterator[None]:
    """Streamlit reads what every installed package says of itself, anew for every run of a page: once is enough."""
    scanner = pytest.importorskip("streamlit.components.v2.manifest_scanner")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            scanner, "scan_component_manifests", functools.cache(scanner.scan_component_manifests)
        )
        yield


@pytest.fixture(scope="module")
def pages_answer_here(packages_read_once: None) -> Iterator[None]:
    """Compute here what a page hands to a process of the pool, so that an answer that is known is taken.

    Question and answer are handed over as there; the pool has tests of its own (`app/actions/test_workers.py`).
    """
    from app.actions.workers import Workers

    def call_while(
        _: object, __: Callable[[], None], ___: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        given, words, named = pickle.loads(pickle.dumps((function, args, kwargs)))  # noqa: S301 - our own
        return pickle.loads(pickle.dumps(given(*words, **named)))  # noqa: S301 - the same

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Workers, "call_while", call_while)
        yield
