"""One search a question for all texts: what is compared is how a plan is told. Pages search by themselves.

That a search gives the same plan again is a property of its own (`test_search_properties.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import app.actions.plan
import app.pages.base.frame  # pages take their searches before those are replaced
import app.pages.serving
import app.reports.explain
import planner.audit.audit

SEARCHES = (
    (app.actions.plan, "search"),
    (planner.audit.audit, "search"),
    (app.reports.explain, "explain"),
)
"""Where the command line calls a search, and by which name; pages hand theirs to a process of its own."""


@contextmanager
def searched_once() -> Iterator[None]:
    """Answer a request that was asked before, value by value, with its plan; another one is searched."""
    plans: dict[tuple[str, str], Any] = {}

    def once(name: str, search: Callable[..., Any]) -> Callable[..., Any]:
        def answered(request: Any, *others: Any, **words: Any) -> Any:
            key = (name, repr(request))
            if key not in plans:
                plans[key] = search(request, *others, **words)
            return plans[key]

        return answered

    patches = [patch.object(module, name, once(name, getattr(module, name))) for module, name in SEARCHES]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
