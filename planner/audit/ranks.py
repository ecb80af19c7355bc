"""GPUs, replicas and batches: what nodes, degrees and samples mean for each other."""

from __future__ import annotations

import re

from costmodel.parallel.divisions import BATCH, RANKS
from planner.audit.facts import JobFacts
from planner.audit.words import Family
from planner.formats.settings import whole_or_none

USUAL_GPUS_PER_NODE = 8
_GPUS_IN_GRES = re.compile(r"(?:gpu(?::[A-Za-z]\w*)*|^[A-Za-z][\w-]*):(\d{1,3})")


def gpus_of_machines(facts: JobFacts, family: Family) -> None:
    """The number of GPUs, from nodes and GPUs of each."""
    gres = _GPUS_IN_GRES.search(str(facts.value("said.gres") or ""))
    if gres:
        facts.put("said.gpus_per_node", int(gres.group(1)), "stated", "gres", like="said.gres")
    elif (facts.count("said.tasks_per_node") or 1) > 1 and "said.gpus_per_node" not in facts.by_field:
        facts.put(
            "said.gpus_per_node",
            facts.count("said.tasks_per_node"),
            "derived",
            "a GPU for each task",
            like="said.tasks_per_node",
        )
    elif facts.count("said.visible_gpus") and "said.gpus_per_node" not in facts.unknown:
        facts.put(
            "said.gpus_per_node",
            facts.count("said.visible_gpus"),
            "derived",
            facts.by_field["said.visible_gpus"].source,
            like="said.visible_gpus",
        )
    workers = _workers(str(facts.value("said.workers") or ""))
    if workers:
        facts.put("said.nodes", workers, "derived", f"{workers} workers", like="said.workers")
    each, nodes, total = (
        facts.count("said.gpus_per_node"),
        facts.count("said.nodes"),
        facts.count("said.num_gpus"),
    )
    if facts.truth("said.generation_colocated") is False:
        _beside_generation(facts, each, nodes)
    elif total and not nodes and family.name == "torchtitan" and not _holds_layout(facts, total):
        pass  # NGPU of its run_train.sh are those of a node
    elif total and (family.name in ("Accelerate", "shell variables") or not (each and nodes)):
        facts.take("cluster.num_gpus", total, "said.num_gpus")
    elif each and nodes:
        facts.put(
            "cluster.num_gpus", each * nodes, "derived", f"{nodes} nodes of {each} GPUs", like="said.nodes"
        )
    elif each and "said.nodes" not in facts.unknown and _holds_layout(facts, each):
        facts.put(
            "cluster.num_gpus",
            each,
            "derived",
            f"{each} processes, and no number of nodes",
            like="said.gpus_per_node",
        )
    elif nodes and "said.gpus_per_node" not in facts.unknown and not family.serves:
        _usual_node(facts, nodes)


def _beside_generation(facts: JobFacts, each: int | None, nodes: int | None) -> None:
    """GPUs that train where answers are generated on others: whole nodes, or some GPUs of the only one."""
    like, apart = "said.generation_colocated", facts.count("said.generation_nodes")
    gpus = facts.count("said.generation_gpus")
    if each and nodes and apart and nodes > apart:
        source = f"{nodes} nodes of {each} GPUs less {apart} that generate"
        facts.put("cluster.num_gpus", each * (nodes - apart), "derived", source, like=like)
    elif each and nodes == 1 and gpus and each > gpus:
        facts.put(
            "cluster.num_gpus", each - gpus, "derived", f"{each} GPUs less {gpus} that generate", like=like
        )
    elif "cluster.num_gpus" not in facts.by_field:
        facts.unknown |= {"cluster.num_gpus", "said.training_gpus"}
        facts.notes.append("answers are generated on GPUs of their own, whose number is not stated")


def _workers(text: str) -> int:
    """Workers of ``TF_CONFIG``, the chief among them, or of a list of hosts.

    >>> _workers('{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["d:1"]}}'), _workers("a:1,b:1,c:1")
    (2, 3)
    """
    lists = re.findall(r'"(?:worker|chief)"\s*:\s*\[([^\]]*)\]', text) or ([] if "{" in text else [text])
    return sum(len(re.findall(r"[\w.-]+:\d{1,5}", hosts)) for hosts in lists)


def _holds_layout(facts: JobFacts, each: int) -> bool:
    """Whether one node has GPUs for the degrees; where it has not, there are more that no word counts."""
    degrees = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others, ep = degrees[0] * degrees[1] * degrees[2], facts.count("layout.ep") or 1
    counted = facts.by_field.get("said.gpus_per_node")
    by_torchrun = counted is not None and counted.word == RANKS_OF_TORCHRUN
    if ep * degrees[1] > each:
        why = f"ep·pp = {ep * degrees[1]}"
    elif each % others == 0 or (others < each and by_torchrun):
        return True
    else:
        why = f"tp·pp·cp = {others}"
    facts.notes.append(f"{why} needs more than the {each} GPUs of a node: nodes are not told")
    return False


RANKS_OF_TORCHRUN = "nproc_per_node"
"""Counts the ranks of the one node that torchrun starts without ``--nnodes``."""


def _usual_node(facts: JobFacts, nodes: int) -> None:
    """GPUs of nodes that no word counts: eight each, if the layout fills them."""
    degrees = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = degrees[0] * degrees[1] * degrees[2]
    if others > 1 and (nodes * USUAL_GPUS_PER_NODE) % others == 0:
        source = f"{nodes} nodes, and {USUAL_GPUS_PER_NODE} GPUs of each as in most machines"
        facts.put("cluster.num_gpus", nodes * USUAL_GPUS_PER_NODE, "assumed", source, like="said.nodes")
        facts.notes.append(f"GPUs of a node are not stated: {USUAL_GPUS_PER_NODE} are assumed")


def replicas_of_files(facts: JobFacts, family: Family) -> None:
    """dp: as stated by its parts, or what the other degrees leave of the GPUs.

    A hybrid strategy is told how many GPUs share a copy. Copies that nobody counts follow from all GPUs
    (olmo_core/distributed/parallel/data_parallel.py, get_replicate_and_shard_degree).
    """
    shard, copies = (
        whole_or_none(facts.value("said.dp_shard")),
        whole_or_none(facts.value("said.dp_replicate")),
    )
    world = facts.count("cluster.num_gpus")
    split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = split[0] * split[1] * split[2]
    outer = facts.count("said.extra_ep")
    if outer:
        facts.take("layout.ep", outer, "said.extra_ep")
    degree = shard is not None and shard > 0 and family.name != "MaxText"
    untold = degree and not copies and _strategy(facts)[0] in _HYBRID
    if untold:
        facts.take("layout.shard_degree", shard, "said.dp_shard")
    if degree and shard is not None and not untold:
        total = shard * max(1, copies or 1) * (outer or 1)
        like = "said.dp_shard"
        facts.put(
            "layout.dp",
            total,
            "stated" if total == shard else "derived",
            facts.by_field[like].source,
            like=like,
        )
        if copies and copies > 1:
            facts.take("layout.shard_degree", shard, like)
    elif facts.unknown & {"layout.tp", "layout.pp", "layout.cp"} - facts.by_field.keys():
        facts.notes.append("a degree that only a run knows leaves dp untold")
    elif not family.serves and world and RANKS.rest(world, others) == 0:
        _dp_of_world(facts, family, world, others)
    elif shard == -1:
        facts.put(
            "layout.dp",
            -1,
            "stated",
            f"{facts.by_field['said.dp_shard'].source}: all that is left",
            like="said.dp_shard",
        )
    elif world is None and not family.serves:
        _dp_of_batch(facts, others)


def degrees_of_recipe(facts: JobFacts, family: Family) -> tuple[str, ...]:
    """What files leave of tp and pp to a recipe that is not shown, where they state the other."""
    untold = tuple(name for name in ("layout.tp", "layout.pp") if name not in facts.by_field)
    return untold if family.recipes and len(untold) == 1 else ()


def _dp_of_batch(facts: JobFacts, others: int) -> None:
    """Dp from a global batch that is stated with its parts, and the GPUs that it means."""
    batch, size = facts.count("job.global_batch_size"), facts.count("layout.microbatch_size")
    steps = facts.count("said.accumulation")
    if batch and size and steps and batch % (size * steps) == 0:
        dp = batch // (size * steps)
        source = f"{batch} samples of {size} · {steps} accumulated"
        facts.put("layout.dp", dp, "derived", source, like="job.global_batch_size")
        facts.put("cluster.num_gpus", dp * others, "derived", "dp·tp·pp·cp", like="job.global_batch_size")


def _dp_of_world(facts: JobFacts, family: Family, world: int, others: int) -> None:
    """Dp from the number of GPUs, unless the file contradicts itself or says nothing of a split."""
    degrees = any(f"layout.{name}" in facts.by_field for name in ("tp", "pp", "cp", "ep"))
    counted = {"layout.zero_stage", "layout.microbatch_size", "said.device_batch"} & facts.by_field.keys()
    parallel = degrees or bool(counted)
    if not parallel:
        return
    if untold := degrees_of_recipe(facts, family):
        names = " and ".join(name.rpartition(".")[2] for name in untold)
        facts.notes.append(f"{names} of the recipe, which is not shown: dp of {world} GPUs is not told")
        return
    dp, cp, tp = world // others, facts.count("layout.cp") or 1, facts.count("layout.tp") or 1
    ep = facts.count("layout.ep") or 1
    if (dp * cp * tp) % ep and family.name != "Megatron-DeepSpeed":
        facts.notes.append(
            f"{world} GPUs leave dp {dp} · cp {cp} · tp {tp}, which ep {ep} does not divide: dp is not told"
        )
        return
    facts.put("layout.dp", dp, "derived", f"{world} GPUs over tp·pp·cp = {others}", like="cluster.num_gpus")
    copies = whole_or_none(facts.value("said.dp_replicate")) or 1
    if copies > 1 and dp % copies == 0 and facts.value("layout.zero_stage") == 3:
        source = f"dp {dp} over {copies} replicas"
        facts.put("layout.shard_degree", dp // copies, "derived", source, like="said.dp_replicate")
    _copy_of_node(facts, world, dp)


_HYBRID = ("hybrid", "hybrid_shard", "hsdp", "4", "_hybrid_shard_zero2", "hybrid_shard_zero2", "5")
"""Strategies of FSDP whose group is a node's where no other is told, by name and number.

torch/distributed/fsdp/api.py (ShardingStrategy); accelerate/utils/constants.py (FSDP_SHARDING_STRATEGY)
"""
_SHARDING = ("said.sharding", "said.fsdp", "said.data_parallel")


def _strategy(facts: JobFacts) -> tuple[str, str]:
    """How FSDP is told to shard, and the word that says it; empty where none does."""
    like = next((name for name in _SHARDING if facts.value(name)), "")
    return re.split(r"[, ]", str(facts.value(like) or "").lower())[0], like


def _copy_of_node(facts: JobFacts, world: int, dp: int) -> None:
    """Ranks of a node share a copy where FSDP is told to shard so, and says no degree."""
    strategy, like = _strategy(facts)
    nodes = facts.count("said.nodes") or facts.count("said.machines")
    each = facts.count("said.gpus_per_node") or (world // nodes if nodes else None)
    if strategy in _HYBRID and each and each < dp and not RANKS.rest(dp, each):
        facts.put("layout.shard_degree", each, "derived", f"{strategy}: a copy on each node", like=like)


def world(facts: JobFacts, family: Family) -> None:
    """GPUs of a job whose degrees are all stated."""
    _world_of_mesh(facts, family)
    dp = facts.count("layout.dp")
    split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = split[0] * split[1] * split[2]
    if (
        dp
        and not family.serves
        and (family.name in ("nanotron", "Axolotl", "MaxText") or facts.value("said.dp_shard"))
    ):
        outer = (
            (facts.count("layout.ep") or 1) if family.name == "nanotron" else 1
        )  # its experts have ranks of their own
        facts.put(
            "cluster.num_gpus",
            dp * others * outer,
            "derived",
            "dp·tp·pp·cp" + ("·ep" if outer > 1 else ""),
            like="layout.dp",
        )
    if family.serves and "said.replica_gpus" in facts.by_field:
        facts.put(
            "cluster.num_gpus", others, "derived", "GPUs of one replica: tp·pp", like="said.replica_gpus"
        )


def axes_over_slices(facts: JobFacts, family: Family) -> None:  # noqa: ARG001 - as all steps are called
    """Degrees of MaxText: those within a slice (``ici_``) times those over slices (``dcn_``).

    Its tensor axis that also cuts norms and residuals over the sequence is one more factor of tp.
    """
    for field, further in (
        *((f"layout.{name}", f"said.{name}_of_slices") for name in ("tp", "pp", "cp", "ep")),
        ("layout.tp", "said.tp_of_sequence"),
        ("said.dp_replicate", "said.dp_of_slice"),
    ):
        more = facts.count(further) or 1
        if more == 1:
            continue
        known = facts.by_field.pop(field, None)
        source = " · ".join(each.source for each in (known, facts.by_field[further]) if each is not None)
        degree = more * ((known and whole_or_none(known.value)) or 1)
        facts.put(field, degree, "stated", source, like=further)


def _world_of_mesh(facts: JobFacts, family: Family) -> None:
    """GPUs of a mesh of MaxText whose axes over data, within a slice and over slices, are all stated.

    In its configs/base.yml ``dcn_data_parallelism`` and ``ici_fsdp_parallelism`` are -1, all others 1.
    """
    axes = [facts.count(f"said.{name}") for name in ("dp_shard", "dp_replicate")]
    if family.name == "MaxText" and axes[0] and axes[1] and facts.value("said.dp_shard_of_slices") != -1:
        over = facts.count("said.dp_shard_of_slices") or 1
        split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp", "ep")]
        gpus = axes[0] * axes[1] * over * split[0] * split[1] * split[2] * split[3]
        facts.put("cluster.num_gpus", gpus, "derived", "the product of its mesh", like="said.dp_shard")


MOST_SAMPLES = 10**6
"""Of a device, beyond which a number is no batch."""


def _batch_of_devices(facts: JobFacts) -> None:
    """Batches of MaxText, which counts samples of every device, those of tensor ranks too.

    Its pyconfig.py, calculate_global_batch_sizes. A pipeline has a microbatch for each stage without a word.
    """
    gpus, each = facts.count("cluster.num_gpus"), facts.value("said.device_batch")
    try:
        samples = float(each)
    except (TypeError, ValueError):
        return
    split = (facts.count("layout.tp") or 1) * (facts.count("layout.cp") or 1)
    size = samples * split
    if 1 <= size < MOST_SAMPLES and size == int(size):
        why = f"{each} samples a device" + (f", {split} devices a sequence" if split > 1 else "")
        facts.put("layout.microbatch_size", int(size), "derived", why, like="said.device_batch")
    batch = int(samples * gpus) if gpus and 0 < samples < MOST_SAMPLES else 0
    steps = facts.count("said.accumulation") or 1
    if batch:
        why = f"{gpus} devices of {each} samples" + (f", {steps} accumulated" if steps > 1 else "")
        facts.put("job.global_batch_size", batch * steps, "derived", why, like="said.device_batch")


def global_batch_of(facts: JobFacts, family: Family) -> None:
    """The global batch, from the samples of a replica."""
    _batch_of_devices(facts)
    dp, minibatch = facts.count("layout.dp"), whole_or_none(facts.value("said.replica_batch"))
    if dp and minibatch:
        facts.put(
            "job.global_batch_size",
            dp * minibatch,
            "derived",
            f"{minibatch} samples a replica, dp {dp}",
            like="said.replica_batch",
        )
    batch = facts.count("job.global_batch_size")
    if family.name == "levanter" and dp and batch and not BATCH.rest(batch, dp, 1):
        source = f"{batch} sequences over dp {dp}, as per_device_parallelism -1 has it"
        facts.put("layout.microbatch_size", batch // dp, "derived", source, like="job.global_batch_size")
    size, steps = facts.count("layout.microbatch_size"), whole_or_none(facts.value("said.accumulation"))
    every = facts.count("said.accumulation_of_all")
    if size and every:
        source = f"{size} · {every} accumulated by all ranks"
        facts.put("job.global_batch_size", size * every, "derived", source, like="said.accumulation_of_all")
    if dp and size and steps and steps > 0:
        facts.put(
            "job.global_batch_size",
            dp * size * steps,
            "derived",
            f"dp {dp} · {size} · {steps} accumulated",
            like="said.accumulation",
        )
    elif dp and size and family.name == "torchtitan" and "said.nodes" in facts.by_field:
        facts.put(
            "job.global_batch_size",
            dp * size,
            "derived",
            f"dp {dp} · local batch {size}",
            like="layout.microbatch_size",
        )
