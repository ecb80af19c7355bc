"""Bands by what was measured: the narrowest kind with enough runs, wider for what no run has."""

from math import log

import pytest

from costmodel.models.catalog import model
from costmodel.serving.bands import (
    AGGREGATED,
    DISAGGREGATED,
    FEWEST_ROWS,
    NOT_MEASURED,
    Kind,
    LatencyEvidence,
    bands_of_kinds,
    counted_runs,
    evidence_of,
)
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack, serving_stacks
from topology.builders import default_cluster
from topology.catalog import gpus


def behind(engine: str, gpu: str, mode: str = AGGREGATED, **degrees: int) -> LatencyEvidence:
    """What stands behind a deployment."""
    layout = ServingLayout(**degrees)
    deployed = Deployment(
        model=model("deepseek-r1"),
        hierarchy=default_cluster(gpu, 8).hierarchy,
        layout=layout,
        stack=serving_stack(engine),
    )
    return evidence_of(deployed, mode)


def test_every_band_is_of_a_known_kind_and_holds_the_prediction() -> None:
    """Names are those of the catalogs, and either mode has a band of its own."""
    for band in bands_of_kinds():
        assert band.engine in ("", *serving_stacks())
        assert band.gpu in ("", *gpus())
        for lower, upper in (band.tpot, band.ttft):
            assert lower < 1 < upper
    whole = {band.mode for band in bands_of_kinds() if not band.engine and band.rows >= FEWEST_ROWS}
    assert whole == {AGGREGATED, DISAGGREGATED}


def test_kinds_of_one_engine_differ() -> None:
    """A Hopper card in one pool is not a rack in two."""
    one, other = (
        behind("trtllm", "h100-sxm", tp=8),
        behind("trtllm", "gb200", DISAGGREGATED, attention_dp=8, ep=8),
    )
    assert one.tpot != other.tpot
    assert not one.not_measured
    assert not other.not_measured
    assert min(one.rows, other.rows) > 0


@pytest.mark.parametrize(
    ("engine", "gpu", "degrees", "missing"),
    [
        ("vllm", "h100-sxm", {"tp": 2, "pp": 2}, ("pipeline stages",)),
        ("vllm", "l40s", {"tp": 2}, ("vllm on l40s",)),
        ("vllm", "h100-sxm", {"attention_dp": 4, "ep": 4}, ("attention data parallelism of vllm",)),
        ("vllm", "h100-sxm", {"tp": 8, "dcp": 2}, ("decode context parallelism",)),
        ("vllm", "mi300x", {"pp": 2}, ("pipeline stages", "vllm on mi300x", "kernels of amd")),
    ],
)
def test_what_no_run_has_is_said_and_widens_the_band(
    engine: str, gpu: str, degrees: dict[str, int], missing: tuple[str, ...]
) -> None:
    """In quadrature, by a fixed amount for each; no run stands behind it."""
    found = behind(engine, gpu, **degrees)
    assert found.not_measured == missing
    assert found.rows == 0
    assert log(found.tpot.upper) > NOT_MEASURED * len(missing) ** 0.5
    assert log(found.tpot.lower) < -NOT_MEASURED * len(missing) ** 0.5


def test_a_maker_without_runs_and_hosts_between_ranks_widen_more_than_an_axis_does() -> None:
    """MiniMax-M2.7 on MI300X took twice the predicted time; all-reduces over hosts have a fabric's latency."""
    card, other = behind("sglang", "l40s", tp=2), behind("sglang", "mi300x", tp=2)
    assert log(other.tpot.upper) > log(card.tpot.upper) > 0
    assert other.tpot.upper > 1.98
    inside, across = behind("sglang", "h100-sxm", tp=8), behind("sglang", "h100-sxm", tp=16)
    assert across.rows == 0 < inside.rows
    assert across.tpot.upper > 23.1 / 10.7 > inside.tpot.upper


def test_runs_are_counted_as_they_are_bound() -> None:
    """Runs of a kind by model and tensor ranks are the rows of its band; R1 is V3 trained on, a 70B is none."""
    for band in bands_of_kinds():
        alike = [
            each.runs
            for each in counted_runs()
            if band.kind.covers(
                Kind(mode=each.mode, engine=each.engine, gpu=each.gpu, attention_dp=each.attention_dp)
            )
        ]
        assert sum(alike) == band.rows
    found = behind("sglang", "b200-sxm", tp=8)
    assert found.rows == found.rows_of_model > found.rows_of_tp > 0
    strange = behind("vllm", "h100-sxm", tp=8)
    assert strange.rows > strange.rows_of_tp > strange.rows_of_model == 0
