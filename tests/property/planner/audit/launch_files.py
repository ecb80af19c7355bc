"""Random launch files of an engine, some of whose words are left out, and what its contract reads of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from costmodel.layout import ParallelLayout
from planner.audit.contract_reading import is_whole, problem_as_run
from planner.audit.job import Job, audited_job
from planner.audit.read import Reading, read_texts
from planner.engines.contract import Contract, EngineReading, read, write
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import layout_facts, plainest, stack_facts
from planner.engines.formats import FORMATS
from planner.questions.flags import Flags
from tests.property.planner.engines.random_plans import random_plans

ENGINES = tuple(name for name in CONTRACTS if name != "meshplan")
"""Those whose files are words; Meshplan's own is the plan itself."""
KEPT = (
    "compile.enable",
    "activation_checkpoint",
    "plugin",
    "distributed_type",
    "arguments.tp_size",
    "backward_passes_per_step",
    "per_replica_batch_size",
    "batch_size",
    "train.global_batch_size",
)
"""Words without which a file is not written, or is of another engine."""
LEFT_OUT = 0.25
REFUSALS = ("only the recipe states", "no keys of its own")
"""Of a file that leaves a degree to a recipe which is not there, or every word that names its engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """One of them.

    Attributes:
        texts: By name.
        told: What the contract reads of them.
        reading: What an audit reads.
        job: The job that an audit prices.
    """

    texts: Mapping[str, str]
    told: EngineReading
    reading: Reading
    job: Job

    @property
    def refused(self) -> bool:
        """Whether what was left out is told by no default of the engine, so that nothing is priced."""
        return any(words in missing for words in REFUSALS for missing in self.job.missing)

    @property
    def differences(self) -> tuple[str, ...]:
        """Fields of layout, job and profile that are priced otherwise than the contract reads them.

        What one replica shards is nothing. A recipe that is not there may set any switch that files leave out.
        """
        if self.job.request is None or self.job.layout is None:
            return (f"not priced: {', '.join(self.job.missing)}",)
        open_fields = {one.field for one in self.job.unsettled}
        plain = layout_facts(ParallelLayout())
        fields = {name: self.told.fields.get(name, usual) for name, usual in plain.items()}
        read_layout = ParallelLayout(**{name.partition(".")[2]: value for name, value in fields.items()})
        wanted: dict[str, Any] = layout_facts(plainest(_unsharded_alone(read_layout)))
        priced = layout_facts(_unsharded_alone(self.job.layout))
        job = self.job.request.job
        for name in ("sequence_length", "global_batch_size", "precision", "optimizer"):
            if f"job.{name}" in self.told.fields:
                wanted[f"job.{name}"] = self.told.fields[f"job.{name}"]
                priced[f"job.{name}"] = getattr(job, name)
        switches = stack_facts(problem_as_run(self.reading, self.job.request, self.job.layout).stack)
        for name in (
            switches.keys() & (self.told.fields if is_whole(self.reading) else self.told.stated).keys()
        ):
            wanted[name] = self.told.fields[name]
            priced[name] = bool(switches[name]) if wanted[name] is True else switches[name]
        return tuple(
            f"{name}: priced {priced[name]}, read {value}"
            for name, value in wanted.items()
            if priced[name] != value and name not in open_fields
        )


def _unsharded_alone(layout: ParallelLayout) -> ParallelLayout:
    """The same layout, which shards nothing over one replica."""
    return replace(layout, zero_stage=0) if layout.replicas == 1 else layout


def launch_files(engine: str, seed: int | str) -> Iterator[LaunchFile]:
    """Launch files without end, known by engine and seed."""
    contract, r = CONTRACTS[engine], Random(f"files {engine} {seed}")
    for plan in random_plans(engine, seed):
        words = write(contract, plan.facts)
        sizes = _sizes(contract)
        kept = {
            name: said
            for name, said in words.items()
            if name in sizes or name in KEPT or name.startswith("program.") or r.random() > LEFT_OUT
        }
        texts = dict(FORMATS[engine].render(None, kept, ()))  # type: ignore[arg-type]  # only a plan's own file reads it
        parsed = FORMATS[engine].parse(texts, contract)
        fields = read(contract, parsed, plan.facts["cluster.num_gpus"]).fields
        num_gpus = math.prod(fields.get(f"layout.{axis}", 1) for axis in ("tp", "pp", "cp", "dp"))
        told = read(contract, parsed, num_gpus)
        if told.wrong:  # a stage layout of more stages than are left
            continue
        reading = read_texts(texts)
        flags = Flags(
            model=None if contract.sizes else plan.model.name,
            gpus=str(num_gpus),
            gpu=plan.gpu.name,
            sequence_length=None if "job.sequence_length" in told.fields else "2048",
        )
        yield LaunchFile(texts=texts, told=told, reading=reading, job=audited_job(reading, flags))


def _sizes(contract: Contract) -> set[str]:
    """Words of a model, without which a file is of another."""
    return {
        word.name
        for setting in contract.settings
        if any(name.startswith("model.") for name in setting.fields)
        for word in setting.words
    }
