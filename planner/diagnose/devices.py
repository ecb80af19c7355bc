"""GPUs that are slow, throttled, badly attached or whose memory fails, from samples of them beside a trace.

Samples of a GPU that does nothing say nothing of its clocks: drivers lower the clock and the PCIe generation
of an idle GPU. A GPU's clock is compared with that of the others at work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from planner.diagnose.finding import StepFinding
from planner.diagnose.stragglers import STRAGGLING
from planner.traces.device_samples import DeviceSample
from topology.base.units import GIGA

AT_WORK: Final = 0.5
"""A GPU of which less of the time had a kernel has the clocks of a GPU that waits."""
MAJORITY: Final = 0.5
"""Of the samples: a reason that stands in fewer is a moment, not the state of the GPU."""
FEWEST_SAMPLES: Final = 2
"""Clocks and links are read at a moment, and a GPU between kernels lowers both: only what lasts counts."""


def device_findings(samples: Sequence[DeviceSample], step_s: float = 0.0) -> tuple[StepFinding, ...]:
    """What samples of GPUs explain of a step, the largest share first.

    Args:
        samples: Of all GPUs, at any moments.
        step_s: The step, of which a share is lost; 0 where it is not known.
    """
    gpus = defaultdict[tuple[str, int], list[DeviceSample]](list)
    for sample in samples:
        gpus[sample.node, sample.index].append(sample)
    nodes = {node for node, _ in gpus}
    clocks = {key: clock for key, of in gpus.items() if (clock := _clock_hz(of)) is not None}
    findings = list[StepFinding]()
    for key, of in gpus.items():
        others = [clock for other, clock in clocks.items() if other != key]
        gpu = key[1] if len(nodes) == 1 else None
        findings += _of_gpu(of, clocks.get(key), median(others) if others else None, gpu, step_s)
    return tuple(sorted(findings, key=lambda finding: -finding.share))


def _at_work(samples: Sequence[DeviceSample]) -> list[DeviceSample]:
    """Samples of a GPU that does something, or that does not say."""
    return [sample for sample in samples if sample.busy is None or sample.busy >= AT_WORK]


def _clock_hz(samples: Sequence[DeviceSample]) -> float | None:
    """The usual clock of a GPU at work."""
    clocks = [sample.clock_hz for sample in _at_work(samples) if sample.clock_hz is not None]
    return median(clocks) if clocks else None


def _of_gpu(
    samples: Sequence[DeviceSample],
    clock_hz: float | None,
    others_hz: float | None,
    gpu: int | None,
    step_s: float,
) -> Iterator[StepFinding]:
    """What is wrong with one GPU."""
    name, working = samples[0].words, _at_work(samples)
    usual_hz = others_hz or max((s.most_hz for s in samples if s.most_hz is not None), default=None)
    slower = usual_hz is not None and clock_hz is not None and 0 < clock_hz * STRAGGLING <= usual_hz
    lost = 1 - clock_hz / usual_hz if slower and usual_hz and clock_hz is not None else 0.0
    at = f", SM clock {clock_hz / GIGA:.2f} GHz" if clock_hz is not None else ""
    beside = f" where others have {others_hz / GIGA:.2f}" if others_hz is not None else ""
    reasons = defaultdict[str, int](int)
    for sample in working:
        for reason in sample.throttles:
            reasons[reason] += 1
    held = [reason for reason, count in reasons.items() if count > MAJORITY * len(working)]

    def finding(cause: str, share: float, evidence: str, fix: str) -> StepFinding:
        return StepFinding(
            cause=cause,
            gpu=gpu,
            seconds=share * step_s,
            share=share,
            evidence=f"{name}: {evidence}",
            fix=fix,
        )

    if held:
        evidence = f"{', '.join(held)} in {reasons[held[0]]} of {len(working)} samples{at}{beside}"
        fix = f"cool the node of {name}, or look at its power supply; until then leave the GPU out"
        yield finding("throttled clocks", lost, evidence, fix)
    elif slower and others_hz is not None and len(working) >= FEWEST_SAMPLES:
        fix = f"compare nvidia-smi -q -d CLOCK,PERFORMANCE of {name} with another; reset or replace it"
        yield finding("slow rank", lost, f"no throttling is said{at}{beside}", fix)
    narrow = [s for s in samples if s.pcie_width and s.most_width and s.pcie_width < s.most_width]
    old = [
        s
        for s in working
        if s.pcie_generation and s.most_generation and s.pcie_generation < s.most_generation
    ]
    reduced_often = len(narrow) > MAJORITY * len(samples) or len(old) > MAJORITY * max(len(working), 1)
    if reduced_often and len(samples) >= FEWEST_SAMPLES:
        reduced = narrow or old
        generation = f"PCIe generation {reduced[0].pcie_generation} of {reduced[0].most_generation}"
        width = f"width {reduced[0].pcie_width} of {reduced[0].most_width}"
        evidence = f"{generation}, {width} in {len(reduced)} of {len(samples)} samples"
        yield finding("slow link", 0.0, evidence, f"reseat {name} or its riser, and test another slot")
    errors = max((s.uncorrected_errors for s in samples if s.uncorrected_errors is not None), default=0)
    remaps = sorted({word for sample in samples for word in sample.remaps})
    if errors or remaps:
        rows = f", rows to remap: {', '.join(remaps)}" if remaps else ""
        evidence = f"{errors} uncorrected ECC errors{rows}"
        yield finding("memory errors", 0.0, evidence, f"reset {name}; replace it if errors come back")
