"""Small microbatches of eager engines take the time of their launches, which are counted."""

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.training.estimate import estimate
from costmodel.training.slowdowns import adapters_host_s, host_s_per_layer
from costmodel.updates.adapters import parse_adapter
from topology.builders import default_cluster

CAL = load_calibration()


def step_s(length: int, adapter: str = "", **switches: str) -> float:
    """Seconds of eight microbatches of one sequence of an 8B model on one A100, recomputed in full."""
    job = TrainingJob(
        sequence_length=length, global_batch_size=8, adapter=parse_adapter(adapter) if adapter else None
    )
    profile = with_switches(stack("pytorch"), switches)
    cluster = default_cluster("a100-sxm-80gb", 1)
    case = Case(model=model("llama-3.1-8b"), cluster=cluster, job=job, stack=profile, cal=CAL)
    return estimate(case, ParallelLayout(recompute="full")).step_time_s


def test_adapters_are_launched_where_there_are_some_and_modules_one_by_one_where_they_are_chains() -> None:
    """41 kernels for 15 of a chained layer; four, three or seven products with an adapter of six kernels each."""
    plain, chained = (stack(name).timing for name in ("pytorch-fsdp1", "pytorch"))
    assert host_s_per_layer(chained) / host_s_per_layer(plain) == pytest.approx(41 / 15)
    assert adapters_host_s(chained, None) == 0.0
    each = plain.host_s_per_layer / 15
    for words, launches in (
        ("lora:r=8,targets=attention", 24),
        ("lora:r=8,targets=mlp", 18),
        ("lora:r=8", 42),
        ("lora:r=8,dropout=0.1", 49),
    ):
        assert adapters_host_s(chained, parse_adapter(words)) == pytest.approx(launches * each)


def test_short_sequences_take_the_time_of_their_launches_and_long_ones_of_their_kernels() -> None:
    """Fewer adapters and compiled layers are launched in less time, which 8,192 tokens do not show.

    The long ones stand beside quantised weights: other adapters cast their inputs.
    """
    every, few = "lora:r=8", "lora:r=8,targets=attention"
    assert step_s(64, every) == pytest.approx(step_s(128, every), rel=0.1)
    assert step_s(128, every) > 1.15 * step_s(128, few)
    assert step_s(128, few) > 1.15 * step_s(128, few, compile="on")
    assert step_s(8192, f"q{every}") < 1.12 * step_s(8192, f"q{few}")
