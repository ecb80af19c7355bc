"""What no file states: a published configuration that is named, and counts of GPUs and tokens.

Of a configuration the figures of its release are taken; of GPUs the fewest nodes that hold the job, of a
sequence the length of a plan.

Launch files often leave the number of nodes to who starts them. Such a job is priced as it would be started
first, and both answer and verdict say what was taken for it: no job is called illegal or too large by a count
of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from costmodel.estimate import Estimate
from costmodel.memory.fit import fit_of
from planner.audit.conclusions import conclude
from planner.audit.contract_reading import engine_reading_of
from planner.audit.facts import JobFacts, job_facts_of
from planner.audit.given import given_by
from planner.audit.job import Job, audited_job
from planner.audit.layout import value_of
from planner.audit.published import named_config, published_config, published_length
from planner.audit.ranks import USUAL_GPUS_PER_NODE
from planner.audit.read import Reading, take_counts_of_rates
from planner.formats.settings import Setting, whole_or_none
from planner.questions.flags import Flags
from planner.questions.training import DEFAULT_SEQUENCE_LENGTH
from topology.base.errors import InputError

MOST_DOUBLINGS = 10
"""Of the fewest GPUs that a layout needs; 8 become 8,192."""
GPUS, LENGTH = "cluster.num_gpus", "job.sequence_length"
_CONFIGURATIONS = ("yaml", "toml", "json", "python")
"""Kinds of files that a launch may name as its configuration."""
_FLAGS = {"--gpus": GPUS, "--sequence-length": LENGTH}

Priced = Callable[[Reading, Job], Estimate | None]
"""What a job takes; None where it has no price."""


def with_published(reading: Reading) -> Reading:
    """Files with what their engine publishes under the configuration that they name and nobody gave.

    What they say holds over it.
    """
    _take_length_of_run(reading)
    engine = reading.family.name
    name = named_config(reading.settings, engine)
    config = published_config(name, engine) if name else None
    given = {Path(file).stem for file, kind in reading.kinds.items() if kind in _CONFIGURATIONS}
    if config is None or Path(name).stem in given:
        return reading
    paths = {setting.path for setting in reading.settings}
    more = tuple(setting for setting in config.settings if setting.path not in paths)
    if config.gpus is not None and not _counts_gpus(reading):
        more += (Setting(name=OF_RECIPE, value=config.gpus, line=0, how=f"the name of {config.name}"),)
    stated = JobFacts(dict(reading.stated.by_field), set(reading.stated.unknown))
    for field, fact in job_facts_of(more, reading.family, "").by_field.items():
        if field not in stated.unknown:
            stated.by_field.setdefault(field, replace(fact, how="default"))
    facts = JobFacts(dict(stated.by_field), set(stated.unknown))
    conclude(facts, reading.family)
    take_counts_of_rates(facts, reading.measured)
    words = config.words(engine)
    return replace(
        reading, facts=facts, stated=stated, settings=(*reading.settings, *more), published=words,
        published_name=config.name,
    )  # fmt: skip


def _take_length_of_run(reading: Reading) -> None:
    """Add the length of a recipe of Megatron-Bridge by which a log names its run, where no line tells it."""
    recipe, facts = str(reading.facts.value("said.run_recipe") or ""), reading.facts
    if not recipe or LENGTH in facts.by_field or LENGTH in facts.unknown:
        return
    if published := published_length(recipe, "Megatron-Bridge"):
        length, release = published
        facts.put(LENGTH, length, "default", f"Megatron-Bridge {release} publishes every {recipe} with it")


OF_RECIPE = "num_gpus"
"""The word of the GPUs that the name of a recipe tells."""


def _counts_gpus(reading: Reading) -> bool:
    """Whether a word of the files counts the GPUs of the whole job."""
    return bool(reading.stated.count("said.num_gpus"))


def with_presumed(reading: Reading, flags: Flags, priced: Priced) -> tuple[Reading, Flags]:
    """Files with the counts that they leave open, and flags that give them to all that is asked of the job.

    Nothing is presumed beside a log with steps, which are those of one count, nor where more is missing.

    Args:
        reading: What the files say.
        flags: What holds beside them.
        priced: Estimates a job.
    """
    log = reading.measured
    if log is not None and (log.has_steps or log.out_of_memory):
        return reading, flags
    try:
        missing = audited_job(reading, flags).missing
    except InputError:
        return reading, flags
    if not missing or not set(missing) <= _FLAGS.keys():
        return reading, flags
    if "--sequence-length" in missing:
        reading, flags = _with_length(reading, flags, missing)
    return _with_gpus(reading, flags, priced) if "--gpus" in missing else (reading, flags)


def without_presumable(reading: Reading, missing: tuple[str, ...]) -> tuple[str, ...]:
    """What nobody said without what is taken for granted once the rest is said: one flag is asked for.

    >>> from planner.audit.read import read_texts
    >>> reading = read_texts({"ds.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'})
    >>> without_presumable(reading, ("--model", "--gpus", "--sequence-length"))
    ('--model',)
    """
    log = reading.measured
    if log is not None and (log.has_steps or log.out_of_memory):
        return missing
    return tuple(flag for flag in missing if flag not in _FLAGS) or missing


def _with_length(reading: Reading, flags: Flags, missing: tuple[str, ...]) -> tuple[Reading, Flags]:
    """Files with the length that a plan has where nobody says it, or the longest that the model has."""
    length = DEFAULT_SEQUENCE_LENGTH
    asked = replace(flags, sequence_length=str(length))
    if "--gpus" in missing:
        asked = replace(asked, gpus=str(next(_counts(reading))))
    try:
        request = audited_job(reading, asked).request
    except InputError:
        request = None
    if request is not None:
        length = min(length, request.model.max_sequence_length)
    why = f"no file states a sequence length: {length:,} tokens are taken"
    return _presumed(reading, LENGTH, why), replace(flags, sequence_length=str(length))


def _with_gpus(reading: Reading, flags: Flags, priced: Priced) -> tuple[Reading, Flags]:
    """Files with the fewest GPUs, doubled, that surely hold the job.

    Where none do, the fewest beyond which more save next to nothing of what a GPU holds.
    """
    counts, peaks = tuple(_counts(reading)), dict[int, float]()
    why, gpus = "", counts[0]
    for gpus in counts:
        asked = replace(flags, gpus=str(gpus))
        try:
            estimate = priced(given_by(reading, asked), audited_job(reading, asked))
        except InputError:
            continue
        if estimate is not None:
            peaks[gpus] = estimate.peak_memory_bytes
            if fit_of(estimate.out_of_memory_chance) == "fits":
                why = "the fewest, doubled, that surely hold it"
                break
    if not why:
        least = min(peaks.values(), default=0.0)
        gpus = next((gpus for gpus, peak in peaks.items() if peak <= LEVEL * least), counts[0])
        why = "with which it needs least of each"
    if reading.facts.count("said.nodes"):
        why = f"{USUAL_GPUS_PER_NODE} a node, as most machines have them"
    why = f"no file counts the GPUs: {gpus:,} are taken, {why}"
    return _presumed(reading, GPUS, why), replace(flags, gpus=str(gpus))


LEVEL = 1.1
"""Peak over the least, up to which more GPUs save next to nothing of it."""


def _presumed(reading: Reading, name: str, why: str) -> Reading:
    """Files of which a count is taken for granted."""
    return replace(reading, presumed={**reading.presumed, name: why})


def _counts(reading: Reading) -> Iterator[int]:
    """Numbers of GPUs to try, the fewest first: whole nodes that degrees, experts and batch divide.

    A batch or a microbatch that nobody states is the engine's own. A batch that no whole node divides is one
    of less than a node; one that nothing divides decides nothing.
    """
    facts = reading.facts
    each = facts.count("said.gpus_per_node") or USUAL_GPUS_PER_NODE
    split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    together, ep = math.prod(split), facts.count("layout.ep") or 1
    dp = facts.count("layout.dp")
    if dp:
        yield dp * together
        return
    nodes = facts.count("said.nodes")
    sharded = (facts.count("layout.shard_degree") or 1) * split[0] * split[2]
    stage = math.lcm(split[0] * split[2], ep, sharded) * split[1]
    if nodes:
        yield math.lcm(nodes * each, together) if (nodes * each) % together else nodes * each
        return
    parsed = engine_reading_of(reading)
    batch, size = (
        whole_or_none(value_of(reading, parsed, name).value)
        for name in ("job.global_batch_size", "layout.microbatch_size")
    )
    size = size or 1
    whole = [math.lcm(each, stage) << power for power in range(MOST_DOUBLINGS)]
    parts = [stage << power for power in range(MOST_DOUBLINGS) if stage << power < each]
    divided = [
        gpus for gpus in (*whole, *reversed(parts)) if not batch or not batch % (gpus // together * size)
    ]
    yield from divided or whole
