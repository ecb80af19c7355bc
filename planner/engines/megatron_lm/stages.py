"""Pipeline stages and recomputation in Megatron-LM's arguments.

A chunk is what a rank holds of one virtual stage. ``--recompute-method block`` recomputes the first layers of
every chunk, as many of each; ``uniform`` recomputes all of them, and modules that predict further tokens too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.layout import ParallelLayout
from costmodel.pipeline.schedules import usual_schedule
from costmodel.pipeline.stages import ranks_of_chunks
from planner.engines.fields import Facts
from planner.engines.megatron_lm.modules import PRICED, modules_of, spelled_modules
from planner.engines.megatron_lm.stage_string import layout_string, modules_of_string, stages_of_string
from planner.engines.refusal import Stopped
from planner.engines.setting import EngineSetting, Given, Word

PP, LAYERS, STRING = "--pipeline-model-parallel-size", "--num-layers", "--pipeline-model-parallel-layout"
CHUNKS, EACH = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
ACCOUNTED = tuple(f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss"))
PREDICTED = "--mtp-num-layers"
RECOMPUTED_HOW = "recipe.recompute_method"
OUTER_STAGES = tuple(f"--decoder-{end}-pipeline-num-layers" for end in ("first", "last"))
MOST_LAYERS = 4096


def _write_pipeline(facts: Facts) -> dict[str, Any]:
    """Even stages by their number, uneven ones by a layout string."""
    pp, chunks, layers = facts["layout.pp"], facts["layout.virtual_stages"], facts["split.layers"]
    if pp == 1:
        return {}
    if len(set(layers)) > 1:
        return {STRING: layout_string(layers, facts.get("job.mtp_layers", 0))}
    return {CHUNKS: chunks} if chunks > 1 else {}


def _read_pipeline(given: Given) -> dict[str, Any]:
    """Chunks of a rank, the schedule they mean, and layers of each stage."""
    pp, layout = given[PP], given[STRING]
    if layout is not None:
        layers = stages_of_string(layout)
        if len(layers) % pp:
            raise ValueError(f"{len(layers)} stages on {pp} ranks")
        return _stages(pp, len(layers) // pp, layers)
    chunks = chunks_of(given)
    return _stages(pp, chunks, _counted(given, slots_of(given), pp, chunks))


def slots_of(given: Given) -> int | None:
    """Layers, with those that the embedding and the loss take the place of."""
    return None if given[LAYERS] is None else int(given[LAYERS] + sum(given[word] for word in ACCOUNTED))


def chunks_of(given: Given) -> int:
    """Chunks of a rank, of a string or as they are counted; one where layers do not divide into them."""
    if given[STRING] is not None:
        return int(max(1, len(stages_of_string(given[STRING])) // given[PP]))
    slots, each = slots_of(given), given[EACH]
    if given[CHUNKS] is None and each and slots is not None:
        return int(max(1, slots // given[PP] // each))
    return int(given[CHUNKS] or 1)


def _stages(pp: int, chunks: int, layers: tuple[int, ...] | None) -> dict[str, Any]:
    """What a number of chunks means."""
    chunks = chunks if pp > 1 else 1
    facts = {"layout.virtual_stages": chunks, "layout.schedule": usual_schedule(chunks)}
    return facts if layers is None else facts | {"split.layers": layers}


def _counted(given: Given, slots: int | None, pp: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each stage without a layout string; None where they do not divide.

    The embedding and the loss may take the slot of a layer, the first and the last rank may have a number of
    their own.
    """
    first, last = (given[word] for word in OUTER_STAGES)
    if slots is None or not 1 <= pp * chunks <= MOST_LAYERS or slots > MOST_LAYERS:
        return None
    inner = pp - (first is not None) - (last is not None)
    left = slots - (first or 0) - (last or 0)
    if (inner and left % (inner * chunks)) or (not inner and left) or left < 0:
        return None
    middle = left // inner if inner else 0
    ranks = [middle] * pp
    if first is not None:
        ranks[0] = first
    if last is not None:
        ranks[-1] = last
    if any(rank % chunks for rank in ranks):
        return None
    layers = [ranks[stage % pp] // chunks for stage in range(pp * chunks)]
    layers[0] -= given[ACCOUNTED[0]]
    layers[-1] -= given[ACCOUNTED[1]]
    return tuple(layers)


PIPELINE = EngineSetting(
    words=(
        Word(name=STRING, states="said.stage_layout"),
        Word(
            name=CHUNKS,
            kind="int",
            aliases=("--virtual-pipeline-model-parallel-size",),
            states="layout.virtual_stages",
        ),
        Word(name=EACH, kind="int", states="said.layers_per_virtual_stage"),
        *(
            Word(name=name, kind="int", states=f"said.{end}_stage_layers")
            for name, end in zip(OUTER_STAGES, ("first", "last"), strict=True)
        ),
        *(Word(name=name, kind="flag", default=False) for name in ACCOUNTED),
    ),
    fields=("layout.virtual_stages", "layout.schedule", "split.layers"),
    write=_write_pipeline,
    read=_read_pipeline,
)


PREDICTION = EngineSetting(
    words=(Word(name=PREDICTED, kind="int", states="job.mtp_layers"),),
    fields=("job.mtp_layers",),
    write=lambda facts: {PREDICTED: facts["job.mtp_layers"]} if facts.get("job.mtp_layers") else {},
    read=lambda given: {"job.mtp_layers": given[PREDICTED] or 0},
)
"""Modules that predict further tokens; without a string all are on the last stage, where they are priced."""


def other_modules(given: Given) -> Stopped:
    """`PipelineParallelLayerLayout.validate_layer_layout` asserts that a string has all of them."""
    if given[STRING] is None:
        return None
    stated, modules = sum(modules_of_string(given[STRING])), given[PREDICTED] or 0
    if stated == modules:
        return None
    return f"{STRING} has {stated} modules m, {PREDICTED} is {modules}", f"set {PREDICTED} {stated}"


def other_positions(given: Given) -> Stopped:
    """`validate_args` asserts that modules have rotary positions, or none."""
    kind, rotary = given["--position-embedding-type"], given["--use-rotary-position-embeddings"]
    if not given[PREDICTED] or rotary or kind in ("rope", "none"):
        return None
    return (
        f"{PREDICTED} {given[PREDICTED]} with positions of type {kind}",
        "set --position-embedding-type rope",
    )


def block_count(facts: Facts) -> int | None:
    """The one number of recomputed layers of each chunk that a split says; None if no one number does."""
    layers, recomputed = facts["split.layers"], facts["split.recompute"]
    most = max(layers, default=0)
    for count in range(most + 1):
        if recomputed_by(count, layers, facts) == tuple(recomputed):
            return count
    return None


def recomputed_by(count: int, layers: Sequence[int], facts: Facts) -> tuple[int, ...]:
    """Recomputed layers of each rank where every chunk recomputes its first `count` layers."""
    layout = ParallelLayout(
        pp=facts["layout.pp"],
        virtual_stages=facts["layout.virtual_stages"],
        schedule=facts["layout.schedule"],
    )
    recomputed = [0] * layout.pp
    for rank, held in zip(ranks_of_chunks(layout), layers, strict=True):
        recomputed[rank] += min(count, held)
    return tuple(recomputed)


def _write_recompute(facts: Facts) -> dict[str, Any]:
    """Recomputation: of all layers, of the first ones of each chunk, or of modules of each."""
    policy, layers = facts["layout.recompute"], facts["split.layers"]
    if policy == "selective":
        modules = modules_of(
            facts["stack.recomputed_modules"],
            latent=facts["model.kv_lora_rank"] > 0,
            dense=not facts["model.num_experts"] or facts["model.num_dense_layers"] > 0,
            experts=facts["model.num_experts"] > 0,
            shared=facts["model.shared_expert_size"] > 0,
        )
        return {"--recompute-granularity": "selective", "--recompute-modules": list(modules)}
    if policy != "full" or not any(facts["split.recompute"]):
        return {}
    words = {"--recompute-granularity": "full", "--recompute-method": "uniform"}
    kept = facts.get("job.mtp_layers") and facts.get(RECOMPUTED_HOW) != "uniform"
    if sum(facts["split.recompute"]) == sum(layers) and not kept:
        return words | {"--recompute-num-layers": 1}
    count = block_count(facts)
    if count is None:  # the nearest that fits: every rank recomputes at least what the plan does
        enough = range(1, max(layers) + 1)
        count = next(n for n in enough if _covers(recomputed_by(n, layers, facts), facts["split.recompute"]))
    return words | {"--recompute-method": "block", "--recompute-num-layers": count}


def _covers(recomputed: Sequence[int], asked: Sequence[int]) -> bool:
    return all(ours >= theirs for ours, theirs in zip(recomputed, asked, strict=True))


def _read_recompute(given: Given) -> dict[str, Any]:
    """The policy, and recomputed layers of each rank where the split is known."""
    granularity = given["--recompute-granularity"]
    modules = spelled_modules(given["--recompute-modules"])
    if given["--recompute-activations"]:
        granularity = "selective"
    if given["--checkpoint-activations"] or given["--activations-checkpoint-method"]:
        granularity = granularity or "full"
    if granularity == "selective":
        facts: dict[str, Any] = {"layout.recompute": "selective", "recipe.recompute_modules": modules}
        facts["stack.recomputed_modules"] = tuple(name for name in modules if name in PRICED)
        return facts | _of_ranks(given, 0)
    if granularity != "full":
        return {"layout.recompute": "none", **_of_ranks(given, 0)}
    method = given["--recompute-method"] or given["--activations-checkpoint-method"]
    count = given["--recompute-num-layers"] if given["--recompute-num-layers"] is not None else 1
    of_ranks = _of_ranks(given, count if method == "block" else MOST_LAYERS)
    none = of_ranks and not any(of_ranks["split.recompute"])
    return {"layout.recompute": "none" if none else "full", RECOMPUTED_HOW: method, **of_ranks}


def _of_ranks(given: Given, count: int) -> dict[str, Any]:
    """Recomputed layers of each rank, if the split is known."""
    split = _read_pipeline(given)
    if "split.layers" not in split:
        return {}
    facts = {"layout.pp": given[PP], **split}
    return {"split.recompute": recomputed_by(count, split["split.layers"], facts)}


RECOMPUTE = EngineSetting(
    words=(
        Word(
            name="--recompute-granularity",
            aliases=("--activations-checkpoint-granularity",),
            states="said.recompute",
        ),
        Word(name="--recompute-method", states="said.recompute_method"),
        Word(
            name="--recompute-num-layers",
            kind="int",
            aliases=("--checkpoint-num-layers", "--activations-checkpoint-num-layers"),
            states="said.recompute_layers",
        ),
        Word(
            name="--recompute-modules", kind="list", default=("core_attn",), states="said.recompute_modules"
        ),
        Word(name="--recompute-activations", kind="flag", default=False, states="said.recompute_selective"),
        Word(name="--checkpoint-activations", kind="flag", default=False, states="said.recompute_full"),
        Word(name="--activations-checkpoint-method", states="said.recompute_full"),
    ),
    fields=(
        "layout.recompute",
        "split.recompute",
        "stack.recomputed_modules",
        "recipe.recompute_modules",
        RECOMPUTED_HOW,
    ),
    write=_write_recompute,
    read=_read_recompute,
)
