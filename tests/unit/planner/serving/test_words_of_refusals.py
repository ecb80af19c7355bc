"""A fleet that cannot serve a load is told what was asked: no limit that was not given, and its spares."""

from __future__ import annotations

import re

import pytest

import meshplan
from topology.base.errors import NoFeasiblePlanError


@pytest.mark.parametrize(
    ("asked", "limits", "ways"),
    [
        ({"rate": "500/s"}, False, "use more GPUs or ask for a lower rate"),
        ({"rate": "500/s", "ttft": "1s"}, True, "use more GPUs, relax --ttft, or ask for a lower rate"),
        (
            {"rate": "500/s", "tpot": "30ms", "e2e": "20s"},
            True,
            "use more GPUs, relax --tpot or --e2e, or ask for a lower rate",
        ),
        (
            {"rate": "1/s", "spare": "1"},
            False,
            "use more GPUs, spare fewer (--spare), or ask for a lower rate",
        ),
    ],
)
def test_a_refusal_names_what_was_asked_alone(asked: dict[str, str], limits: bool, ways: str) -> None:
    """Limits are named where they were given, and what would help is a way that changes something."""
    with pytest.raises(NoFeasiblePlanError) as refused:
        meshplan.serve("8b", gpu="h100-sxm", gpus=1, weights="fp8", mode="aggregated", **asked)
    error = refused.value
    assert ("within the limits" in f"{error.what} {error.cause}") is limits
    assert error.fix == ways
    assert ("with 1 lost" in error.cause) is ("spare" in asked)
    assert "e+" not in error.cause


def test_no_lower_rate_helps_where_a_request_alone_is_late() -> None:
    """The limit that breaks without any other request, and what it would have to be."""
    asked = {"model": "70b", "gpu": "h100-sxm", "gpus": 8, "mode": "aggregated", "input": 8000, "output": 500}
    with pytest.raises(NoFeasiblePlanError) as refused:
        meshplan.serve(**asked, weights="bf16", rate="2/s", ttft="1s")
    error = refused.value
    late = re.search(r"first token .*, at p99 ([\d.]+) s", error.cause)
    assert late is not None
    assert float(late[1]) > 1
    assert error.fix.startswith(f"relax --ttft to {late[1]} s, or use faster GPUs")
    assert "a lower rate does not help" in error.fix
    assert " at least" not in error.fix  # another split may answer sooner: this one was not the fastest
    assert "ask for a lower rate" not in error.fix
