"""What files keep in host memory: the offload of the job's price, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.updates.offload import DISKS
from planner.audit.contract_reading import engine_reading_of, is_whole
from planner.audit.facts import OFFLOADED, JobFacts
from planner.audit.read import Reading
from planner.formats.settings import truth_of

_OFF = ("", "false", "none", "0", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedOffload:
    """An offload that files state.

    Attributes:
        words: It as a flag says it; None where it is not priced.
        why: Why it is not priced; empty where it is.
    """

    words: str | None = None
    why: str = ""


def stated_offload(reading: Reading) -> StatedOffload | None:
    """What files offload; None where everything stays on the GPU."""
    facts = reading.facts
    if facts.count("said.offload_layers"):
        return StatedOffload(why="activations of some layers are offloaded, of which no share is stated")
    disk = next((name for name in _STATES if str(facts.value(name)).lower() in DISKS), None)
    if disk is not None:
        return StatedOffload(why=f"{facts.by_field[disk].source} offloads to a disk")
    parsed = engine_reading_of(reading, None, facts.count("cluster.num_gpus"))
    states = parsed.fields.get("job.offload") if parsed is not None and is_whole(reading) else None
    kinds = [states] if states else _kinds(facts)
    if _activations(facts):
        kinds.append("activations")
    return StatedOffload(words="+".join(dict.fromkeys(kinds))) if kinds else None


_STATES = ("said.offload_param", "said.offload_optimizer")


def _kinds(facts: JobFacts) -> list[str]:
    """State that words of any engine put on the host."""
    parameters, optimizer = (str(facts.value(name) or "").lower() not in _OFF for name in _STATES)
    if parameters and facts.value("layout.zero_stage") in (None, 3):
        return ["parameters"]
    return ["optimizer:1"] if optimizer or parameters else []


def _activations(facts: JobFacts) -> bool:
    """Whether inputs of recomputed layers wait on the host."""
    ways = (facts.by_field.get(f"said.{name}") for name in ("recompute_full", "checkpoints_of_model"))
    words = {way.source.rpartition(" ")[2].strip("'\"").lower() for way in ways if way is not None}
    return bool(words & {*OFFLOADED}) or bool(truth_of(facts.value("said.offload_activations")))
