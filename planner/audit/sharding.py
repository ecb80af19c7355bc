"""ZeRO stages, from the words of every engine that shards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.audit.facts import JobFacts
from planner.audit.words import Family
from planner.formats.settings import whole_or_none

_STAGE_IN_NAME = re.compile(r"(?:zero|z|stage)_?([0-3])(?![0-9])", re.IGNORECASE)
_STAGE_OF_SHARDING: Mapping[str, int] = {
    "full_shard": 3,
    "full": 3,
    "optim_grads_params": 3,
    "hybrid_shard": 3,
    "hybrid": 3,
    "1": 3,
    "shard_grad_op": 2,
    "optim_grads": 2,
    "_hybrid_shard_zero2": 2,
    "hybrid_shard_zero2": 2,
    "fsdp": 3,
    "hsdp": 3,
    "ddp": 0,
    "2": 2,
    "optim": 1,
    "no_shard": 0,
    "3": 0,
    "4": 3,
    "5": 2,
}
_STAGE_OF_KIND: Mapping[str, int] = {"fsdp": 3, "hsdp": 3, "ddp": 0}
"""Kinds of data parallelism of OLMo-core."""


def zero(facts: JobFacts, family: Family) -> None:
    """The ZeRO stage, or what FSDP comes to."""
    if facts.truth("said.megatron_fsdp"):
        word = str(facts.value("said.sharding") or "optim_grads_params").lower()
        facts.put(
            "layout.zero_stage",
            _STAGE_OF_SHARDING.get(word, 3),
            "stated",
            f"Megatron-FSDP, {word}",
            like="said.megatron_fsdp",
        )
    elif facts.truth("said.torch_fsdp2"):
        facts.put("layout.zero_stage", 3, "stated", "torch FSDP2", like="said.torch_fsdp2")
    stage = whole_or_none(facts.value("said.zero_stage"))
    if stage is not None and 0 <= stage <= 3:
        bf16 = facts.value("job.precision") == "bf16" and family.name == "Megatron-DeepSpeed"
        if stage == 0 and bf16 and "said.deepspeed" in facts.by_field:
            facts.put(
                "layout.zero_stage",
                1,
                "derived",
                "stage 0, and DeepSpeed's bf16 optimizer shards its states itself",
                like="said.zero_stage",
            )
            facts.notes.append(
                "ZeRO is 0 in the file, and DeepSpeed's bf16 optimizer shards its states itself: ZeRO-1"
            )
        facts.take("layout.zero_stage", stage, "said.zero_stage")
    elif facts.truth("said.distributed_optimizer") or "distributed" in str(
        facts.value("said.optimizer") or ""
    ):
        like = (
            "said.distributed_optimizer"
            if "said.distributed_optimizer" in facts.by_field
            else "said.optimizer"
        )
        facts.put("layout.zero_stage", 1, "stated", "a distributed optimizer", like=like)
    if family.name == "MaxText":
        _fsdp_axes(facts)
    if family.name == "LitGPT":
        _of_litgpt(facts)
    _fsdp(facts, family)


def _of_litgpt(facts: JobFacts) -> None:
    """What LitGPT's recipes choose themselves: on several devices FSDP, on one nothing.

    Fine-tuning starts on one device without a word and recomputes the blocks that it shards
    (litgpt/finetune/full.py, lora.py). Pretraining takes all devices, shards within a node, compiles, and
    recomputes nothing (litgpt/pretrain.py).
    """
    recipe = str(facts.value("said.recipe_of_litgpt") or "")
    named = facts.by_field.get("said.model")
    pretrains = recipe == "pretrain" or (not recipe and named is not None and named.word == "model_name")
    why = f"LitGPT's {'pretraining' if pretrains else 'fine-tuning'} has it where nothing is said"
    if not pretrains and not facts.by_field.keys() & {"said.gpus_per_node", "said.nodes"}:
        facts.put("cluster.num_gpus", 1, "default", why)
    several = facts.count("cluster.num_gpus") != 1
    facts.put("layout.zero_stage", 3 if several else 0, "default", why)
    facts.put("layout.recompute", "full" if several and not pretrains else "none", "default", why)
    if pretrains:
        facts.put("said.compile", "true", "default", why)
        each, nodes = facts.count("said.gpus_per_node"), facts.count("said.nodes") or 1
        if each and nodes > 1:
            facts.put("layout.shard_degree", each, "default", why)


def _fsdp_axes(facts: JobFacts) -> None:
    """Sharding over the fsdp axes of MaxText's mesh: those within a slice times those over slices.

    Without a word the axis within a slice takes all GPUs that the others leave (``ici_fsdp_parallelism: -1``,
    ``dcn_fsdp_parallelism: 1`` in its configs/base.yml).
    """
    within = whole_or_none(facts.value("said.dp_shard"))
    over = whole_or_none(facts.value("said.dp_shard_of_slices"))
    degree = -1 if within in (None, -1) or over == -1 else (within or 1) * (over or 1)
    stage = 0 if degree == 1 else 3
    stated = next(
        (name for name in ("said.dp_shard", "said.dp_shard_of_slices") if name in facts.by_field), ""
    )
    if not stated:
        facts.put("layout.zero_stage", stage, "default", "MaxText shards over all GPUs where nothing is said")
        return
    facts.put("layout.zero_stage", stage, "stated", f"FSDP, {facts.by_field[stated].source}", like=stated)
    if degree > 1 and degree != facts.count("cluster.num_gpus"):
        source = " · ".join(
            facts.by_field[name].source
            for name in ("said.dp_shard", "said.dp_shard_of_slices")
            if name in facts.by_field
        )
        facts.put("layout.shard_degree", degree, "derived", source, like=stated)


def _fsdp(facts: JobFacts, family: Family) -> None:
    """Stages of PyTorch's FSDP and of a DeepSpeed file that is only named."""
    sharding = (
        str(facts.value("said.sharding") or facts.value("said.fsdp") or facts.value("said.reshard") or "")
        .lower()
        .split(",")[0]
        .split(" ")[0]
    )
    if sharding in _STAGE_OF_SHARDING:
        names = ("said.sharding", "said.fsdp", "said.reshard")
        like = next(name for name in names if facts.value(name))
        facts.take("layout.zero_stage", _STAGE_OF_SHARDING[sharding], like)
    elif facts.truth("said.reshard") is not None and family.name != "torchtitan":
        facts.take("layout.zero_stage", 3 if facts.truth("said.reshard") else 2, "said.reshard")
    elif (
        family.name in ("torchtitan", "Axolotl")
        and "said.dp_shard" in facts.by_field
        and whole_or_none(facts.value("said.dp_shard")) != 1
    ):
        kept = str(facts.value("said.reshard") or "").lower() == "never"
        source = facts.by_field["said.reshard" if kept else "said.dp_shard"].source
        facts.put("layout.zero_stage", 2 if kept else 3, "stated", f"FSDP, {source}", like="said.dp_shard")
    elif facts.value("said.data_parallel") in _STAGE_OF_KIND:
        stage = _STAGE_OF_KIND[str(facts.value("said.data_parallel"))]
        facts.take("layout.zero_stage", stage, "said.data_parallel")
    elif str(facts.value("said.distributed_type") or "").upper() == "MULTI_GPU":
        facts.take("layout.zero_stage", 0, "said.distributed_type")
    elif facts.value("said.fsdp_axis") is not None:
        facts.take("layout.zero_stage", 3, "said.fsdp_axis")
    strategy = str(facts.value("said.strategy") or "").lower().rpartition(".")[2]
    if family.name == "verl" and not strategy and not facts.by_field.keys() & {"layout.tp", "layout.pp"}:
        why = "verl has actor.strategy fsdp where nothing is said"  # verl/trainer/config/actor/dp_actor.yaml
        facts.put("layout.zero_stage", 3, "default", why)
    if "fsdp" in strategy or strategy.startswith("ddp"):
        facts.take("layout.zero_stage", 3 if "fsdp" in strategy else 0, "said.strategy")
    _of_lightning(facts, family, strategy)
    _stage_of_launcher(facts)
    named = _STAGE_IN_NAME.search(str(facts.value("said.deepspeed") or "").rpartition("/")[2])
    if named and "layout.zero_stage" not in facts.by_field:
        facts.put(
            "layout.zero_stage",
            int(named.group(1)),
            "derived",
            f"by the name of {facts.value('said.deepspeed')}",
            like="said.deepspeed",
        )
        name = str(facts.value("said.deepspeed"))
        if offloads_by_name(name.rpartition("/")[2]):
            _offload_of_name(facts, int(named.group(1)), "said.deepspeed")
        if name.lower().endswith((".json", ".yaml", ".yml")):
            facts.notes.append(f"the ZeRO stage is read from the name of {name}: name that file too")


_NO_OFFLOAD = re.compile(r"(?:no|non|without|wo)[-_]?(?:cpu[-_]?)?offload", re.IGNORECASE)


def offloads_by_name(name: str) -> bool:
    """Whether the name of a file or a strategy says that it offloads.

    >>> offloads_by_name("zero3_offload.json"), offloads_by_name("stage3_no_offloading_accelerate.conf")
    (True, False)
    """
    return "offload" in name.lower() and not _NO_OFFLOAD.search(name)


def _stage_of_launcher(facts: JobFacts) -> None:
    """The stage that the name of a file for `accelerate launch` tells, where that file was not given.

    So are those called that TRL and open-r1 ship: zero2.yaml, zero3.yaml, fsdp.yaml, fsdp2.yaml, ddp.yaml,
    multi_gpu.yaml; TRL's own command line takes their names alone (accelerate_config, trl/scripts/utils.py).
    """
    path = str(facts.value("said.launcher_config") or "")
    stem = re.sub(r"\.(?:ya?ml|json)$", "", path.rpartition("/")[2].lower())
    stage = _STAGE_IN_NAME.search(stem)
    words = set(re.split(r"[-_.]", stem))
    degree = int(stage.group(1)) if stage else 3 if words & {"fsdp", "fsdp1", "fsdp2"} else None
    degree = 0 if degree is None and (words & {"ddp"} or stem == "multi_gpu") else degree
    if degree is not None and "layout.zero_stage" not in facts.by_field:
        source = f"by the name of {path}"
        facts.put("layout.zero_stage", degree, "derived", source, like="said.launcher_config")
        facts.notes.append(f"what is sharded is read from the name of {path}: name that file too")


DEFAULT_STAGE = 2
"""Of Lightning's `DeepSpeedStrategy` (lightning/pytorch/strategies/deepspeed.py)."""


def _of_lightning(facts: JobFacts, family: Family, strategy: str) -> None:
    """What a strategy of Lightning shards: DeepSpeed by its name or its class, nothing without a word."""
    if family.name != "Lightning":
        return
    if "deepspeed" in strategy:
        named = _STAGE_IN_NAME.search(strategy)
        stage = int(named.group(1)) if named else DEFAULT_STAGE
        source = facts.by_field["said.strategy"].source
        facts.put("layout.zero_stage", stage, "stated" if named else "default", source, like="said.strategy")
        if offloads_by_name(strategy):
            _offload_of_name(facts, stage, "said.strategy")
    facts.put("layout.zero_stage", 0, "default", "Lightning shards nothing where nothing is said")


def _offload_of_name(facts: JobFacts, stage: int, like: str) -> None:
    """What a DeepSpeed file that only its name tells keeps on the host: the optimizer, parameters at stage 3.

    So have LLaMA-Factory (examples/deepspeed) and the presets of ms-swift (swift/config/zero3_offload.json).
    """
    source = f"by the name of {facts.value(like)}"
    facts.put("said.offload_optimizer", "cpu", "derived", source, like=like)
    if stage == 3:
        facts.put("said.offload_param", "cpu", "derived", source, like=like)
