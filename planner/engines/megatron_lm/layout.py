"""What Megatron-LM is told of parallelism, batch, precision, recomputation and overlap.

Names and meanings are those of ``megatron/training/arguments.py`` of megatron-core 0.19.2; aliases are those
of its ancestors since 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import DEFAULT_AXIS_ORDER
from planner.engines.fields import Facts
from planner.engines.megatron_lm.pairing import EP, PAIRING
from planner.engines.megatron_lm.stages import PIPELINE, PP, PREDICTION, RECOMPUTE
from planner.engines.megatron_lm.state import STATE
from planner.engines.setting import EngineSetting, Given, Word, flag, value
from topology.hardware.datasheets import gpu_sheets

TP, CP = "--tensor-model-parallel-size", "--context-parallel-size"
DP_FIRST = ("dp", "pp", "cp", "tp")
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
_STAGE_OF = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
CP_KINDS = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}


def _data_parallel(given: Given) -> dict[str, Any]:
    """Replicas: what is left of the launcher's processes."""
    if given.num_gpus is None:
        return {}
    return {"layout.dp": max(1, given.num_gpus // (given[TP] * given[PP] * given[CP]))}


def _microbatch(given: Given) -> dict[str, Any]:
    """Sequences of a microbatch and of a step, which is one microbatch a replica where nobody says."""
    size, batch = given["--micro-batch-size"], given["--global-batch-size"]
    facts = {} if size is None else {"layout.microbatch_size": size}
    replicas = _data_parallel(given).get("layout.dp")
    if batch is None and size is not None and replicas is not None:
        batch = size * replicas
    return facts if batch is None else facts | {"job.global_batch_size": batch}


_BATCH = EngineSetting(
    words=(
        Word(
            name="--micro-batch-size", kind="int", aliases=("--batch-size",), states="layout.microbatch_size"
        ),
        Word(name="--global-batch-size", kind="int", states="job.global_batch_size"),
    ),
    fields=("layout.microbatch_size", "job.global_batch_size"),
    write=lambda facts: {
        "--micro-batch-size": facts["layout.microbatch_size"],
        "--global-batch-size": facts["job.global_batch_size"],
    },
    read=_microbatch,
)


def _write_sharding(facts: Facts) -> dict[str, Any]:
    """The distributed optimizer, or Megatron-FSDP where gradients or parameters are sharded too."""
    stage, shards = facts["layout.zero_stage"], facts["layout.shard_degree"]
    if not stage:
        return {}
    replicas = facts["layout.dp"] * facts["layout.cp"]
    words: dict[str, Any] = {"--use-distributed-optimizer": True}
    if stage in STRATEGIES:
        words |= {"--use-megatron-fsdp": True, "--data-parallel-sharding-strategy": STRATEGIES[stage]}
        words |= {"--ckpt-format": "fsdp_dtensor"}
    if shards is not None and shards < replicas:
        words["--num-distributed-optimizer-instances"] = replicas // shards
    return words


def _read_sharding(given: Given) -> dict[str, Any]:
    """ZeRO stage and the ranks that share one copy."""
    stage = int(given["--use-distributed-optimizer"])
    if given["--use-megatron-fsdp"] or given["--use-custom-fsdp"]:
        strategy = given["--data-parallel-sharding-strategy"]
        if strategy not in _STAGE_OF:
            raise ValueError(f"{strategy!r} is none of {', '.join(_STAGE_OF)}")
        stage = _STAGE_OF[strategy]
    if given["--use-torch-fsdp2"]:
        stage = 3 if not given["--torch-fsdp2-no-reshard-after-forward"] else 2
    instances, replicas = given["--num-distributed-optimizer-instances"], _data_parallel(given)
    facts: dict[str, Any] = {"layout.zero_stage": stage}
    if given["--use-torch-fsdp2"]:  # core/distributed/torch_fully_sharded_data_parallel.py: no buffers
        facts["stack.frees_loss"] = True
    if instances <= 1 or not stage:
        return facts | {"layout.shard_degree": None}
    if not replicas:
        return facts
    return facts | {"layout.shard_degree": max(1, replicas["layout.dp"] * given[CP] // instances)}


_SHARDING = EngineSetting(
    words=(
        Word(
            name="--use-distributed-optimizer",
            kind="flag",
            default=False,
            states="said.distributed_optimizer",
        ),
        Word(
            name="--use-megatron-fsdp",
            kind="flag",
            default=False,
            states="said.megatron_fsdp",
        ),
        Word(name="--use-custom-fsdp", kind="flag", default=False, states="said.megatron_fsdp"),  # until 0.13
        Word(name="--data-parallel-sharding-strategy", default="optim_grads_params", states="said.sharding"),
        Word(name="--ckpt-format"),
        Word(name="--num-distributed-optimizer-instances", kind="int", default=1),
        Word(name="--use-torch-fsdp2", kind="flag", default=False, states="said.torch_fsdp2"),
        Word(name="--torch-fsdp2-no-reshard-after-forward", kind="flag", default=False),
    ),
    fields=("layout.zero_stage", "layout.shard_degree"),
    write=_write_sharding,
    read=_read_sharding,
)


def _write_precision(facts: Facts) -> dict[str, Any]:
    """The sixteen-bit format, and the recipe of narrower products."""
    record = TRAINING[facts["job.precision"]]
    words = list(record.engine_words.get("megatron", ()))
    return {f"--{record.half}": True, **dict(zip(words[::2], words[1::2], strict=True))}


def _as_written(given: Given) -> str | None:
    """The precision whose words these are, the one of most words; none where they are nobody's."""
    words_of = {name: list(record.engine_words.get("megatron", ())) for name, record in TRAINING.items()}
    matching = [
        (len(words), name)
        for name, words in words_of.items()
        if words and all(given[w] == v for w, v in zip(words[::2], words[1::2], strict=True))
    ]
    return max(matching)[1] if matching else None


def _read_precision(given: Given) -> dict[str, Any]:
    """The precision; the recipe of eight bits is delayed scaling where nobody says."""
    recipe = given["--fp8-recipe"]
    if (written := _as_written(given)) is not None:
        return {"job.precision": written, "recipe.fp8_recipe": recipe}
    if given["--fp4-format"]:
        return {"job.precision": "nvfp4", "recipe.fp8_recipe": given["--fp4-recipe"]}
    if given["--fp8-format"] or given["--fp8-hybrid"] or given["--fp8-e4m3"]:
        return {"job.precision": "mxfp8" if recipe == "mxfp8" else "fp8", "recipe.fp8_recipe": recipe}
    if given["--bf16"] or given["--fp16"]:
        return {"job.precision": "bf16" if given["--bf16"] else "fp16"}
    return {}  # fp32, which no estimate knows


_PRECISION = EngineSetting(
    words=(
        Word(name="--bf16", kind="flag", default=False, states="said.bf16"),
        Word(name="--fp16", kind="flag", default=False, states="said.fp16"),
        Word(name="--fp8-format", aliases=("--fp8",), states="said.fp8"),
        Word(name="--fp8-hybrid", kind="flag", default=False, states="said.fp8"),  # until core 0.5
        Word(name="--fp8-e4m3", kind="flag", default=False, states="said.fp8"),
        Word(name="--fp8-recipe", default="delayed", states="said.fp8_recipe"),
        Word(name="--fp4-format", aliases=("--fp4",), states="said.fp4"),
        Word(name="--fp4-recipe", default="nvfp4"),
    ),
    fields=("job.precision", "recipe.fp8_recipe"),
    write=_write_precision,
    read=_read_precision,
)


def _write_dispatcher(facts: Facts) -> dict[str, Any]:
    """How tokens reach their experts."""
    if not facts["model.num_experts"]:
        return {}
    if facts["stack.dispatches_once_per_node"]:
        sheet = gpu_sheets().get(facts["cluster.gpu"])
        backend = "deepep" if sheet is None or sheet.bridge_deepep else "hybridep"
        return {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": backend}
    return {"--moe-token-dispatcher-type": "allgather" if facts["stack.gathers_tokens"] else "alltoall"}


def _read_dispatcher(given: Given) -> dict[str, Any]:
    kind = given["--moe-token-dispatcher-type"]
    flexible = kind == "flex" or given["--moe-enable-deepep"]
    backend = given["--moe-flex-dispatcher-backend"] if flexible else kind
    return {
        "stack.dispatches_once_per_node": bool(flexible),
        "stack.gathers_tokens": not flexible and kind == "allgather" and bool(given["--num-experts"]),
        "recipe.dispatcher": backend,
    }


_DISPATCHER = EngineSetting(
    words=(
        Word(name="--moe-token-dispatcher-type", default="allgather"),
        Word(name="--moe-flex-dispatcher-backend", default="deepep"),
        Word(name="--moe-enable-deepep", kind="flag", default=False),
    ),
    fields=("stack.dispatches_once_per_node", "stack.gathers_tokens", "recipe.dispatcher"),
    write=_write_dispatcher,
    read=_read_dispatcher,
)


def _write_overlap(facts: Facts) -> dict[str, Any]:
    """Gradients under the backward pass, parameters under the forward pass; nothing with one replica."""
    if facts["layout.dp"] * facts["layout.cp"] == 1:
        return {}
    words = {"--overlap-grad-reduce": True} if facts["stack.gradient_overlap"] else {}
    gathers = facts["layout.zero_stage"] and facts["stack.parameter_overlap"]
    return words | ({"--overlap-param-gather": True} if words and gathers else {})


_OVERLAP = EngineSetting(
    words=(
        Word(name="--overlap-grad-reduce", kind="flag", default=False, states="said.overlap_gradients"),
        Word(name="--overlap-param-gather", kind="flag", default=False, states="said.overlap_parameters"),
    ),
    fields=("stack.gradient_overlap", "stack.parameter_overlap", "stack.fsdp_prefetch"),
    write=_write_overlap,
    read=lambda given: {
        "stack.gradient_overlap": given["--overlap-grad-reduce"],
        "stack.parameter_overlap": given["--overlap-param-gather"],
        "stack.fsdp_prefetch": given["--overlap-param-gather"],
    },
)


def overlaps_tensor(facts: Facts) -> bool:
    """Whether products and the messages of tensor parallelism run together, which needs split sequences."""
    wide = facts["layout.tp"] > 1 and facts["layout.sequence_parallel"]
    return bool(wide and facts["stack.tp_overlap_share"])


_TENSOR_OVERLAP = EngineSetting(
    words=(
        Word(
            name="--tp-comm-overlap",
            kind="flag",
            default=False,
            aliases=("--ub-tp-comm-overlap",),
            states="said.tp_overlap",
        ),
        Word(name="--tp-comm-bootstrap-backend", default="nccl"),
    ),
    fields=("stack.tp_overlap_share",),
    write=lambda facts: {"--tp-comm-overlap": True} if overlaps_tensor(facts) else {},
    read=lambda given: {"stack.tp_overlap_share": given["--tp-comm-overlap"]},
)


def _order(given: Given) -> Mapping[str, Any]:
    return {"layout.axis_order": DP_FIRST if given["--use-tp-pp-dp-mapping"] else DEFAULT_AXIS_ORDER}


def is_moe(facts: Facts) -> bool:
    """Whether the model has experts."""
    return bool(facts["model.num_experts"])


def _read_expert_tp(given: Given) -> dict[str, Any]:
    """Ranks that share an expert: as many as tp where nobody says; meaningless without experts."""
    ranks = given["--expert-tensor-parallel-size"]
    return {"layout.expert_tp": ranks if ranks is not None else given[TP] if given["--num-experts"] else 1}


OPTIMIZERS: Mapping[str, str] = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon"}
"""Optimizers by their names there; momentum of SGD is 0.9 without a word. Others are of its last releases."""


def _written_optimizer(facts: Facts) -> dict[str, Any]:
    """Its name; the usual one goes without a word."""
    name = facts.get("job.optimizer", "adamw")
    theirs = next((theirs for theirs, ours in OPTIMIZERS.items() if ours == name), None)
    return {} if name == "adamw" or theirs is None else {"--optimizer": theirs}


def _read_optimizer(given: Given) -> dict[str, Any]:
    """What its name says, where the cost model has it."""
    name = given["--optimizer"]
    facts = {"job.optimizer": OPTIMIZERS[name]} if name in OPTIMIZERS else {}
    return facts | {"recipe.optimizer": name}


LAYOUT_SETTINGS: tuple[EngineSetting, ...] = (
    value(TP, "layout.tp", default=1, aliases=("--model-parallel-size", "--intra-layer-model-parallel-size")),
    value(
        PP, "layout.pp", default=1, aliases=("--inter-layer-model-parallel-size", "--pipe-parallel-size")
    ),
    value(CP, "layout.cp", default=1),
    EngineSetting(words=(), fields=("layout.dp",), write=lambda _: {}, read=_data_parallel),
    _BATCH,
    value("--seq-length", "job.sequence_length", aliases=("--encoder-seq-length",)),
    PIPELINE,
    PREDICTION,
    value(EP, "layout.ep", default=1, when=is_moe),
    EngineSetting(
        words=(Word(name="--expert-tensor-parallel-size", kind="int", states="layout.expert_tp"),),
        fields=("layout.expert_tp",),
        write=lambda facts: (
            {"--expert-tensor-parallel-size": facts["layout.expert_tp"]} if is_moe(facts) else {}
        ),
        read=_read_expert_tp,
    ),
    flag("--sequence-parallel", "layout.sequence_parallel"),
    EngineSetting(
        words=(Word(name="--cp-comm-type", kind="list", default=("p2p",)),),
        fields=("layout.cp_kind",),
        write=lambda facts: (
            {"--cp-comm-type": [CP_KINDS[facts["layout.cp_kind"]]]} if facts["layout.cp"] > 1 else {}
        ),
        read=lambda given: {"layout.cp_kind": _cp_kind(given)},
    ),
    _SHARDING,
    EngineSetting(
        words=(Word(name="--use-tp-pp-dp-mapping", kind="flag", default=False),),
        fields=("layout.axis_order",),
        write=lambda facts: (
            {"--use-tp-pp-dp-mapping": True} if facts["layout.axis_order"] == DP_FIRST else {}
        ),
        read=_order,
    ),
    RECOMPUTE,
    _PRECISION,
    _OVERLAP,
    STATE,
    _TENSOR_OVERLAP,
    _DISPATCHER,
    PAIRING,
    EngineSetting(
        words=(Word(name="--no-overlap-p2p-communication", kind="flag", default=False),),
        fields=("stack.p2p_overlap",),
        write=lambda facts: (
            {} if facts["stack.p2p_overlap"] or facts["layout.pp"] < 3
            else {"--no-overlap-p2p-communication": True}
        ),
        read=lambda given: {"stack.p2p_overlap": not given["--no-overlap-p2p-communication"]},
    ),
    flag("--no-gradient-accumulation-fusion", "stack.accumulation_fused", on=False, off=True),
    EngineSetting(
        words=(
            Word(name="--attention-dropout", kind="float", default=0.1),
            Word(name="--hidden-dropout", kind="float", default=0.1),
        ),
        fields=("stack.dropout",),
        write=lambda facts: (
            {} if facts["stack.dropout"] else {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}
        ),
        read=lambda given: {
            "stack.dropout": bool(given["--attention-dropout"] or given["--hidden-dropout"])
        },
    ),
    EngineSetting(
        words=(Word(name="--optimizer", default="adam"),),
        fields=("job.optimizer", "recipe.optimizer"),
        write=_written_optimizer,
        read=_read_optimizer,
    ),
)  # fmt: skip
"""In the order in which they are written."""


def _cp_kind(given: Given) -> str:
    """The first of the kinds that layers have; a2a+p2p is a ring of groups."""
    named = {theirs: ours for ours, theirs in CP_KINDS.items()} | {
        "a2a+p2p": "ring",
        "allgather": "allgather",
    }
    kind = str(given["--cp-comm-type"][0])
    if kind not in named:
        raise ValueError(f"{kind!r} is none of {', '.join(CP_KINDS.values())}")
    return named[kind]
