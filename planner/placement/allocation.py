"""The allocation to ask a scheduler for, in the words of each.

Slurm: `--segment` of topology/block, `--switches=COUNT@MINUTES` of topology/tree (leaf switches, and how long
to wait for so few; the administrator's max_switch_wait caps it). Kueue: annotations of a pod set, whole or in
slices, from 0.14. KAI scheduler: annotations of a workload. Kubernetes alone: topologySpreadConstraints.
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.base.units import MINUTE, format_seconds

PER_STEPS = 1000
"""Steps whose loss is told where nobody said how many the job has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Blocks of `block` nodes that should each share one unit of a level.

    `nodes` are those of the job, `unit_nodes` the most of one unit in this allocation: a unit has room for no
    fewer. `lost_s` of a step is what blocks that span units cost, `steps` those of the job if it says so.
    """

    level: str
    is_domain: bool
    block: int
    nodes: int
    unit_nodes: int
    lost_s: float
    steps: int | None

    @property
    def units(self) -> int:
        """Units that hold all nodes in whole blocks."""
        return -(-self.nodes // (self.unit_nodes // self.block * self.block))


def asked_for(wanted: Wanted) -> str:
    """The allocation without blocks that span units, and what waiting for it is worth."""
    label = f"<label of the {wanted.level}>"
    slurm = f"--segment={wanted.block}" if wanted.is_domain else _switches(wanted)
    kueue, place = "kueue.x-k8s.io/podset", "required" if wanted.units == 1 else "preferred"
    sliced = f"{kueue}-slice-required-topology: {label} and {kueue}-slice-size: {wanted.block}"
    asked = [
        f"Slurm {slurm}",
        f"Kueue {f'{kueue}-required-topology: {label}' if wanted.units == 1 else sliced}",
        f"KAI kai.scheduler/topology: <Topology> and kai.scheduler/topology-{place}-placement: {label}",
        *_spread(wanted, label),
    ]
    return f"ask for nodes that share one by {wanted.block} ({'; '.join(asked)}), {_worth(wanted)}"


def _switches(wanted: Wanted) -> str:
    """Leaf switches, and as many minutes of waiting as the job would lose by not having so few."""
    if wanted.steps is None:
        return f"--switches={wanted.units}"
    return f"--switches={wanted.units}@{max(1, int(wanted.lost_s * wanted.steps / MINUTE))}"


def _spread(wanted: Wanted, label: str) -> list[str]:
    """Even numbers of pods in each unit, where these are whole blocks."""
    if wanted.units == 1 or wanted.nodes % (wanted.units * wanted.block):
        return []
    even = f"maxSkew: 1, minDomains: {wanted.units}, topologyKey: {label}"
    return [f"Kubernetes topologySpreadConstraints of {even}"]


def _worth(wanted: Wanted) -> str:
    """How long waiting for it takes no longer than the job without it."""
    steps = wanted.steps or PER_STEPS
    per = f"the job's {steps:,} steps" if wanted.steps else f"every {steps:,} steps"
    return f"worth waiting up to {format_seconds(wanted.lost_s * steps)} for {per}"
