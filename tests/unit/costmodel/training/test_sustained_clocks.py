"""Clocks that a GPU sustains: energy of a layer's operations against design power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TrainingPrecision
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.constants import default_constants
from costmodel.training.layer_time import head_step, layer_step, sustained_slowdown
from costmodel.training.raw_times import Features, features_of
from topology.builders import default_cluster

C = default_constants()


def features(gpu: str, precision: TrainingPrecision = "bf16") -> Features:
    """Raw times of Llama-3.1-70B on one node, tensor parallel."""
    cluster, job = (
        default_cluster(gpu, 8),
        TrainingJob(sequence_length=8192, global_batch_size=8, precision=precision),
    )
    table = LayoutTable.from_rows([ParallelLayout(tp=8)])
    return features_of(
        Case(
            model=model("llama-3.1-70b"),
            cluster=cluster,
            job=job,
            stack=stack("megatron-core"),
            cal=load_calibration(),
        ),
        table,
    )


def slowdown(f: Features, seconds: float) -> float:
    """Of one layer that takes so long at full clocks."""
    return float(sustained_slowdown(f.runs[0], f.environment, C, np.array([seconds]))[0])


def test_a_layer_slows_by_what_it_draws_beyond_design_power() -> None:
    """Joules over seconds over watts, to the exponent; nothing below the limit."""
    f = features("h100-sxm")
    k = f.runs[0].kernels
    joules = C.picojoule_per_flop * 1e-12 * float(3 * k.product_flop[0] + 3.5 * k.attention_flop[0])
    at_limit = joules / 700
    assert slowdown(f, 2 * at_limit) == 1
    assert slowdown(f, at_limit / 2) == pytest.approx(2**C.clock_exponent)


def test_half_the_width_needs_half_the_energy() -> None:
    """Products in eight bits draw half of sixteen bits' energy, attention as much as before."""
    wide, narrow = features("b200-sxm"), features("b200-sxm", "fp8")
    assert (wide.environment.product_energy, narrow.environment.product_energy) == (1, 0.5)
    assert slowdown(narrow, 1e-4) < slowdown(wide, 1e-4)


def test_a_head_multiplies_in_sixteen_bits_whatever_the_layers_do() -> None:
    """Energy and time of the projection to the vocabulary do not depend on the training precision."""
    wide, narrow = features("h100-sxm"), features("h100-sxm", "fp8")
    assert head_step(narrow, C).compute_s == pytest.approx(head_step(wide, C).compute_s)


def test_a_lower_power_limit_slows_large_products_and_not_an_a100() -> None:
    """An H100 at 500 W is slower than at 700 W; an A100 never reaches its 400 W."""
    for gpu, watts, slower in (("h100-sxm", 500.0, True), ("a100-sxm-80gb", 400.0, False)):
        f = features(gpu)
        more = replace(f, environment=replace(f.environment, design_power_w=2 * watts))
        less = replace(f, environment=replace(f.environment, design_power_w=watts))
        times = [float(layer_step(each.runs[0], each, C).compute_s[0]) for each in (less, more)]
        assert (times[0] > 1.1 * times[1]) == slower


def test_gradients_in_eight_bits_are_slower_where_sums_are_short() -> None:
    """Hopper sums eight-bit products in 14 bits and moves partial sums on; Blackwell does not."""
    assert features("h100-sxm", "fp8").environment.splits_accumulation == 1
    assert features("h100-sxm").environment.splits_accumulation == 0
    assert features("b200-sxm", "fp8").environment.splits_accumulation == 0
