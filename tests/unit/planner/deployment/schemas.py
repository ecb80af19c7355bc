"""Kubernetes's own schemas, strictly; what was judged once is not judged again."""

import json
from functools import cache
from typing import Any

import pytest

VERSION = "1.37"


def require_valid(document: dict[str, Any]) -> None:
    """Fail on a document that its schema does not take; skip where the schemas are not installed.

    Names tell two objects apart and are all of one form, so that one name stands for all.
    """
    _judge(json.dumps(document | {"metadata": document["metadata"] | {"name": "a"}}, sort_keys=True))


@cache
def _judge(text: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(json.loads(text), VERSION, strict=True)
