"""Megatron-Bridge (NeMo): its contract, and a plan as overrides of a recipe's `ConfigContainer`.

It configures megatron-core, so its settings are Megatron-LM's under other names; the model is the recipe's.
Names are those of ``megatron/bridge/training/config.py`` and of megatron-core's configuration classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.engines.contract import Contract
from planner.engines.dotted import assignments
from planner.engines.even_layers import divided
from planner.engines.fields import Facts
from planner.engines.limit import Variable, adapter_limit, compression_limit, offload_limit, optimizer_limit
from planner.engines.megatron_lm.contract import BUILT_IN, ENVIRONMENT, OTHER_WORDS, RUNS, SAVING
from planner.engines.megatron_lm.kernels import (
    ATTENTION,
    BACKEND,
    CAPTURED,
    FUSED_LOSS,
    GRAPHS,
    GROUPED,
    IMPLEMENTATION,
    KERNEL_LIMITS,
    KERNELS,
    LOSS_KERNEL,
    OLDER_CAPTURED,
    OLDER_GRAPHS,
    PRODUCTS,
    SCOPE,
    STASH,
    TRACKER,
    UNCHECKED,
    VERSION,
)
from planner.engines.megatron_lm.layout import LAYOUT_SETTINGS, is_moe
from planner.engines.megatron_lm.limits import LIMITS
from planner.engines.megatron_lm.pairing import FLAG, UNPRICED
from planner.engines.megatron_lm.refused_experts import EXPERT_REFUSALS
from planner.engines.megatron_lm.refused_state import STATE_REFUSALS
from planner.engines.megatron_lm.stages import PREDICTED
from planner.engines.megatron_lm.state import ALL_OFFLOADED, DTYPES, FRACTION, OFFLOADED
from planner.engines.refusal import WordLaw
from planner.engines.setting import EngineSetting, Given, Word, value
from planner.engines.switch_words import switch_words
from planner.plan import Plan

_NAMES = {
    "--tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "--context-parallel-size": "model.context_parallel_size",
    "--expert-model-parallel-size": "model.expert_model_parallel_size",
    "--expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--seq-length": "model.seq_length",
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--account-for-embedding-in-pipeline-split": "model.account_for_embedding_in_pipeline_split",
    "--account-for-loss-in-pipeline-split": "model.account_for_loss_in_pipeline_split",
    "--sequence-parallel": "model.sequence_parallel",
    "--cp-comm-type": "model.cp_comm_type",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--use-megatron-fsdp": "dist.use_megatron_fsdp",
    "--data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "--ckpt-format": "checkpoint.ckpt_format",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "--recompute-granularity": "model.recompute_granularity",
    "--recompute-method": "model.recompute_method",
    "--recompute-num-layers": "model.recompute_num_layers",
    "--recompute-modules": "model.recompute_modules",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "--overlap-moe-expert-parallel-comm": "comm_overlap.overlap_moe_expert_parallel_comm",
    "--delay-wgrad-compute": "comm_overlap.delay_wgrad_compute",
    "--moe-shared-expert-overlap": "model.moe_shared_expert_overlap",
    "--moe-token-dispatcher-type": "model.moe_token_dispatcher_type",
    "--moe-flex-dispatcher-backend": "model.moe_flex_dispatcher_backend",
    "--moe-enable-deepep": "model.moe_enable_deepep",
    "--attention-dropout": "model.attention_dropout",
    "--hidden-dropout": "model.hidden_dropout",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    OFFLOADED: "optimizer.optimizer_cpu_offload",
    FRACTION: "optimizer.optimizer_offload_fraction",
    **{name: f"optimizer.{name.removeprefix('--').replace('-', '_')}" for name in DTYPES},
    "--save-interval": "checkpoint.save_interval",
    "--mtp-num-layers": "model.mtp_num_layers",
    "--num-layers": "model.num_layers",
    "--num-experts": "model.num_moe_experts",
    BACKEND: "model.attention_backend",
    VERSION: "model.flash_attention_version",
    IMPLEMENTATION: "model.transformer_impl",
    GRAPHS: "model.cuda_graph_impl",
    CAPTURED: "model.cuda_graph_modules",
    OLDER_CAPTURED: "model.cuda_graph_scope",
    **{name: f"model.{name.removeprefix('--').replace('-', '_')}" for name in OLDER_GRAPHS},
    TRACKER: "model.use_te_rng_tracker",
    STASH: "model.moe_paged_stash",
    FUSED_LOSS: "model.cross_entropy_loss_fusion",
    LOSS_KERNEL: "model.cross_entropy_fusion_impl",
    GROUPED: "model.moe_grouped_gemm",
}
_TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}
_MEMBER = "AttnBackend."
"""Of the enumeration that has a name for each kernel of attention."""
_OPPOSITES = {
    "--grad-reduce-in-bf16": "ddp.grad_reduce_in_fp32",
    "--no-overlap-p2p-communication": "model.overlap_p2p_comm",
    "--no-gradient-accumulation-fusion": "model.gradient_accumulation_fusion",
}
_ALIASES = {
    "model.seq_length": ("dataset.seq_length", "dataset.sequence_length"),
    "dist.use_megatron_fsdp": ("ddp.use_megatron_fsdp",),
    "comm_overlap.overlap_moe_expert_parallel_comm": ("model.overlap_moe_expert_parallel_comm",),
    "comm_overlap.delay_wgrad_compute": ("model.delay_wgrad_compute",),
    "ddp.overlap_grad_reduce": ("comm_overlap.overlap_grad_reduce",),
    "ddp.overlap_param_gather": ("comm_overlap.overlap_param_gather",),
    "model.overlap_p2p_comm": ("comm_overlap.overlap_p2p_comm",),
}
_ALSO = {"--seq-length": "dataset.seq_length"}
"""What the data must be told too: `ConfigContainer.validate` holds both against each other."""
_FOR_ALL_LAYERS = ("--cp-comm-type",)
"""A list of these has one entry for each layer, a text is for all of them."""
_RECIPES = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
_NAMED_RECIPES = {theirs: ours for ours, theirs in _RECIPES.items()} | {
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8",
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": "fp8",
    "fp16_with_fp8_delayed_scaling_mixed": "fp8",
}


def _renamed(word: Word) -> Word:
    """A word of Megatron-LM by its name here; one that has none keeps its own and is never written."""
    if word.name in _OPPOSITES:
        name = _OPPOSITES[word.name]
        return Word(name=name, kind="flag", default=not word.default, aliases=_ALIASES.get(name, ()))
    name = _NAMES.get(word.name, word.name)
    return replace(word, name=name, aliases=_ALIASES.get(name, ()))


def _as_here(setting: EngineSetting) -> EngineSetting:
    """A setting of Megatron-LM under its names here."""
    theirs = {word.name: word for word in setting.words}

    def written(facts: Facts) -> Mapping[str, Any]:
        megatron = setting.write(facts)
        words = {
            _NAMES[name]: _TORCH.get(value, value) if name in DTYPES else value
            for name, value in megatron.items()
            if name in _NAMES
        }
        if PREDICTED in theirs and is_moe(facts):  # whose recipes train those that the model has
            words.setdefault(_NAMES[PREDICTED], None)
        words |= {_ALSO[name]: megatron[name] for name in _ALSO if name in megatron}
        if BACKEND in megatron:
            words[_NAMES[BACKEND]] = f"{_MEMBER}{megatron[BACKEND]}"
        words |= {_NAMES[name]: megatron[name][0] for name in _FOR_ALL_LAYERS if name in megatron}
        if FLAG in megatron and facts["layout.pp"] > 1:  # asked for beside a layout string that says it too
            words["model.virtual_pipeline_model_parallel_size"] = facts["layout.virtual_stages"]
        return words | {
            _OPPOSITES[name]: not megatron.get(name, False) for name in theirs if name in _OPPOSITES
        }

    def read_here(given: Given) -> Mapping[str, Any]:
        return setting.read(as_megatron(given))

    return replace(
        setting,
        words=tuple(map(_renamed, setting.words)),
        write=written,
        read=read_here,
        granted=lambda given: tuple(map(_in_bridge_names, setting.granted(as_megatron(given)))),
        says=lambda given: setting.says(as_megatron(given)),
    )


def as_megatron(given: Given) -> Given:
    """The same words by Megatron-LM's names."""
    ours = {here: name for name, here in _NAMES.items()}
    values: dict[str, Any] = {ours.get(name, name): value for name, value in given.values.items()}
    for name, here in _OPPOSITES.items():
        if here in given.values:
            values[name] = not given.values[here]
    recipe = given.values.get("mixed_precision", "")
    values["--fp16" if recipe.startswith("fp16") else "--bf16"] = True
    if "delayed" not in recipe:  # the recipe that a configuration of sixteen bits has too
        values["--fp8-recipe"] = "tensorwise"
    return Given(values, _MEGATRON_WORDS)


_MEGATRON_WORDS = {
    word.name: word
    for setting in (*LAYOUT_SETTINGS, *KERNELS, *OTHER_WORDS, SAVING)
    for word in setting.words
} | {
    "--num-layers": Word(name="--num-layers", kind="int"),
    "--num-experts": Word(name="--num-experts", kind="int"),
}


def _read_precision(given: Given) -> dict[str, Any]:
    name = given["mixed_precision"]
    if name not in _NAMED_RECIPES:
        raise ValueError(f"{name!r} is none of {', '.join(_NAMED_RECIPES)}")
    return {"job.precision": _NAMED_RECIPES[name], "recipe.fp8_recipe": name}


_PRECISION = EngineSetting(
    words=(Word(name="mixed_precision", default="bf16_mixed", states="said.precision"),),
    fields=("job.precision", "recipe.fp8_recipe"),
    write=lambda facts: {"mixed_precision": _RECIPES[facts["job.precision"]]},
    read=_read_precision,
)
_STATIC_WORDS: Mapping[str, Any] = {
    "model.cuda_graph_impl": "full_iteration",
    "model.moe_paged_stash": True,
    "model.moe_expert_rank_capacity_factor": 1.5,
    "model.moe_flex_dispatcher_backend": "hybridep",
    "model.use_transformer_engine_op_fuser": True,
    "model.use_te_rng_tracker": True,
    "rng.te_rng_tracker": True,
    "rerun_state_machine.check_for_nan_in_loss": False,
}
"""What graphs of a whole step need, as ``perf_recipes/qwen/common.py`` of 0.6.2 sets it."""
_STATIC = EngineSetting(
    words=(
        Word(name="model.moe_paged_stash", kind="flag", default=False),
        Word(name="model.moe_expert_rank_capacity_factor", kind="float"),
        Word(name="model.use_transformer_engine_op_fuser", kind="flag", default=False),
    ),
    fields=("stack.static_experts_blackwell",),
    write=lambda facts: _STATIC_WORDS if facts["stack.static_experts_blackwell"] and is_moe(facts) else {},
    read=lambda given: {
        "stack.static_experts_blackwell": given["model.cuda_graph_impl"] == "full_iteration"
        and given["model.moe_paged_stash"]
    },
    switch="expert_counts",
)

_UNCHECKED, _TRACKED = "rerun_state_machine.check_for_nan_in_loss", "rng.te_rng_tracker"


def _write_scope(facts: Facts) -> Mapping[str, Any]:
    """What is replayed, and what a container asks for beside it."""
    words = dict(SCOPE.write(facts))
    unchecked = words.pop(UNCHECKED, False)
    here = {_NAMES[name]: value for name, value in words.items()}
    here |= {_TRACKED: True} if here else {}
    return here | ({_UNCHECKED: False} if unchecked else {})


_SCOPE = replace(
    _as_here(SCOPE),
    words=(
        *(_renamed(word) for word in SCOPE.words if word.name != UNCHECKED),
        Word(name=_TRACKED, kind="flag", default=False),
        Word(name=_UNCHECKED, kind="flag", default=True),
    ),
    write=_write_scope,
)


def _loss(given: Given) -> str:
    """What the recipe's loss is: fused unless a word says otherwise."""
    fused = given[_NAMES[FUSED_LOSS]] and given[_NAMES[LOSS_KERNEL]] == "te"
    return "fused_cross_entropy" if fused else "whole"


def _of_loss(given: Given) -> tuple[str, ...]:
    """That the profile has one kernel, whatever computes the loss."""
    return (
        () if _loss(given) != "whole" else (f"a loss without {_NAMES[LOSS_KERNEL]} te is priced as with it",)
    )


_LOSS = switch_words(
    "loss",
    words=(
        Word(name=_NAMES[FUSED_LOSS], kind="flag", default=True),
        Word(name=_NAMES[LOSS_KERNEL], default="native"),
    ),
    write=lambda _value, _facts: {},
    read=_loss,
    untold={
        "chunked": "it has no loss in chunks",
        "fused_linear": "it has no kernel of head and loss in one",
        "chunked_logprobs": "it computes no log-probabilities of a policy",
    },
    granted=_of_loss,
)
"""The recipe's where nobody says; the usual profile has the kernel of Transformer Engine."""
_GROUPED = replace(
    _as_here(PRODUCTS), write=lambda facts: {"model.moe_grouped_gemm": True} if is_moe(facts) else {}
)
"""Products of all experts in one, as they are priced, and as the recomputation of ``moe_act`` asks for."""


def _refused_here(law: WordLaw) -> WordLaw:
    """What megatron-core's configurations refuse, under the names here."""

    def says(given: Given) -> tuple[str, str]:
        message, hint, *_ = law.says(as_megatron(given))
        return _in_bridge_names(message), _in_bridge_names(hint)

    reads = tuple(_NAMES.get(word, word) for word in law.reads)
    return replace(law, reads=reads, broken=lambda given: law.broken(as_megatron(given)), says=says)


def _in_bridge_names(text: str) -> str:
    """A text with the names here in place of Megatron-LM's."""
    return re.sub(r"--[a-z0-9-]+", lambda option: _NAMES.get(option.group(), option.group()), text)


_SHARED = ("state-precision", "expert-overlap")
"""Refusals of configurations that both have; the others are of Megatron-LM's arguments."""
SETTINGS = (
    *(_as_here(setting) for setting in (*LAYOUT_SETTINGS, SAVING) if "job.precision" not in setting.fields),
    _PRECISION,
    _as_here(ATTENTION),
    _SCOPE,
    _STATIC,
    _LOSS,
    _GROUPED,
    value("model.num_layers", "model.num_layers"),
    value("model.num_moe_experts", "model.num_experts", when=lambda facts: facts["model.num_experts"] > 0),
)

BRIDGE = Contract(
    engine="megatron-bridge",
    title="Megatron-Bridge",
    package="megatron-bridge",
    releases=("0.3", "0.6"),
    stacks=(
        "megatron-bridge",
        "megatron-bridge-26.06",
        "megatron-bridge-modules",
        "megatron-bridge-overlap",
        "megatron-core",
    ),
    settings=SETTINGS,
    limits=(
        adapter_limit("Megatron-Bridge"),
        compression_limit("Megatron-Bridge"),
        offload_limit("Megatron-Bridge", (ALL_OFFLOADED,)),
        optimizer_limit("Megatron-Bridge"),
        *(limit for limit in LIMITS if limit.name != "expert-groups"),
        *KERNEL_LIMITS,
    ),
    refusals=tuple(_refused_here(law) for law in STATE_REFUSALS + EXPERT_REFUSALS if law.name in _SHARED),
    runs=RUNS,
    recomputes="per-chunk",
    even_layers=divided,
    environment=ENVIRONMENT,
    built_in=BUILT_IN,
    unpriced={_NAMES[name]: effect for name, effect in UNPRICED.items()},
    source="megatron/bridge/training/config.py and comm_overlap.py of the megatron-bridge 0.6.2 wheel",
)  # fmt: skip


def render(words: Mapping[str, Any], environment: tuple[Variable, ...]) -> str:
    """A function that overrides a recipe."""
    exports = [f"# export {variable.name}={variable.value}: {variable.why}" for variable in environment]
    body = []
    if any(name.startswith("comm_overlap.") for name in words):
        tensors = "comm_overlap.tp_comm_overlap" in words
        body.append("    from megatron.bridge.training.comm_overlap import CommOverlapConfig\n")
        body.append(
            f"    cfg.comm_overlap = cfg.comm_overlap or CommOverlapConfig(tp_comm_overlap={tensors})"
        )
    if any(_is_dtype(value) for value in words.values()):
        body.append("    import torch\n")
    if _NAMES[BACKEND] in words:
        body.append("    from megatron.core.transformer.enums import AttnBackend\n")
    body += [
        f"    cfg.{name} = {value if _is_dtype(value) or _is_member(value) else repr(value)}"
        for name, value in words.items()
    ]
    head = "# Megatron-Bridge overrides: call apply_plan with the ConfigContainer of your model's recipe"
    return "\n".join([
        head, *exports, "", "", "def apply_plan(cfg):",
        '    """Override a recipe with the plan\'s parallelism, batch and overlap."""', *body,
        "    return cfg\n",
    ])  # fmt: skip


def _is_dtype(value: Any) -> bool:
    return value in _TORCH.values() if isinstance(value, str) else False


def _is_member(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(_MEMBER)


def parse(text: str, _: Contract) -> dict[str, Any]:
    """What such a function assigns."""
    assigned = assignments(text, "cfg")
    return {name: value for name, value in assigned.items() if name != "comm_overlap"}


def notes(plan: Plan) -> tuple[str, ...]:
    """What is left to the user."""
    return (f"take the recipe of {plan.request.model.name}: a model is the recipe's, not the overrides'",)
