"""A decision matrix: what GPUs cost to finish at an MFU that is imposed on each."""

import json

import pytest

from app.cli import run
from planner.analysis.sweep import mfu_by_gpu
from topology.base.errors import InputError
from topology.base.units import DAY

WORDS = ["sweep", "--model", "llama-2-13b", "--gpus", "64", "--gpu", "a100-sxm-80gb,a10", "--tokens", "260B"]


def test_days_and_dollars_are_those_of_the_imposed_mfu(capsys: pytest.CaptureFixture[str]) -> None:
    """A100 at 45 % against A10 at 38 %: model FLOP over that share of the peak of all GPUs, at their price."""
    assert run([*WORDS, "--mfu", "a100-sxm-80gb=45%,a10=38%", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(one["gpu"], one["imposed_mfu"]) for one in points] == [("a100-sxm-80gb", 0.45), ("a10", 0.38)]
    for one, peak in zip(points, (312e12, 125e12), strict=True):
        flop = one["mfu"] * one["step_time_s"] * 64 * peak  # of a step, by the formula that plans print
        steps = -(-260e9 // (one["global_batch_size"] * one["sequence_length"]))
        alone = steps * flop / (one["imposed_mfu"] * 64 * peak) / DAY
        waits = (
            8 * 3.79e-3
        )  # of 8 nodes 3.79 in 1,000 days fail, and each is away for a day; stragglers cost less
        assert alone < one["days"] < (1 + 2 * waits) * alone, "steps at that MFU, and what fails on the way"
        assert one["days_p10"] < one["days"] < one["days_p90"]
        hourly = one["usd_per_billion_tokens"] * one["tokens_per_s_per_gpu"] * 3600 / 1e9
        nodes = one["usd"] / (one["days"] * 24 * 8 * hourly)  # eight, and whole spare ones
        assert nodes == pytest.approx(round(nodes), rel=1e-5)
        assert 8 <= round(nodes) <= 9
    assert run([*WORDS[:-2], "--mfu", "45%"]) == 2
    assert "needs an end" in capsys.readouterr().err
    assert run([*WORDS, "--mfu", "h100-sxm=45%"]) == 2
    assert "no point of the sweep has 'h100-sxm'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "110%", "much", "a10=", "a10=38%,a10=40%", "nan"])
def test_shares_that_are_none_are_refused(text: str) -> None:
    """With how to write one."""
    with pytest.raises(InputError, match="no MFU"):
        mfu_by_gpu(text)
