"""Megatron-LM's words for kernels: of attention, of the loss, of experts, and graphs that replay them.

Read in ``arguments.py``, ``transformer_config.py`` and ``cuda_graph_config.py`` of megatron-core 0.19.2;
words that went before it are read, and not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.switches.switch import switch
from planner.engines.fields import Facts
from planner.engines.limit import limit
from planner.engines.megatron_lm.modules import spelled_modules
from planner.engines.refusal import Stopped, WordLaw, on
from planner.engines.setting import EngineSetting, Given, Word
from planner.engines.switch_words import switch_words
from planner.law import stop
from planner.plan import Problem

BACKEND, VERSION, IMPLEMENTATION, OLDER_FLASH = (
    "--attention-backend", "--flash-attention-version", "--transformer-impl", "--use-flash-attn",
)  # fmt: skip
GRAPHS, CAPTURED, OLDER_CAPTURED = "--cuda-graph-impl", "--cuda-graph-modules", "--cuda-graph-scope"
OLDER_GRAPHS = {"--enable-cuda-graph": "local", "--external-cuda-graph": "transformer_engine"}
TRACKER, UNCHECKED, STASH = "--te-rng-tracker", "--no-check-for-nan-in-loss-and-grad", "--moe-paged-stash"
RANK_CAPACITY, OP_FUSER = "--moe-expert-rank-capacity-factor", "--use-transformer-engine-op-fuser"
FUSED_LOSS, LOSS_KERNEL = "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"
GROUPED, OLDER_GROUPED = "--moe-grouped-gemm", "--moe-use-legacy-grouped-gemm"
WHOLE_STEP = "full_iteration"
_PINNED = {"fa2": 2, "fa3": 3, "fa4": 4}
_KERNELS = {"unfused": "unfused", "local": "unfused", "fused": "cudnn"}
_STOPPED_LOSS = "megatron-core 0.19.2 stops at --cross-entropy-fusion-impl te"


def _name(value: object) -> str:
    """A member of an enumeration by its name, as arguments and logs have it."""
    return str(value).rpartition(".")[2].lower()


def _attention(given: Given) -> str | None:
    """The kernel: of flash the version that is named, or the second, which Transformer Engine asks for."""
    backend = _name(given[BACKEND])
    if backend == "flash":
        version = given[VERSION] or 2
        return next(name for name, number in _PINNED.items() if number == version)
    if backend == "auto" and _name(given[IMPLEMENTATION]) == "local":  # its own DotProductAttention
        return "fa2" if on(given, OLDER_FLASH) else "unfused"
    if backend == "auto":
        return "native"
    if backend not in _KERNELS:
        raise ValueError(f"{backend!r} is none of auto, flash, fused, unfused, local")
    return _KERNELS[backend]


def _write_attention(value: str, _: Facts) -> Mapping[str, Any]:
    if value == "unfused":
        return {BACKEND: "unfused"}
    return {BACKEND: "flash", VERSION: _PINNED[value]} if value in _PINNED else {}


def _unnamed_version(given: Given) -> tuple[str, ...]:
    if _name(given[BACKEND]) != "flash" or given[VERSION]:
        return ()
    return (f"{BACKEND} flash is priced as FlashAttention-2: no {VERSION} is named",)


ATTENTION = switch_words(
    "attention_kernel",
    words=(
        Word(name=BACKEND, default="auto"),
        Word(name=VERSION, kind="int"),
        Word(name=IMPLEMENTATION, default="transformer_engine"),
        Word(name=OLDER_FLASH, kind="flag", default=False),
    ),
    write=_write_attention,
    read=_attention,
    untold={"sdpa": "its attention is not torch's", "triton": "it has no kernel of Triton"},
    granted=_unnamed_version,
)


def _capture(given: Given) -> str:
    """What captures graphs, in today's words."""
    older = next((kind for word, kind in OLDER_GRAPHS.items() if on(given, word)), "")
    return older or _name(given[GRAPHS])


def _captured(given: Given) -> tuple[str, ...]:
    """Modules that are named to be captured."""
    return tuple(map(_name, spelled_modules(given[CAPTURED] or given[OLDER_CAPTURED] or ())))


def _graphs(given: Given) -> str | None:
    """What is replayed; open where a whole step is beside experts whose counts stay on the GPU."""
    kind, named = _capture(given), _captured(given)
    if WHOLE_STEP in (kind, *named):
        return None if on(given, STASH) else WHOLE_STEP
    if kind == "none":
        return "none"
    modules = switch("cuda_graph_scope").modules
    known = modules.of if modules is not None else ()
    scope = {name for name in named if name in known}
    if kind == "local" and scope & {"moe_router", "moe_preprocess"}:
        scope |= {"moe_router", "moe_preprocess"}
    if set(named) <= {"full", "full_iteration_inference"}:  # the whole layer
        scope = {"attn", "mlp", *(("moe",) if on(given, "--num-experts") else ())}
    return ";".join(name for name in known if name in scope) or "none"


def _write_graphs(value: str, _: Facts) -> Mapping[str, Any]:
    if value in ("", "none"):
        return {}
    if value == WHOLE_STEP:
        return {GRAPHS: WHOLE_STEP, TRACKER: True, UNCHECKED: True}
    return {GRAPHS: "transformer_engine", CAPTURED: value.split(";"), TRACKER: True}


def _uncaptured(given: Given) -> tuple[str, ...]:
    """Modules that are captured and not priced, and modules that nothing captures."""
    if not (named := _captured(given)):
        return ()
    if _capture(given) == "none" and WHOLE_STEP not in named:
        return (f"{CAPTURED} {' '.join(named)} captures nothing without {GRAPHS}",)
    return ("graphs of mamba are priced as launches",) if "mamba" in named else ()


SCOPE = switch_words(
    "cuda_graph_scope",
    words=(
        Word(name=GRAPHS, default="none"),
        Word(name=CAPTURED, kind="list", default=()),
        Word(name=OLDER_CAPTURED, kind="list", default=()),
        *(Word(name=name, kind="flag", default=False) for name in OLDER_GRAPHS),
        Word(name=TRACKER, kind="flag", default=False),
        Word(name=UNCHECKED, kind="flag", default=False),
    ),
    write=_write_graphs,
    read=_graphs,
    granted=_uncaptured,
)


def _write_counts(value: str, facts: Facts) -> Mapping[str, Any]:
    """Graphs of a step whose experts take what comes, up to a share of all tokens, and ask no host."""
    if value != "device" or not facts["model.num_experts"]:
        return {}
    return {
        **_write_graphs(WHOLE_STEP, facts), STASH: True, RANK_CAPACITY: 1.5, OP_FUSER: True,
        "--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "hybridep",
    }  # fmt: skip


def _counts(given: Given) -> str:
    whole = WHOLE_STEP in (_capture(given), *_captured(given))
    return "device" if whole and on(given, STASH) else "host"


def _fused_alone(given: Given) -> tuple[str, ...]:
    alone = on(given, OP_FUSER) and _counts(given) == "host"
    return (f"{OP_FUSER} fuses products with what follows them: not priced",) if alone else ()


COUNTS = switch_words(
    "expert_counts",
    words=(
        Word(name=STASH, kind="flag", default=False),
        Word(name=RANK_CAPACITY, kind="float"),
        Word(name=OP_FUSER, kind="flag", default=False),
    ),
    write=_write_counts,
    read=_counts,
    granted=_fused_alone,
)


def _loss(given: Given) -> str:
    fused = on(given, FUSED_LOSS) and _name(given[LOSS_KERNEL]) == "te"
    return "fused_cross_entropy" if fused else "whole"


def _of_loss(given: Given) -> tuple[str, ...]:
    """What a fused loss is, beside its price."""
    if not on(given, FUSED_LOSS):
        return ()
    if _loss(given) == "whole":
        return (f"{FUSED_LOSS} of torch's own compiler is priced as without",)
    return (f"{LOSS_KERNEL} te is priced; megatron-core 0.19.2 stops at it, earlier ones run it",)


LOSS = switch_words(
    "loss",
    words=(
        Word(name=FUSED_LOSS, kind="flag", default=False),
        Word(name=LOSS_KERNEL, default="native"),
    ),
    write=lambda _value, _facts: {},
    read=_loss,
    untold={
        "fused_cross_entropy": _STOPPED_LOSS,
        "chunked": "it has no loss in chunks",
        "fused_linear": "it has no kernel of head and loss in one",
        "chunked_logprobs": "it computes no log-probabilities of a policy",
    },
    granted=_of_loss,
)


def _grouped(given: Given) -> str | None:
    """Products of experts: without experts nothing; one kernel for all until it went, else one by one."""
    if not (on(given, "--num-experts") or on(given, GROUPED)):
        return None
    if on(given, GROUPED) and (on(given, OLDER_GROUPED) or _name(given[IMPLEMENTATION]) == "local"):
        return "cutlass"
    return "te_grouped" if on(given, GROUPED) else "loop"


PRODUCTS = switch_words(
    "grouped_experts",
    words=(
        Word(name=GROUPED, kind="flag", default=False),
        Word(name=OLDER_GROUPED, kind="flag", default=False),
    ),
    write=lambda _value, _facts: {},  # the words of experts ask for it, as recomputation of moe_act needs
    read=_grouped,
    untold=dict.fromkeys(
        ("grouped_mm", "cutlass"), "its kernel for the products of all experts went before 0.19"
    ),
)
UNPRICED_KERNELS: Mapping[str, str] = {
    "--no-masked-softmax-fusion": "computes the softmax of unfused attention in several kernels",
    "--no-bias-swiglu-fusion": "computes the gated activation in kernels of its own",
    "--no-bias-dropout-fusion": "computes bias, dropout and residual in kernels of their own",
    "--no-rope-fusion": "computes rotary positions in kernels of their own",
    "--no-persist-layer-norm": "computes norms in another kernel",
    "--disable-jit-fuser": "fuses nothing by torch's compiler",
    "--moe-permute-fusion": "orders tokens of experts in one kernel",
    "--moe-router-fusion": "chooses experts in one kernel",
}
"""Words of kernels that no term of the cost model tells apart, by their effect."""
KERNEL_WORDS = EngineSetting(
    words=tuple(Word(name=name, kind="flag", default=False) for name in UNPRICED_KERNELS),
    fields=(),
    write=lambda _: {},
    read=lambda _: {},
)
KERNELS: tuple[EngineSetting, ...] = (ATTENTION, SCOPE, COUNTS, LOSS, PRODUCTS)
"""Settings of switches."""


def _scope(s: Problem) -> tuple[str, ...]:
    return s.stack.timing.graphed_modules


def _foreign(s: Problem) -> str:
    """Why a module of the scope is none that can be captured in this model; empty where all can."""
    scope, moe = {*_scope(s)}, s.model.is_moe
    experts = sorted(scope & {"moe", "moe_router", "moe_preprocess"})
    if experts and not moe:
        return f"{experts[0]} in {s.model.name}, which has no experts"
    if "mlp" in scope and moe and not s.model.num_dense_layers:
        return f"mlp in {s.model.name}, whose layers all have experts"
    if "moe" in scope:
        return "moe, which asks for a capacity of experts that fills up"
    if "moe_preprocess" in scope and "moe_router" not in scope:
        return "moe_preprocess without moe_router"
    return ""


def _whole_broken(s: Problem, _: LayoutTable) -> bool:
    return s.stack.timing.cuda_graphs and s.model.is_moe and not s.stack.timing.drops_tokens


def _counts_broken(s: Problem, _: LayoutTable) -> bool:
    timing = s.stack.timing
    return timing.static_experts_blackwell and s.model.is_moe and not timing.dispatches_once_per_node


def _unfused_context(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return not s.stack.timing.flash_attention and np.asarray(t.cp > 1, dtype=bool)


def _says_context(_: Problem, x: ParallelLayout) -> tuple[str, str]:
    return f"cp = {x.cp}: Transformer Engine splits fused attention alone", "set cp=1"


KERNEL_LIMITS = (
    limit(
        name="graphed-modules",
        reads=(),
        broken=lambda s, _: bool(_foreign(s)),
        says=lambda s, _: (
            f"cuda_graph_scope {';'.join(_scope(s))}: {CAPTURED} takes no {_foreign(s)}",
            "leave it out of switch.cuda_graph_scope",
        ),
    ),
    limit(
        name="graph-of-experts",
        reads=(),
        broken=_whole_broken,
        says=lambda s, _: (
            f"cuda_graph_scope {WHOLE_STEP}: the host asks how many tokens an expert of {s.model.name} gets",
            "use --set switch.cuda_graph_scope=attn;moe_router",
        ),
    ),
    limit(
        name="counts-on-device",
        reads=(),
        broken=_counts_broken,
        says=lambda *_: (
            f"expert_counts device: {STASH} is of HybridEP, which sends a token once to a node",
            "use --stack megatron-bridge",
        ),
    ),
    limit(name="unfused-context", reads=("cp",), broken=_unfused_context, says=_says_context),
)


def _twice(given: Given) -> Stopped:
    """Two words for one thing, an old one and that of today."""
    older = [word for word in OLDER_GRAPHS if on(given, word)]
    if len(older) > 1:
        return f"{older[0]} beside {older[1]}", f"keep {older[0]}, or {older[1]}"
    if older and _name(given[GRAPHS]) != "none":
        return f"{older[0]} beside {GRAPHS} {given[GRAPHS]}", f"leave {older[0]} out"
    if given[CAPTURED] and given[OLDER_CAPTURED]:
        return f"{OLDER_CAPTURED} beside {CAPTURED}", f"leave {OLDER_CAPTURED} out"
    return None


def _unchecked(given: Given) -> Stopped:
    if WHOLE_STEP not in (_capture(given), *_captured(given)) or on(given, UNCHECKED):
        return None
    return f"graphs of a step without {UNCHECKED}", f"add {UNCHECKED}"


def _repeated(given: Given) -> Stopped:
    per_layer = _capture(given) in ("local", "transformer_engine") and WHOLE_STEP not in _captured(given)
    if not per_layer or given["--recompute-granularity"] != "full" or on(given, "--recompute-activations"):
        return None
    return "--recompute-granularity full beside graphs of layers", "set --recompute-granularity selective"


_CAPTURES = (GRAPHS, CAPTURED, OLDER_CAPTURED, *OLDER_GRAPHS)
KERNEL_REFUSALS: tuple[WordLaw, ...] = (
    stop(name="graphs", reads=(*OLDER_GRAPHS, GRAPHS, CAPTURED, OLDER_CAPTURED), stops=_twice),
    stop(name="graphs", reads=(*_CAPTURES, UNCHECKED), stops=_unchecked),
    stop(
        name="graphs",
        reads=("--recompute-granularity", "--recompute-activations", *_CAPTURES),
        stops=_repeated,
    ),
)
"""What it stops at of graphs, in its own words."""


def captures_modules(facts: Facts) -> bool:
    """Whether graphs of modules are captured, by Transformer Engine."""
    return bool(facts["stack.graphed_modules"])
