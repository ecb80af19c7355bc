"""What Megatron-LM stops at of sharding, overlap, precision, recomputation and offloading, in its own words.

Read in `validate_args`, `TransformerConfig.__post_init__`, `OptimizerConfig` and
`DistributedDataParallelConfig` of megatron-core 0.19.2.
"""

from __future__ import annotations

from planner.engines.megatron_lm.modules import spelled_modules
from planner.engines.megatron_lm.stages import PP, chunks_of
from planner.engines.megatron_lm.state import AWARE, DTYPES, GRADS, OFFLOADED
from planner.engines.refusal import Stopped, WordLaw, excludes, needs_words, on
from planner.engines.setting import EngineSetting, Given, Word
from planner.law import stop

TP, EP = "--tensor-model-parallel-size", "--expert-model-parallel-size"

SHARDED, FSDP, TORCH_FSDP = "--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2"
REDUCED, GATHERED = "--overlap-grad-reduce", "--overlap-param-gather"
WITH_STEP = "--overlap-param-gather-with-optimizer-step"
CHECKPOINTS, UNFUSED = "--ckpt-format", "--no-gradient-accumulation-fusion"
UNTIED, OPTIMIZER = "--untie-embeddings-and-output-weights", "--optimizer"
BF16, FP16, FP8, FP4, RECIPE = "--bf16", "--fp16", "--fp8-format", "--fp4-format", "--fp8-recipe"
KEPT_FP8, KEPT_FP4, REUSED = (
    "--fp8-param-gather", "--fp4-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"
)  # fmt: skip
SUMMED, ENDS_BF16 = "--accumulate-allreduce-grads-in-fp32", "--first-last-layers-bf16"
GRANULARITY, METHOD, COUNT, MODULES, SELECTIVE, SPREAD = (
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-modules",
    "--recompute-activations", "--distribute-saved-activations",
)  # fmt: skip
OLDER = ("--checkpoint-activations", "--activations-checkpoint-method")
"""What said that whole layers are recomputed until 2022."""
OFFLOADED_LAYERS = "--cpu-offloading-num-layers"
SEQUENCES = "--sequence-parallel"
ALLOWED = (
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"
)  # fmt: skip


def _gathered(given: Given) -> Stopped:
    if not on(given, GATHERED):
        return None
    shards = any(on(given, word) for word in (SHARDED, FSDP)) or given[OPTIMIZER] == "dist_muon"
    if not shards:
        return f"{GATHERED} without {SHARDED}", f"add {SHARDED}, or leave {GATHERED} out"
    if not on(given, REDUCED):
        return f"{GATHERED} without {REDUCED}", f"add {REDUCED}, or leave {GATHERED} out"
    return None


def _with_step(given: Given) -> Stopped:
    if not on(given, WITH_STEP):
        return None
    lacking = [word for word in (SHARDED, GATHERED) if not on(given, word)]
    if lacking:
        return f"{WITH_STEP} without {' and '.join(lacking)}", f"add {' '.join(lacking)}"
    if chunks_of(given) == 1 or given[PP] == 1:
        return f"{WITH_STEP} without an interleaved schedule", f"leave {WITH_STEP} out"
    if (given[CHECKPOINTS] or "torch_dist") != "torch":
        return f"{WITH_STEP} with distributed checkpoints", f"add {CHECKPOINTS} torch, or leave it out"
    return None


def _megatron_fsdp(given: Given) -> Stopped:
    if not on(given, FSDP):
        return None
    if given[OPTIMIZER] not in ("sgd", "adam"):
        return f"{FSDP} with {OPTIMIZER} {given[OPTIMIZER]}", f"set {OPTIMIZER} adam, or leave {FSDP} out"
    kept = given[CHECKPOINTS]
    if kept != "fsdp_dtensor":
        has = "without" if kept is None else f"with {CHECKPOINTS} {kept}, not"
        return f"{FSDP} {has} {CHECKPOINTS} fsdp_dtensor", f"set {CHECKPOINTS} fsdp_dtensor"
    return None


def _torch_fsdp(given: Given) -> Stopped:
    if not on(given, TORCH_FSDP):
        return None
    for word in (PP, EP):
        if given[word] > 1:
            return f"{TORCH_FSDP} beside {word} {given[word]}", f"set {word} 1, or leave {TORCH_FSDP} out"
    beside = [word for word in (SHARDED, FP16) if on(given, word)]
    if beside:
        return f"{TORCH_FSDP} beside {' and '.join(beside)}", f"leave {' and '.join(beside)} out"
    lacking = [word for word in (UNFUSED, UNTIED) if not on(given, word)]
    if lacking:
        return f"{TORCH_FSDP} without {' and '.join(lacking)}", f"add {' '.join(lacking)}"
    if (given[CHECKPOINTS] or "torch_dist") not in ("torch_dist", "torch_dcp"):
        return f"{TORCH_FSDP} with {CHECKPOINTS} {given[CHECKPOINTS]}", f"set {CHECKPOINTS} torch_dist"
    return None


def _checkpoints(given: Given) -> Stopped:
    kept, tp, pp = given[CHECKPOINTS], given[TP], given[PP]
    if kept == "fsdp_dtensor" and not on(given, FSDP):
        return f"{CHECKPOINTS} fsdp_dtensor without {FSDP}", f"set {CHECKPOINTS} torch_dist, or add {FSDP}"
    if kept == "torch_dcp" and not on(given, TORCH_FSDP):
        return f"{CHECKPOINTS} torch_dcp without {TORCH_FSDP}", f"set {CHECKPOINTS} torch_dist"
    if kept == "torch_dcp" and max(tp, pp) > 1:
        return f"{CHECKPOINTS} torch_dcp at tp {tp}, pp {pp}", f"set {CHECKPOINTS} torch_dist"
    return None


def _eight_bits(given: Given) -> Stopped:
    if on(given, FP8) and on(given, FP4):
        return f"{FP8} beside {FP4}", f"keep {FP8}, or {FP4}"
    if on(given, KEPT_FP8) and not on(given, FP8):
        return f"{KEPT_FP8} without {FP8}", f"add {FP8}, or leave {KEPT_FP8} out"
    if on(given, KEPT_FP4) and not on(given, FP4):
        return f"{KEPT_FP4} without {FP4}", f"add {FP4}, or leave {KEPT_FP4} out"
    shards = any(on(given, word) for word in (SHARDED, FSDP, TORCH_FSDP))
    if on(given, KEPT_FP8) and not shards:
        return f"{KEPT_FP8} without {SHARDED}", f"add {SHARDED}"
    if on(given, FP8) and given[RECIPE] == "delayed" and on(given, ENDS_BF16):
        return f"{ENDS_BF16} with delayed scaling", f"set {RECIPE} tensorwise, or leave {ENDS_BF16} out"
    return None


def _halves(given: Given) -> Stopped:
    if on(given, BF16) and on(given, FP16):
        return f"{BF16} and {FP16} are both on", f"keep {BF16}, or {FP16}"
    return None


def _state(given: Given) -> Stopped:
    """Dtypes of gradients and states ask for the optimizer that has them, and that for its sharding."""
    narrow = [word for word in DTYPES if str(given[word]) not in ("fp32", "float32", "torch.float32")]
    if on(given, AWARE):
        if not (on(given, SHARDED) or on(given, FSDP)):
            return f"{AWARE} asks for {SHARDED}", f"add {SHARDED}"
        if given[OPTIMIZER] != "adam":
            return f"{AWARE} with {OPTIMIZER} {given[OPTIMIZER]}", f"set {OPTIMIZER} adam"
    elif narrow:
        return f"{' and '.join(narrow)}: dtypes ask for {AWARE}", f"add {AWARE}"
    if on(given, BF16) and on(given, SUMMED) and GRADS in narrow:
        return f"{SUMMED} beside {GRADS} {given[GRADS]}", f"leave {SUMMED} out"
    return None


def _offloaded(given: Given) -> Stopped:
    if on(given, OFFLOADED) and not on(given, AWARE):
        return f"{OFFLOADED} without {AWARE}", f"add {AWARE}"
    if on(given, OFFLOADED) and on(given, KEPT_FP8) and given[RECIPE] != "delayed":
        return f"{OFFLOADED} beside {KEPT_FP8} with {RECIPE} {given[RECIPE]}", f"leave {KEPT_FP8} out"
    return None


def _offloaded_layers(given: Given) -> Stopped:
    if not on(given, OFFLOADED_LAYERS):
        return None
    if given[PP] > 1:
        return f"{OFFLOADED_LAYERS} at pp {given[PP]}", f"set {PP} 1, or leave {OFFLOADED_LAYERS} out"
    word = next((word for word in (GRANULARITY, SELECTIVE) if on(given, word)), None)
    if word is not None:
        return f"{OFFLOADED_LAYERS} beside {word}", f"leave {word} out"
    return None


def _recompute(given: Given) -> Stopped:
    """Whole layers have a method and a number, parts of layers neither."""
    policy = "selective" if on(given, SELECTIVE) else given[GRANULARITY]
    if policy not in (None, "full", "selective"):
        return f"{GRANULARITY} {policy}", f"set {GRANULARITY} full or selective"
    if policy == "full":
        if given[METHOD] not in ("uniform", "block"):
            return f"{GRANULARITY} full without {METHOD}", f"add {METHOD} uniform"
        if given[COUNT] is None:
            return f"{GRANULARITY} full without {COUNT}", f"add {COUNT} 1"
    beside = [word for word in (METHOD, COUNT) if given[word] is not None]
    if policy == "selective" and beside:
        parts = SELECTIVE if on(given, SELECTIVE) else f"{GRANULARITY} selective"
        fix = f"leave {' and '.join(beside)} out, or {parts}"
        return f"{' and '.join(beside)} beside {parts}, which takes none", fix
    return None


def _idle(given: Given) -> Stopped:
    named = [word for word in (METHOD, COUNT, MODULES) if word in given and given[word] is not None]
    if not named or any(on(given, word) for word in (GRANULARITY, SELECTIVE, *OLDER)):
        return None
    fix = f"set {GRANULARITY}, or leave {' and '.join(named)} out"
    return f"{' and '.join(named)} without {GRANULARITY}: nothing is recomputed", fix


def _overruled(given: Given) -> Stopped:
    if not on(given, SELECTIVE) or given[GRANULARITY] != "full":
        return None
    return f"{SELECTIVE} overrules {GRANULARITY} full: parts of layers are recomputed", "keep one of them"


def _spread(given: Given) -> Stopped:
    if not on(given, SPREAD):
        return None
    if given[TP] == 1:
        return f"{SPREAD} at tp 1", f"leave {SPREAD} out"
    if given[GRANULARITY] != "full" or on(given, SELECTIVE):
        return f"{SPREAD} without {GRANULARITY} full", f"leave {SPREAD} out"
    if on(given, SEQUENCES):
        return f"{SPREAD} beside {SEQUENCES}, which spreads them already", f"leave {SPREAD} out"
    return None


def _modules(given: Given) -> Stopped:
    """Of parts of layers, those that the model has and the precision can repeat."""
    if not (on(given, SELECTIVE) or given[GRANULARITY] == "selective"):
        return None
    named = spelled_modules(given[MODULES] or ())
    unknown = [name for name in named if name not in ALLOWED]
    if unknown:
        return f"{MODULES} {' '.join(unknown)}", f"name some of {', '.join(ALLOWED[:7])}"
    if "moe_act" in named and not on(given, "--moe-grouped-gemm"):
        return f"{MODULES} moe_act without --moe-grouped-gemm", "add --moe-grouped-gemm"
    if "mla_up_proj" in named and not on(given, "--multi-latent-attention"):
        return f"{MODULES} mla_up_proj without --multi-latent-attention", "leave mla_up_proj out"
    overlapped = on(given, "--moe-shared-expert-overlap")
    if "shared_experts" in named and overlapped and given["--moe-shared-expert-intermediate-size"]:
        return f"{MODULES} shared_experts beside --moe-shared-expert-overlap", "leave shared_experts out"
    repeated = [name for name in ("moe_act", "layernorm") if name in named]
    if on(given, FP8) and given[RECIPE] == "delayed" and repeated:
        fix = f"set {RECIPE} blockwise, or leave {' and '.join(repeated)} out"
        return f"{MODULES} {' '.join(repeated)} with delayed scaling of eight bits", fix
    return None


STATE_REFUSALS: tuple[WordLaw, ...] = (
    stop(name="parameter-overlap", reads=(GATHERED, SHARDED, FSDP, REDUCED, OPTIMIZER), stops=_gathered),
    stop(name="step-overlap", reads=(WITH_STEP, SHARDED, GATHERED, CHECKPOINTS, PP), stops=_with_step),
    stop(name="megatron-fsdp", reads=(FSDP, CHECKPOINTS, OPTIMIZER), stops=_megatron_fsdp),
    stop(
        name="torch-fsdp",
        reads=(TORCH_FSDP, PP, EP, SHARDED, FP16, UNFUSED, UNTIED, CHECKPOINTS),
        stops=_torch_fsdp,
    ),
    stop(name="checkpoints", reads=(CHECKPOINTS, FSDP, TORCH_FSDP, TP, PP), stops=_checkpoints),
    stop(name="precision", reads=(FP16, BF16), stops=_halves),
    stop(
        name="eight-bits",
        reads=(KEPT_FP8, KEPT_FP4, FP8, FP4, RECIPE, ENDS_BF16, SHARDED, FSDP, TORCH_FSDP),
        stops=_eight_bits,
    ),
    needs_words("reused-buffers", REUSED, KEPT_FP8),
    excludes("reused-buffers", REUSED, WITH_STEP),
    stop(
        name="state-precision",
        reads=(AWARE, *DTYPES, SUMMED, SHARDED, FSDP, OPTIMIZER, BF16),
        stops=_state,
        says_of=("megatron-state-precision",),
    ),
    stop(
        name="offload",
        reads=(OFFLOADED, AWARE, KEPT_FP8, RECIPE),
        stops=_offloaded,
        says_of=("megatron-offload",),
    ),
    stop(name="offload", reads=(OFFLOADED_LAYERS, PP, GRANULARITY, SELECTIVE), stops=_offloaded_layers),
    stop(name="recompute", reads=(SELECTIVE, GRANULARITY, METHOD, COUNT), stops=_recompute),
    stop(name="recompute", reads=(SELECTIVE, GRANULARITY), stops=_overruled, ground="overruled"),
    stop(
        name="recompute-idle",
        reads=(METHOD, COUNT, MODULES, GRANULARITY, SELECTIVE, *OLDER),
        stops=_idle,
        ground="overruled",
    ),
    stop(name="recompute", reads=(SPREAD, GRANULARITY, SEQUENCES, TP, SELECTIVE), stops=_spread),
    stop(
        name="recompute-modules",
        reads=(MODULES, GRANULARITY, SELECTIVE, RECIPE, FP8),
        stops=_modules,
        says_of=("megatron-recompute-modules",),
    ),
)

STATE_WORDS = EngineSetting(
    words=(
        *(
            Word(name=name, kind="flag", default=False)
            for name in (WITH_STEP, KEPT_FP8, KEPT_FP4, REUSED, ENDS_BF16, SPREAD)
        ),
        Word(name=OFFLOADED_LAYERS, kind="int", default=0, states="said.offload_layers"),
    ),
    fields=(),
    write=lambda _: {},
    read=lambda _: {},
)
"""Words that decide no field."""
