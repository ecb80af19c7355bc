"""Facts given on the command line: they take the place of what files say, and of all that follows from it."""

from __future__ import annotations

from dataclasses import replace

from planner.audit.conclusions import conclude
from planner.audit.facts import JobFact, JobFacts
from planner.audit.read import Reading, take_counts_of_rates
from planner.questions.flags import Flags
from planner.questions.training import understand_cluster
from topology.base.counts import parse_count
from topology.base.errors import InputError

_MACHINES = (
    "said.nodes", "said.num_gpus", "said.machines", "said.gres", "said.tasks_per_node", "said.gpus_per_task",
    "said.workers", "said.replica_gpus",
)  # fmt: skip
"""Words that count GPUs, which a given number takes the place of; how many a node has stays."""


def given_by(reading: Reading, flags: Flags) -> Reading:
    """What files say, with what flags give in its place.

    Args:
        reading: What the files say.
        flags: In the user's words; they hold over the files, and so does what follows from them.
    """
    given = _given(flags)
    if not given or all(
        (fact := reading.facts.by_field.get(name)) is not None
        and fact.how == ("assumed" if name in reading.presumed else "given")
        and fact.value == value
        for name, (value, _) in given.items()
    ):
        return reading
    facts_by_field = dict(reading.stated.by_field)
    unknown = set(reading.stated.unknown) - given.keys()
    if "cluster.num_gpus" in given:
        total = given["cluster.num_gpus"][0]
        facts_by_field = {name: fact for name, fact in facts_by_field.items() if name not in _MACHINES}
        unknown -= set(_MACHINES)
        each = reading.stated.count("said.gpus_per_node")
        if each and total % each:
            del facts_by_field["said.gpus_per_node"]
    facts_by_field |= {
        name: JobFact(
            name=name,
            value=value,
            how="assumed" if name in reading.presumed else "given",
            source=reading.presumed.get(name, flag),
        )
        for name, (value, flag) in given.items()
    }
    facts = JobFacts(by_field=facts_by_field, unknown=unknown)
    conclude(facts, reading.family)
    take_counts_of_rates(facts, reading.measured)
    return replace(reading, facts=facts)


def without_presumed(reading: Reading) -> Reading:
    """What files and flags say, without counts that are taken for granted and what follows from them."""
    given = {name: fact for name, fact in reading.facts.by_field.items() if fact.how == "given"}
    facts = JobFacts({**reading.stated.by_field, **given}, reading.stated.unknown - given.keys())
    conclude(facts, reading.family)
    return replace(reading, facts=facts)


def _given(flags: Flags) -> dict[str, tuple[int | str, str]]:
    """Values by field, with the flag that gives each."""
    values: dict[str, tuple[int | str, str]] = {}
    gpus = _gpus(flags)
    if gpus is not None:
        values["cluster.num_gpus"] = (
            gpus,
            f"--gpus {flags.gpus}" if flags.gpus else f"--cluster {flags.cluster}",
        )
    for name, flag in (("job.sequence_length", "--sequence-length"), ("job.global_batch_size", "--batch")):
        text = getattr(flags, name.partition(".")[2])
        count = None if text is None else _count(text, flag)
        if count is not None:
            values[name] = (count, f"{flag} {text}")
    if flags.precision:
        values["job.precision"] = (flags.precision, f"--precision {flags.precision}")
    return values


def _gpus(flags: Flags) -> int | None:
    """GPUs of a number or of a cluster that flags give; None where they give neither."""
    if flags.cluster is not None:
        return understand_cluster(flags).num_gpus
    return None if flags.gpus is None else _count(flags.gpus, "--gpus")


def _count(text: str, flag: str) -> int | None:
    """A count; None where the question is refused later, with all that is known of it."""
    try:
        return parse_count(text, flag)
    except InputError:
        return None
