"""What Megatron-LM stops at of degrees, batches, stages and layers, in its own words.

Read in `validate_args`, `TransformerConfig.__post_init__`, `get_num_layers_to_build`,
`PipelineParallelLayerLayout` and `initialize_model_parallel` of megatron-core 0.19.2.
"""

from __future__ import annotations

import math

from costmodel.parallel import divisions
from planner.engines.megatron_lm.stage_string import stages_of_string
from planner.engines.megatron_lm.stages import (
    ACCOUNTED,
    CHUNKS,
    EACH,
    LAYERS,
    OUTER_STAGES,
    PP,
    PREDICTED,
    STRING,
    chunks_of,
    other_modules,
    other_positions,
    slots_of,
)
from planner.engines.refusal import Stopped, WordLaw, on
from planner.engines.setting import EngineSetting, Given, Word
from planner.law import stop

TP, CP, EP = (f"--{name}-parallel-size" for name in ("tensor-model", "context", "expert-model"))

EXPERT_TP, EXPERTS, HEADS = "--expert-tensor-parallel-size", "--num-experts", "--num-attention-heads"
GROUPED, GROUPS, LATENT = "--group-query-attention", "--num-query-groups", "--multi-latent-attention"
WIDTH, LENGTH, LONGEST, EXCHANGE = (
    "--ffn-hidden-size",
    "--seq-length",
    "--max-position-embeddings",
    "--cp-comm-type",
)
MICROBATCH, BATCH, SEQUENCES = "--micro-batch-size", "--global-batch-size", "--sequence-parallel"
LEVELS, HYBRID = "--hierarchical-context-parallel-sizes", "--hybrid-layer-pattern"
DENSE_STREAM, FLUSH, DEFERRED = (
    "--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush",
    "--defer-embedding-wgrad-compute",
)  # fmt: skip
GROUPS_OF = "--microbatch-group-size-per-virtual-pipeline-stage"
UNFUSED, OVERLAPPED = "--no-gradient-accumulation-fusion", "--tp-comm-overlap"


def _gpus(given: Given) -> Stopped:
    degrees, gpus = (given[TP], given[PP], given[CP]), given.num_gpus
    if gpus is None or divisions.RANKS.rest(gpus, *degrees) == 0:
        return None
    split = [word for word, degree in zip((TP, PP, CP), degrees, strict=True) if degree > 1]
    fix = f"start a multiple of {math.prod(degrees)} GPUs, or lower {' or '.join(split)}"
    return divisions.RANKS.says(gpus, *degrees), fix


def _expert_ranks(given: Given) -> Stopped:
    """Experts take all ranks of a stage anew: tp ranks share each of them unless they are told otherwise."""
    gpus, ep, pp = given.num_gpus, given[EP], given[PP]
    if gpus is None or not on(given, EXPERTS) or divisions.RANKS.rest(gpus, given[TP], pp, given[CP]):
        return None
    shared = given[EXPERT_TP] or given[TP]
    stage = gpus // pp
    if divisions.EXPERT_RANKS.rest(stage, ep, shared) == 0:
        return None
    usual = "" if given[EXPERT_TP] else f"; ranks an expert are those of {TP} where {EXPERT_TP} is not given"
    message = divisions.EXPERT_RANKS.says(stage, ep, shared) + usual
    if shared > 1 and divisions.EXPERT_RANKS.rest(stage, ep) == 0:
        fewer = divisions.EXPERT_RANKS.largest(stage // ep, shared)
        return message, f"set {EXPERT_TP} {fewer}, or lower {EP}"
    return message, f"set {EP} {math.gcd(stage // math.gcd(stage, shared), ep)}"


def _experts(given: Given) -> Stopped:
    ep, experts = given[EP], given[EXPERTS]
    if ep <= 1:
        return None
    if not experts:
        return f"ep {ep} in a model without experts", f"add {EXPERTS}, or leave {EP} out"
    if divisions.EXPERTS.rest(experts, ep) == 0:
        return None
    return divisions.EXPERTS.says(experts, ep), f"set {EP} {divisions.EXPERTS.largest(experts, ep)}"


def _tensor_degree(given: Given) -> int:
    """The largest degree below the given one that cuts heads, key heads and feed-forward without a rest.

    Where the number of GPUs is known, its ranks are to fill them, too.
    """
    tp, others, gpus = given[TP], given[PP] * given[CP], given.num_gpus
    wholes = [size for size in (given[HEADS], given[WIDTH]) if size]
    if gpus and divisions.RANKS.rest(gpus, others) == 0:
        wholes.append(gpus // others)
    groups = 0 if on(given, LATENT) or not on(given, GROUPED) else given[GROUPS] or 0
    common = math.gcd(*wholes)
    degrees = (tp - 1, *((common,) if common else ()))
    return next(
        degree
        for degree in range(max(1, min(degrees)), 0, -1)
        if common % degree == 0 and (groups % degree == 0 or degree % groups == 0)
    )


def _heads(given: Given) -> Stopped:
    heads, tp = given[HEADS], given[TP]
    if not heads:
        return None
    if divisions.HEADS.rest(heads, tp):
        return divisions.HEADS.says(heads, tp), f"set {TP} {_tensor_degree(given)}"
    if given["--hidden-size"] and given["--kv-channels"] is None and given["--hidden-size"] % heads:
        message = f"a hidden size of {given['--hidden-size']} does not divide by {heads} heads"
        return message, "set --kv-channels"
    return None


def _key_heads(given: Given) -> Stopped:
    groups, tp = given[GROUPS], given[TP]
    if not on(given, GROUPED) or not groups or on(given, LATENT) or groups % tp == 0 or tp % groups == 0:
        return None
    message = f"{groups} key heads are neither a multiple nor a divisor of tp {tp}"
    return message, f"set {TP} {_tensor_degree(given)}"


def _latent(given: Given) -> Stopped:
    if not (on(given, LATENT) and on(given, GROUPED)):
        return None
    return f"{LATENT} beside {GROUPED}: latent attention has no groups", f"leave {GROUPED} out"


def _batch(given: Given) -> Stopped:
    batch, size, gpus = given[BATCH], given[MICROBATCH], given.num_gpus
    degrees = given[TP], given[PP], given[CP]
    if not batch or not size or gpus is None or divisions.RANKS.rest(gpus, *degrees):
        return None
    dp = gpus // math.prod(degrees)
    if divisions.BATCH.rest(batch, dp, size) == 0:
        return None
    return divisions.BATCH.says(batch, dp, size), f"set {BATCH} {divisions.BATCH.nearest(batch, dp, size)}"


def _length(given: Given) -> Stopped:
    length, cp = given[LENGTH], given[CP]
    if not length or cp <= 1 or length % (2 * cp) == 0:
        return None
    return (
        f"a sequence of {length} tokens is no multiple of 2 · cp {cp}",
        f"set {LENGTH} {-(-length // (2 * cp)) * 2 * cp}",
    )


def _positions(given: Given) -> Stopped:
    length, longest = given[LENGTH], given[LONGEST]
    if not length or not longest or longest >= length:
        return None
    return f"sequences of {length} tokens, and {longest} positions", f"set {LONGEST} {length}"


def _levels(given: Given) -> Stopped:
    sizes = [int(size) for level in given[LEVELS] or () for size in str(level).split()]
    if sizes and math.prod(sizes) != given[CP]:
        return f"{LEVELS} {' '.join(map(str, sizes))} make {math.prod(sizes)}, and cp is {given[CP]}", (
            f"set {CP} {math.prod(sizes)}"
        )
    if "a2a+p2p" in given[EXCHANGE] and not sizes:
        return f"{EXCHANGE} a2a+p2p without {LEVELS}", f"add {LEVELS}, whose product is {CP}"
    return None


def _stage_ways(given: Given) -> Stopped:
    """Of three ways to cut stages."""
    ways = [word for word in (EACH, CHUNKS, STRING) if given[word] is not None]
    if len(ways) > 1:
        return f"{' and '.join(ways)} both cut stages", f"keep {ways[-1]} alone"
    outer = [word for word in OUTER_STAGES if given[word] is not None]
    slots = [word for word in ACCOUNTED if on(given, word)]
    if outer and slots:
        return f"{' and '.join(outer)} beside {' and '.join(slots)}", f"leave {' and '.join(slots)} out"
    if given[STRING] is not None and outer + slots:
        return f"{STRING} beside {' and '.join(outer + slots)}", f"leave {' and '.join(outer + slots)} out"
    if given[EACH] is not None and outer:
        return f"{EACH} beside {' and '.join(outer)}", f"give {CHUNKS} instead"
    return None


def _string(given: Given) -> Stopped:
    text, pp, layers = given[STRING], given[PP], given[LAYERS]
    if text is None:
        return None
    stages = stages_of_string(text)
    if len(stages) % pp:
        return f"{len(stages)} stages of {STRING} do not divide by pp {pp}", f"set {PP}, or add stages"
    if layers and sum(stages) != layers:
        return f"{STRING} has {sum(stages)} layers, the model {layers}", "add or take away a t"
    return None


def _layers(given: Given) -> Stopped:
    """Layers of stages and of chunks that are counted, without a string."""
    slots, pp, each = slots_of(given), given[PP], given[EACH]
    if slots is None or given[STRING] is not None or given[HYBRID] is not None or given["--num-layers"] == 0:
        return None
    counted = _slots_in_words(given, slots)
    if any(given[word] is not None for word in OUTER_STAGES):
        return _uneven(given, slots)
    if slots % pp:
        return f"{counted} do not divide by pp {pp}", _other_pp(slots, pp)
    if each and given[CHUNKS] is None:
        if (slots // pp) % each:
            fix = f"set {EACH} {math.gcd(slots // pp, each)}, or {CHUNKS}"
            return f"{slots // pp} layers of a stage do not divide by {each} of a chunk", fix
        return None
    chunks = chunks_of(given)
    if pp > 1 and (slots // pp) % chunks:
        fix = f"set {CHUNKS} {math.gcd(slots // pp, chunks)}, or give {STRING}"
        return f"{counted} do not divide by {pp * chunks} stages, pp {pp} · {chunks} chunks", fix
    return None


def _slots_in_words(given: Given, slots: int) -> str:
    more = slots - given[LAYERS]
    return f"{given[LAYERS]} layers" + (f" and {more} slots of embedding and loss" if more else "")


def _other_pp(slots: int, pp: int) -> str:
    return f"set {PP} {math.gcd(slots, pp)}, or give {STRING}"


def _uneven(given: Given, slots: int) -> Stopped:
    """A first and a last stage with numbers of their own, and what is left for the others."""
    outer, pp, chunks = (
        [given[word] for word in OUTER_STAGES if given[word] is not None],
        given[PP],
        chunks_of(given),
    )
    named = [word for word in OUTER_STAGES if given[word] is not None]
    left, inner = slots - sum(outer), pp - len(outer)
    if min(outer) <= 0 or left < 0 or bool(left) != bool(inner) or (inner and left % inner):
        fix = f"set {' and '.join(named)} so that what is left divides by {inner}"
        return f"{slots} layers less {' and '.join(map(str, outer))} leave {left} to {inner} stages", fix
    uneven = [count for count in (*outer, *([left // inner] if inner else [])) if count % chunks]
    if chunks > 1 and uneven:
        fix = f"set {CHUNKS} {math.gcd(chunks, *uneven)}, or give {STRING}"
        return f"{uneven[0]} layers of a rank do not divide by {chunks} chunks", fix
    return None


def _interleaved(given: Given) -> Stopped:
    pp, chunks = given[PP], chunks_of(given)
    word = next((word for word in (CHUNKS, EACH, STRING) if given[word] is not None), CHUNKS)
    if chunks > 1 and pp == 1:
        return f"{word} makes {chunks} chunks at pp 1", f"set {PP}, or leave {word} out"
    if chunks > 1 and pp == 2 and on(given, DENSE_STREAM):  # two ranks
        return f"{chunks} chunks a rank at pp 2 with {DENSE_STREAM}", f"leave {DENSE_STREAM} out, or set {PP}"
    if on(given, FLUSH) and (chunks == 1 or on(given, DENSE_STREAM)):
        return f"{FLUSH} without an interleaved schedule", f"set {CHUNKS}, or leave {FLUSH} out"
    if on(given, DEFERRED) and pp == 1:
        return f"{DEFERRED} at pp 1", f"set {PP}, or leave {DEFERRED} out"
    if on(given, DEFERRED) and on(given, UNFUSED):
        return f"{DEFERRED} beside {UNFUSED}", f"keep {DEFERRED}, or {UNFUSED}"
    return None


def _overlapped(given: Given) -> Stopped:
    """Sequences are whole where nothing splits tensors."""
    if not on(given, OVERLAPPED) or (on(given, SEQUENCES) and given[TP] > 1):
        return None
    if given[TP] == 1:
        return f"{OVERLAPPED} at tp 1", f"set {TP}, or leave {OVERLAPPED} out"
    return f"{OVERLAPPED} without {SEQUENCES}", f"add {SEQUENCES}, or leave {OVERLAPPED} out"


def _whole_sequences(given: Given) -> Stopped:
    if not on(given, SEQUENCES) or given[TP] > 1:
        return None
    return f"{SEQUENCES} at tp 1, where it has no effect", f"leave {SEQUENCES} out, or set {TP}"


def _filled(given: Given) -> Stopped:
    """Interleaved, microbatches go round in groups of pp."""
    pp, batch, size, gpus = given[PP], given[BATCH], given[MICROBATCH], given.num_gpus
    if chunks_of(given) == 1 or pp == 1 or not batch or not size or gpus is None or on(given, GROUPS_OF):
        return None
    count, rest = divmod(batch, gpus // (given[TP] * pp * given[CP]) * size)
    if rest or (count >= pp and count % pp == 0):
        return None
    message = f"{count} microbatches of a replica are no multiple of pp {pp}, and chunks take turns in groups"
    return message, f"set {BATCH} {-(-count // pp) * pp * batch // count}"


LAYOUT_REFUSALS: tuple[WordLaw, ...] = (
    stop(name="gpus", reads=(TP, PP, CP), stops=_gpus),
    stop(name="experts", reads=(EP, EXPERTS), stops=_experts),
    stop(name="expert-block", reads=(EP, EXPERT_TP, TP, PP, CP, EXPERTS), stops=_expert_ranks),
    stop(
        name="heads",
        reads=(TP, HEADS, "--hidden-size", "--kv-channels"),
        stops=_heads,
        says_of=("attention-heads",),
    ),
    stop(name="kv-heads", reads=(TP, GROUPS, GROUPED, LATENT), stops=_key_heads),
    stop(name="latent-groups", reads=(GROUPED, LATENT), stops=_latent),
    stop(name="batch", reads=(BATCH, MICROBATCH, TP, PP, CP), stops=_batch),
    stop(
        name="sequence-halves",
        reads=(LENGTH, CP),
        stops=_length,
        says_of=("sequence-split", "megatron-sequence-halves"),
    ),
    stop(name="sequence-limit", reads=(LONGEST, LENGTH), stops=_positions),
    stop(name="context-levels", reads=(LEVELS, EXCHANGE, CP), stops=_levels),
    stop(name="stages", reads=(EACH, CHUNKS, STRING, *OUTER_STAGES, *ACCOUNTED), stops=_stage_ways),
    stop(name="stage-string", reads=(STRING, PP, LAYERS), stops=_string),
    stop(name="prediction-modules", reads=(STRING, PREDICTED), stops=other_modules),
    stop(
        name="prediction-positions",
        reads=(PREDICTED, "--position-embedding-type", "--use-rotary-position-embeddings"),
        stops=other_positions,
        says_of=("megatron-further-token-positions",),
    ),
    stop(
        name="layers",
        reads=(EACH, CHUNKS, PP, *OUTER_STAGES, LAYERS, *ACCOUNTED, STRING, HYBRID),
        stops=_layers,
        says_of=("even-layers", "equal-chunks"),
    ),
    stop(
        name="interleaving",
        reads=(CHUNKS, EACH, STRING, FLUSH, DEFERRED, DENSE_STREAM, UNFUSED, PP, LAYERS),
        stops=_interleaved,
        says_of=("virtual-stages",),
    ),
    stop(
        name="interleaving-groups",
        reads=(BATCH, MICROBATCH, CHUNKS, EACH, STRING, TP, PP, CP, LAYERS, GROUPS_OF),
        stops=_filled,
    ),
    stop(name="tensor-overlap", reads=(OVERLAPPED, SEQUENCES, TP), stops=_overlapped),
    stop(name="sequence-parallel", reads=(SEQUENCES, TP), stops=_whole_sequences, ground="overruled"),
)

LAYOUT_WORDS = EngineSetting(
    words=(
        Word(name=LEVELS, kind="list"),
        Word(name=HYBRID, aliases=("--hybrid-override-pattern",), states="said.hybrid"),
        Word(name=GROUPS_OF, kind="int"),
        Word(name=FLUSH, kind="flag", default=False),
        Word(name=DEFERRED, kind="flag", default=False),
    ),
    fields=(),
    write=lambda _: {},
    read=lambda _: {},
)
"""Words that decide no field."""
