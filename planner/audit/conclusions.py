"""What follows from what a file states: chunks from layers, ZeRO from its words, dp from the number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from planner.audit.facts import Facts
from planner.audit.settings import truth_of, whole
from planner.audit.words import Family

USUAL_GPUS_PER_NODE = 8
_GPUS_IN_GRES = re.compile(r"gpu(?::[A-Za-z]\w*)*:(\d{1,3})")
_STAGE_IN_NAME = re.compile(r"(?:zero|z|stage)_?([0-3])(?![0-9])", re.IGNORECASE)
_STAGE_OF_SHARDING: Mapping[str, int] = {
    "full_shard": 3, "full": 3, "optim_grads_params": 3, "hybrid_shard": 3, "1": 3, "shard_grad_op": 2, "optim_grads": 2,
    "_hybrid_shard_zero2": 2, "2": 2, "optim": 1, "no_shard": 0, "3": 0, "4": 3,
}  # fmt: skip
_SCHEDULES: Mapping[str, str] = {
    "1f1b": "1f1b", "interleaved1f1b": "interleaved", "interleaved": "interleaved", "gpipe": "gpipe", "afab": "gpipe",
    "allforwardallbackward": "gpipe", "interleavedzerobubble": "zb-h1", "zbvzerobubble": "zbv", "dualpipev": "dualpipev",
}  # fmt: skip
_PRECISIONS: tuple[tuple[str, str], ...] = (
    ("nvfp4", "nvfp4"), ("fp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8_mx", "mxfp8"), ("fp8", "fp8"), ("float8", "fp8"),
    ("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16"), ("half", "fp16"), ("16-mixed", "fp16"),
)  # fmt: skip


PARENTS: Mapping[str, Mapping[str, object]] = {
    "grpo_math_1B.yaml": {
        "layout.tp": 1, "layout.pp": 1, "layout.cp": 1, "layout.recompute": "none", "job.global_batch_size": 512, "job.precision": "bf16",
    },
}  # fmt: skip
"""What recipes state that others are made from, as published (NeMo-RL v0.6)."""


def conclude(facts: Facts, family: Family) -> None:
    """Add every fact that follows."""
    parent = str(facts.value("said.parent") or "").rpartition("/")[2]
    defaults = {**family.defaults, **PARENTS.get(parent, {})}
    why = f"{parent or family.name} has it where nothing is said"
    if parent in PARENTS:
        facts.notes.append(f"{parent} was not given: values as it is published are taken for what is not said here")
    for name, value in defaults.items():
        if name in ("layout.tp", "layout.pp", "layout.cp"):  # dp follows from these
            facts.put(name, value, "default", why)
    for step in _STEPS:
        step(facts, family)
    for name, value in defaults.items():
        facts.put(name, value, "default", why)


def _machines(facts: Facts, family: Family) -> None:
    """The number of GPUs, from nodes and GPUs of each."""
    gres = _GPUS_IN_GRES.search(str(facts.value("said.gres") or ""))
    if gres:
        facts.put("said.gpus_per_node", int(gres.group(1)), "stated", "gres", like="said.gres")
    elif (facts.count("said.tasks_per_node") or 1) > 1 and "said.gpus_per_node" not in facts.found:
        facts.put("said.gpus_per_node", facts.count("said.tasks_per_node"), "derived", "a GPU for each task", like="said.tasks_per_node")
    each, nodes, total = facts.count("said.gpus_per_node"), facts.count("said.nodes"), facts.count("said.num_gpus")
    if total and nodes and not each and family.name == "Megatron-DeepSpeed":
        each, total = total, None  # the launcher `deepspeed` counts those of a node
    if total and (family.name in ("Accelerate", "shell variables") or not (each and nodes)):
        facts.put("cluster.num_gpus", total, "stated", facts.found["said.num_gpus"].said, like="said.num_gpus")
    elif each and nodes:
        facts.put("cluster.num_gpus", each * nodes, "derived", f"{nodes} nodes of {each} GPUs", like="said.nodes")
    elif each and "said.nodes" not in facts.unknown:
        facts.put("cluster.num_gpus", each, "derived", f"{each} processes, and no number of nodes", like="said.gpus_per_node")
    elif nodes and "said.gpus_per_node" not in facts.unknown:
        _usual_node(facts, nodes)


def _usual_node(facts: Facts, nodes: int) -> None:
    """GPUs of nodes that no word counts: eight each, if the layout fills them."""
    degrees = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = degrees[0] * degrees[1] * degrees[2]
    if others > 1 and (nodes * USUAL_GPUS_PER_NODE) % others == 0:
        said = f"{nodes} nodes, and {USUAL_GPUS_PER_NODE} GPUs of each as in most machines"
        facts.put("cluster.num_gpus", nodes * USUAL_GPUS_PER_NODE, "assumed", said, like="said.nodes")
        facts.notes.append(f"GPUs of a node are not stated: {USUAL_GPUS_PER_NODE} are assumed")


def _precision(facts: Facts, family: Family) -> None:
    """The format that linear layers multiply in; eight bits over sixteen."""
    words = [str(facts.value(name) or "") for name in ("said.fp4", "said.fp8", "said.fp8_recipe", "said.precision")]
    low = words[0] if words[0].lower() not in ("", "false", "0", "no") else ""
    eight = words[1] if words[1].lower() not in ("", "false", "0", "no", "none") else ""
    if low:
        facts.put("job.precision", "nvfp4", "stated", f"fp4 {low}", like="said.fp4")
    elif eight:
        name = "mxfp8" if "mx" in words[2] else "fp8"
        facts.put("job.precision", name, "stated", f"fp8 {eight}", like="said.fp8")
    if family.name == "torchtitan":
        converters = str(facts.value("said.converters") or "")
        if "float8" in converters or "mx" in converters:
            name = "mxfp8" if "mx" in converters else "fp8"
            facts.put("job.precision", name, "stated", f"converters {converters}", like="said.converters")
        if "said.flavor" in facts.found and not str(facts.found["said.flavor"].said).startswith("model_"):
            facts.put("job.precision", "bf16", "default", "torchtitan trains in bf16 without a converter")
    for name, precision in (("said.bf16", "bf16"), ("said.fp16", "fp16")):
        if facts.truth(name) or str(facts.value(name)) == "auto" or facts.value(name) == "":
            facts.put("job.precision", precision, "stated", facts.found[name].said, like=name)
    text = words[3].lower().rpartition("c=")[2]
    known = next((ours for theirs, ours in _PRECISIONS if theirs in text), None)
    if known:
        facts.put("job.precision", known, "stated", facts.found["said.precision"].said, like="said.precision")


def _recompute(facts: Facts, _: Family) -> None:
    """What is recomputed."""
    word = str(facts.value("said.recompute") or "").lower()
    option = str(facts.value("said.recompute_option") or "")
    if word in ("full", "none"):
        facts.put("layout.recompute", word, "stated", facts.found["said.recompute"].said, like="said.recompute")
    elif word == "selective":
        layers = option == "op" or "said.flavor" in facts.found
        facts.put("layout.recompute", "selective-op" if layers else word, "stated", facts.found["said.recompute"].said, like="said.recompute")
    for name, found in (("said.recompute_full", "full"), ("said.recompute_selective", "selective")):
        held = facts.truth(name)
        if held is not None:
            facts.put("layout.recompute", found if held else "none", "stated", facts.found[name].said, like=name)
    if "said.recompute_method" in facts.found:
        facts.put("layout.recompute", "full", "stated", facts.found["said.recompute_method"].said, like="said.recompute_method")
    if "said.recompute_modules" in facts.found:
        facts.put("layout.recompute", "selective", "stated", facts.found["said.recompute_modules"].said, like="said.recompute_modules")


def _zero(facts: Facts, family: Family) -> None:
    """The ZeRO stage, or what FSDP comes to."""
    if facts.truth("said.megatron_fsdp"):
        word = str(facts.value("said.sharding") or "optim_grads_params").lower()
        facts.put("layout.zero_stage", _STAGE_OF_SHARDING.get(word, 3), "stated", f"Megatron-FSDP, {word}", like="said.megatron_fsdp")
    elif facts.truth("said.torch_fsdp2"):
        facts.put("layout.zero_stage", 3, "stated", "torch FSDP2", like="said.torch_fsdp2")
    stage = whole(facts.value("said.zero_stage"))
    if stage is not None and 0 <= stage <= 3:
        bf16 = facts.value("job.precision") in ("bf16",) and family.name == "Megatron-DeepSpeed"
        if stage == 0 and bf16 and "said.deepspeed" in facts.found:
            facts.put("layout.zero_stage", 1, "derived", "stage 0, and DeepSpeed's bf16 optimizer shards its states itself", like="said.zero_stage")
            facts.notes.append("ZeRO is 0 in the file; DeepSpeed's bf16 optimizer shards its states by itself, which is ZeRO-1")
        facts.put("layout.zero_stage", stage, "stated", facts.found["said.zero_stage"].said, like="said.zero_stage")
    elif facts.truth("said.distributed_optimizer") or "distributed" in str(facts.value("said.optimizer") or ""):
        like = "said.distributed_optimizer" if "said.distributed_optimizer" in facts.found else "said.optimizer"
        facts.put("layout.zero_stage", 1, "stated", "a distributed optimizer", like=like)
    _fsdp(facts, family)


def _fsdp(facts: Facts, family: Family) -> None:
    """Stages of PyTorch's FSDP and of a DeepSpeed file that is only named."""
    sharding = str(facts.value("said.sharding") or facts.value("said.fsdp") or "").lower().split(",")[0].split(" ")[0]
    if sharding in _STAGE_OF_SHARDING:
        like = "said.sharding" if "said.sharding" in facts.found else "said.fsdp"
        facts.put("layout.zero_stage", _STAGE_OF_SHARDING[sharding], "stated", facts.found[like].said, like=like)
    elif facts.truth("said.reshard") is not None and family.name != "torchtitan":
        facts.put("layout.zero_stage", 3 if facts.truth("said.reshard") else 2, "stated", facts.found["said.reshard"].said, like="said.reshard")
    elif family.name == "torchtitan" and "said.dp_shard" in facts.found and whole(facts.value("said.dp_shard")) != 1:
        facts.put("layout.zero_stage", 3, "stated", f"FSDP, {facts.found['said.dp_shard'].said}", like="said.dp_shard")
    elif str(facts.value("said.distributed_type") or "").upper() in ("MULTI_GPU", "NO"):
        facts.put("layout.zero_stage", 0, "stated", facts.found["said.distributed_type"].said, like="said.distributed_type")
    elif facts.value("said.fsdp_axis") is not None:
        facts.put("layout.zero_stage", 3, "stated", facts.found["said.fsdp_axis"].said, like="said.fsdp_axis")
    named = _STAGE_IN_NAME.search(str(facts.value("said.deepspeed") or "").rpartition("/")[2])
    if named and "layout.zero_stage" not in facts.found:
        facts.put("layout.zero_stage", int(named.group(1)), "derived", f"by the name of {facts.value('said.deepspeed')}", like="said.deepspeed")
        facts.notes.append(f"the ZeRO stage is read from the name of {facts.value('said.deepspeed')}, which was not given: name it too")


def _pipeline(facts: Facts, _: Family) -> None:
    """Chunks of a rank, and the schedule that they mean."""
    each, layers, pp = whole(facts.value("said.layers_per_virtual_stage")), facts.count("model.num_layers"), facts.count("layout.pp")
    if each and each > 0 and layers and pp and layers % (each * pp) == 0:
        facts.put("layout.virtual_stages", layers // (each * pp), "derived", f"{layers} layers, {pp} stages, {each} layers a chunk", like="said.layers_per_virtual_stage")
    word = re.sub(r"[^a-z0-9]", "", str(facts.value("layout.schedule") or "").lower())
    if "layout.schedule" in facts.found:
        fact = facts.found.pop("layout.schedule")
        if word in _SCHEDULES:
            facts.put("layout.schedule", _SCHEDULES[word], "stated", fact.said)
            _place(facts, "layout.schedule", fact.line, fact.file)
    if (facts.count("layout.virtual_stages") or 1) > 1:
        facts.put("layout.schedule", "interleaved", "derived", "several chunks a rank", like="layout.virtual_stages")


def _place(facts: Facts, name: str, line: int, file: str) -> None:
    """Give a fact the place of the word that it came from."""
    from dataclasses import replace

    facts.found[name] = replace(facts.found[name], line=line, file=file)


def _sequence_parallel(facts: Facts, _: Family) -> None:
    """nanotron's modes of tensor parallelism, and how many tokens a microbatch of torchtitan has."""
    mode = facts.value("said.tp_mode")
    if mode is not None:
        facts.put("layout.sequence_parallel", str(mode).upper() == "REDUCE_SCATTER", "stated", facts.found["said.tp_mode"].said, like="said.tp_mode")
    tokens, length = whole(facts.value("said.microbatch_tokens")), facts.count("job.sequence_length")
    if tokens and length and tokens % length == 0:
        facts.put("layout.microbatch_size", tokens // length, "derived", f"{tokens} tokens of {length}", like="said.microbatch_tokens")


def _replicas(facts: Facts, family: Family) -> None:
    """dp: as stated by its parts, or what the other degrees leave of the GPUs."""
    shard, copies = whole(facts.value("said.dp_shard")), whole(facts.value("said.dp_replicate"))
    world = facts.count("cluster.num_gpus")
    split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = split[0] * split[1] * split[2]
    outer = facts.count("said.extra_ep")
    if outer:
        facts.put("layout.ep", outer, "stated", facts.found["said.extra_ep"].said, like="said.extra_ep")
    if shard is not None and shard > 0 and family.name != "MaxText":
        total = shard * max(1, copies or 1) * (outer or 1)
        like = "said.dp_shard"
        facts.put("layout.dp", total, "stated" if total == shard else "derived", facts.found[like].said, like=like)
        if copies and copies > 1:
            facts.put("layout.shard_degree", shard, "stated", facts.found[like].said, like=like)
    elif not family.serves and world and world % others == 0:
        _dp_of_world(facts, family, world, others)
    elif shard == -1:
        facts.put("layout.dp", -1, "stated", f"{facts.found['said.dp_shard'].said}: all that is left", like="said.dp_shard")


def _dp_of_world(facts: Facts, family: Family, world: int, others: int) -> None:
    """dp from the number of GPUs, unless the file contradicts itself or says nothing of a split."""
    degrees = any(f"layout.{name}" in facts.found for name in ("tp", "pp", "cp", "ep"))
    parallel = degrees or "layout.zero_stage" in facts.found or "layout.microbatch_size" in facts.found
    if not parallel:
        return
    dp, cp, tp = world // others, facts.count("layout.cp") or 1, facts.count("layout.tp") or 1
    ep = facts.count("layout.ep") or 1
    if (dp * cp * tp) % ep and family.name != "Megatron-DeepSpeed":
        facts.notes.append(f"{world} GPUs leave dp {dp} · cp {cp} · tp {tp}, which {ep} groups of experts do not divide: dp is not told")
        return
    facts.put("layout.dp", dp, "derived", f"{world} GPUs over tp·pp·cp = {others}", like="cluster.num_gpus")


def _world(facts: Facts, family: Family) -> None:
    """GPUs of a job whose degrees are all stated."""
    dp = facts.count("layout.dp")
    split = [facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp")]
    others = split[0] * split[1] * split[2]
    if dp and not family.serves and (family.name in ("nanotron", "Axolotl", "MaxText") or facts.value("said.dp_shard")):
        outer = (facts.count("layout.ep") or 1) if family.name == "nanotron" else 1  # its experts have ranks of their own
        facts.put("cluster.num_gpus", dp * others * outer, "derived", "dp·tp·pp·cp" + ("·ep" if outer > 1 else ""), like="layout.dp")
    if family.serves and "said.replica_gpus" in facts.found:
        facts.put("cluster.num_gpus", others, "derived", "GPUs of one replica: tp·pp", like="said.replica_gpus")


def _batch(facts: Facts, family: Family) -> None:
    """The global batch, from the samples of a replica."""
    dp, minibatch = facts.count("layout.dp"), whole(facts.value("said.replica_batch"))
    if dp and minibatch:
        facts.put("job.global_batch_size", dp * minibatch, "derived", f"{minibatch} samples a replica, dp {dp}", like="said.replica_batch")
    size, steps = facts.count("layout.microbatch_size"), whole(facts.value("said.accumulation"))
    if dp and size and steps and steps > 0:
        facts.put("job.global_batch_size", dp * size * steps, "derived", f"dp {dp} · {size} · {steps} accumulated", like="said.accumulation")
    elif dp and size and family.name == "torchtitan" and "said.nodes" in facts.found:
        facts.put("job.global_batch_size", dp * size, "derived", f"dp {dp} · local batch {size}", like="layout.microbatch_size")


_OVERRIDES: Mapping[str, str] = {
    "n_embd": "model.hidden_size", "n_head": "model.num_attention_heads", "n_layer": "model.num_layers",
    "n_positions": "job.sequence_length", "hidden_size": "model.hidden_size", "num_hidden_layers": "model.num_layers",
    "num_attention_heads": "model.num_attention_heads",
}  # fmt: skip


def _overrides(facts: Facts, _: Family) -> None:
    """Sizes in the text of ``--config_overrides``."""
    for part in str(facts.value("said.overrides") or "").split(",")[:40]:
        name, _, value = part.partition("=")
        count = whole(value)
        if name.strip() in _OVERRIDES and count and count > 0:
            facts.put(_OVERRIDES[name.strip()], count, "stated", f"config_overrides {part.strip()}", like="said.overrides")


def _lengths(facts: Facts, _: Family) -> None:
    """Tokens of a sample of a reinforcement-learning job, and truth of yes-or-no fields."""
    prompt, answer = whole(facts.value("said.prompt_length")), whole(facts.value("said.response_length"))
    if prompt and answer and facts.value("said.strategy") is not None:
        facts.put("job.sequence_length", prompt + answer, "derived", "prompt and response", like="said.response_length")
    if facts.value("said.expert_parallel") is not None and truth_of(facts.value("said.expert_parallel")):
        degree = (facts.count("layout.tp") or 1) * (facts.count("layout.dp") or 1)
        facts.put("layout.ep", degree, "derived", "experts over all GPUs of a stage", like="said.expert_parallel")


_STEPS: tuple[Callable[[Facts, Family], None], ...] = (
    _overrides, _machines, _precision, _recompute, _zero, _pipeline, _lengths, _sequence_parallel, _replicas, _world, _batch,
)  # fmt: skip
