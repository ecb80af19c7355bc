"""What is deployed: a model in some precision, split over GPUs in some layout, run by an engine.

Legend: tp tensor-parallel, pp pipeline stages, attention_dp ranks that each hold whole attention and share
the experts, ep the ranks that split the experts; expert_tp = tp·attention_dp/ep; dcp the tensor-parallel
ranks with the same key/value heads that hold every dcp-th token of the cache each (decode context parallel).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from costmodel.models.catalog import listed_model
from costmodel.models.spec import ModelSpec
from costmodel.models.stored import PartName
from costmodel.parallel.divisions import EXPERTS, HEADS
from costmodel.serving.engine import ServingStack
from costmodel.updates.adapters import Adapter
from topology.base.errors import InputError, shown
from topology.fabric.hierarchy import Hierarchy

_DRAFTERS = Path(__file__).parents[1] / "data" / "drafters.toml"
Weights = Literal["bf16", "fp8", "int8", "int4", "fp4"]
KvDtype = Literal["bf16", "fp8"]

WEIGHTS: tuple[Weights, ...] = ("bf16", "fp8", "int8", "int4", "fp4")
QUANTISED_BLOCK = (
    32  # weights that share one scale in 4-bit formats, on average over AWQ (128), MXFP4 (32), NVFP4 (16)
)
EXPANDED_HEAD = 256
"""Numbers of a key and of a value of latent attention in versions that cache every head's: padded to the next
size of head that their kernels had (vLLM pull 4650)."""
_WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """How one replica is split over GPUs.

    `layers` are those of each pipeline stage, `gpus` the kind of GPU that each runs on, by its name in the
    catalog. Empty, stages have as many layers as go evenly, and all run on the kind that is asked for.
    """

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    ep: int = 1
    dcp: int = 1
    layers: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse degrees that do not divide one another."""
        for name in ("tp", "pp", "attention_dp", "ep", "dcp"):
            if getattr(self, name) < 1:
                raise InputError(
                    what="the serving layout is not possible",
                    cause=f"{name} = {getattr(self, name)}",
                    fix=f"give {name} of at least 1",
                )
        if self.stage_gpus % self.ep:
            raise InputError(
                what="the serving layout is not possible",
                cause=f"ep = {self.ep} does not divide tp·attention_dp = {self.stage_gpus}",
                fix="choose ep among the divisors of tp·attention_dp",
            )
        if self.tp % self.dcp:
            raise InputError(
                what="the serving layout is not possible",
                cause=f"dcp = {self.dcp} does not divide tp = {self.tp}",
                fix="choose dcp among the divisors of tp",
            )
        if (self.layers and min(self.layers) < 1) or {len(self.layers), len(self.gpus)} - {0, self.pp}:
            raise InputError(
                what="the serving layout is not possible",
                cause=f"stages: {self.pp}; layers of each: {self.layers}; GPUs of each: {self.gpus}",
                fix="name a number of layers, of at least 1, and a kind of GPU for every stage",
            )

    @property
    def is_uneven(self) -> bool:
        """Whether stages have layers or GPUs of their own."""
        return bool(self.layers or self.gpus)

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage."""
        return self.tp * self.attention_dp

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.stage_gpus * self.pp

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return self.stage_gpus // self.ep

    @property
    def label(self) -> str:
        """Short name, such as tp8 or tp4·pp2 or dp8·ep8."""
        parts = (
            ("tp", self.tp),
            ("pp", self.pp),
            ("dp", self.attention_dp),
            ("ep", self.ep),
            ("dcp", self.dcp),
        )
        degrees = "·".join(f"{name}{degree}" for name, degree in parts if degree > 1) or "tp1"
        return f"{degrees} ({'+'.join(map(str, self.layers))})" if self.layers else degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A kind of drafter: how it hangs on the model it drafts for, and how many of its drafts are accepted.

    A projection turns `joined` hidden states into one. `vocabulary` tokens have an output projection of its
    own; 0: that of the model is used, or all of it is its own.
    """

    joined: int
    vocabulary: int
    acceptance: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica: model, precision, layout, engine, and the fabric it runs on.

    `drafter` is mtp, eagle3, or a model by name; "" drafts in no time and no memory (n-grams of the prompt).
    `adapters` of the kind of `adapter` are held at once, of which every request names one. Copies of its
    cache take `host_cache_bytes` of its hosts' memory. Without `peers` NCCL is told that no GPU reads the
    memory of another, so what it sends inside a host goes through the host's.
    """

    model: ModelSpec
    hierarchy: Hierarchy
    layout: ServingLayout
    stack: ServingStack
    weights: Weights = "bf16"
    kv_dtype: KvDtype = "bf16"
    cached_share: float = 0.0
    draft_tokens: int = 0
    acceptance: float = 0.0
    drafter: str = ""
    adapter: Adapter | None = None
    adapters: int = 0
    host_cache_bytes: float = 0.0
    stage: int | None = None
    """The stage that is looked at, with its own GPU; None for all of a replica."""
    peers: bool = True

    def __post_init__(self) -> None:
        """Refuse a model of a kind that says why nobody knows what serving it costs."""
        for mechanism in self.model.mechanisms:
            if why := mechanism.unserved:
                what = f"serving {shown(self.model.name)} is not priced"
                fix = "plan its training, or serve a model whose layers are priced"
                raise InputError(what, why, fix)

    @property
    def expert_copies(self) -> int:
        """Experts held twice, so that every expert-parallel rank has as many: −E mod ep."""
        return EXPERTS.short(self.model.num_experts, self.layout.ep)

    @property
    def kv_bytes(self) -> float:
        """Bytes of one number in the KV cache."""
        return 1.0 if self.kv_dtype == "fp8" else 2.0

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of a request per decode step with `draft_tokens` n speculated at acceptance rate α.

        (1 − αⁿ⁺¹)/(1 − α) (Leviathan et al. 2023, arXiv 2211.17192, eq. 1); 1 without speculation.
        """
        n, a = self.draft_tokens, self.acceptance
        return 1.0 if n == 0 else (n + 1.0 if a >= 1 else (1 - a ** (n + 1)) / (1 - a))


@functools.cache
def drafters() -> Mapping[str, Drafter]:
    """Kinds of drafters by name: mtp, eagle3 and model.

    >>> {name: one.acceptance for name, one in drafters().items()}
    {'mtp': 0.85, 'eagle3': 0.66, 'model': 0.62}
    """
    from topology.base.decode import read_toml, structure

    return {
        name: structure(entry, Drafter, f"{_DRAFTERS.name}: {name}")
        for name, entry in read_toml(_DRAFTERS).items()
    }


def drafter_of(name: str) -> Drafter:
    """The kind of a drafter: mtp, eagle3, or that of any model."""
    return drafters().get(name) or drafters()["model"]


def draft_of(deployment: Deployment) -> Deployment | None:
    """What drafts, as a deployment of its own on the same GPUs; None where nothing is computed for drafts.

    One layer of the model's last kind (mtp) or a dense one (eagle3), or a whole other model. All but mtp are
    in bf16, and so is mtp beside int4: tools that round to four bits leave it (849 MB of Qwen3.6-27B: its
    W4A16 checkpoints say). A model whose heads cannot be split that far is whole on every GPU, as
    vLLM lets it be.
    """
    name, target, layout = deployment.drafter, deployment.model, deployment.layout
    if not name or not deployment.draft_tokens:
        return None
    if name == "mtp":
        spec = replace(
            target,
            name=f"{target.name}-mtp",
            num_layers=1,
            num_dense_layers=0,
            layer_pattern=_predicting_letter(target),
            recurrence=None,
            encoder=None,
            weight_format=published_weights(target) or "other",
        )
    elif name == "eagle3":
        spec = replace(
            target,
            name=f"{target.name}-eagle3",
            num_layers=1,
            num_dense_layers=0,
            num_experts=0,
            num_experts_per_token=0,
            shared_expert_size=0,
            vocab_size=drafter_of(name).vocabulary,
            encoder=None,
        )
    else:
        spec = listed_model(name)
    tp = layout.tp if HEADS.rest(spec.num_attention_heads, layout.tp) == 0 else 1
    stage = (
        replace(layout, pp=1, layers=(), gpus=())
        if name == "mtp"
        else ServingLayout(tp=tp, attention_dp=layout.attention_dp)
    )
    return replace(
        deployment,
        model=spec,
        layout=stage,
        weights=deployment.weights if name == "mtp" and deployment.weights != "int4" else "bf16",
        draft_tokens=0,
        acceptance=0.0,
        drafter="",
        adapter=None,
        adapters=0,
        host_cache_bytes=0.0,
        stage=None,
    )


def _predicting_letter(model: ModelSpec) -> str:
    """The letter of the layer that predicts a further token, where attention has several reaches."""
    attention = model.attention
    return next(
        (at for at, (reach, _) in attention.letters.items() if reach == attention.predicting_reach), ""
    )


PUBLISHED_WEIGHTS: Mapping[str, Weights] = {
    "deepseek-v3": "fp8", "deepseek-r1": "fp8", "kimi-k2": "fp8", "minimax-m2": "fp8",
    "deepseek-v3.2": "fp8", "deepseek-v4-flash": "fp4", "deepseek-v4-pro": "fp4",
    "gpt-oss-20b": "fp4", "gpt-oss-120b": "fp4",
}  # fmt: skip
"""Models whose original checkpoint is quantised, and to what (their pages at huggingface.co)."""


def published_weights(model: ModelSpec) -> Weights | None:
    """Precision of a model's checkpoint, as its configuration says; None where it says one not known here.

    >>> from costmodel.models.catalog import model
    >>> published_weights(model("deepseek-r1")), published_weights(model("70b"))
    ('fp8', 'bf16')
    """
    if model.weight_format:
        return None if model.weight_format == "other" else model.weight_format
    return PUBLISHED_WEIGHTS.get(model.name, "bf16")


ATTENTION: Final[tuple[PartName, ...]] = ("attention", "output projection")


def dtype_of(deployment: Deployment, part: PartName | Literal["head"]) -> str:
    """Number format in which a part of the model multiplies.

    Published quantised checkpoints keep the output projection in bf16, and what they say besides; the 4-bit
    floating-point checkpoints of mixtures of experts (gpt-oss MXFP4, DeepSeek-R1 NVFP4) quantise the
    feed-forward blocks and leave attention in bf16.
    """
    if part == "head":
        return "bf16"
    if is_as_published(deployment) and (stored := deployment.model.stored.format_of(part)):
        return stored
    if deployment.weights == "fp4" and part in ATTENTION and deployment.model.is_moe:
        return "bf16"
    return deployment.weights


def is_as_published(deployment: Deployment) -> bool:
    """Whether the weights are those of the model's checkpoint, whose parts are known."""
    return deployment.weights == published_weights(deployment.model)


def stored_bytes(deployment: Deployment, part: PartName) -> float:
    """Bytes of one stored weight of a part, as its checkpoint has it: in fp4 a scale's byte to a group."""
    dtype, stored = dtype_of(deployment, part), deployment.model.stored
    last = dtype_of(deployment, "output projection") if part == "attention" else dtype
    if last != dtype:
        n, k = deployment.model.attention.projections(1)[-1]
        share = n * k / deployment.model.attention.parameters
        return share * weight_bytes(last) + (1 - share) * weight_bytes(dtype)
    if dtype != deployment.weights or not is_as_published(deployment):
        return weight_bytes(dtype)
    if dtype == "fp4" and stored.group:
        return _WEIGHT_BYTES[dtype] + 1 / stored.group
    return stored.weight_bytes or weight_bytes(dtype)


def weight_bytes(dtype: str) -> float:
    """Bytes of one stored weight, with the scales of block-quantised formats (one byte per block).

    >>> weight_bytes("fp8"), weight_bytes("fp4")
    (1.0, 0.53125)
    """
    scale = 1 / QUANTISED_BLOCK if dtype in ("int4", "fp4") else 0.0
    return _WEIGHT_BYTES[dtype] + scale


def stage_layers(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as even as they go, the surplus on the middle stages.

    The first and the last stage also hold the embedding and the output projection, so they get no surplus
    layer.

    >>> from costmodel.models.catalog import model
    >>> stage_layers(model("llama-3.1-70b"), 4), stage_layers(model("deepseek-v3"), 4)
    ((20, 20, 20, 20), (15, 16, 15, 15))
    """
    base, surplus = divmod(model.num_layers, pp)
    order = sorted(range(pp), key=lambda s: (s in (0, pp - 1), s))
    takes = set(order[:surplus])
    return tuple(base + (s in takes) for s in range(pp))


def layers_of_stages(deployment: Deployment) -> tuple[int, ...]:
    """Layers of each pipeline stage: as the layout says, else as even as they go."""
    return deployment.layout.layers or stage_layers(deployment.model, deployment.layout.pp)


def stages_alike(deployment: Deployment) -> float:
    """How many stages such as the one that is looked at have all layers; the degree of even ones."""
    if deployment.stage is None:
        return deployment.layout.pp
    return deployment.model.num_layers / layers_of_stages(deployment)[deployment.stage]


def stages_of(deployment: Deployment) -> tuple[Deployment, ...]:
    """The stages of a replica that are not alike, each as the one looked at; itself where they are alike."""
    layout = deployment.layout
    if not layout.is_uneven or deployment.stage is not None:
        return (deployment,)
    kinds = (
        tuple(_fabric(name, layout.stage_gpus) for name in layout.gpus) or (deployment.hierarchy,) * layout.pp
    )
    return tuple(replace(deployment, hierarchy=kind, stage=stage) for stage, kind in enumerate(kinds))


@functools.cache
def _fabric(gpu: str, num_gpus: int) -> Hierarchy:
    """The GPUs of a stage in their usual machine."""
    from topology.builders import default_cluster

    return default_cluster(gpu, num_gpus).hierarchy


def kv_token_bytes_per_layer(deployment: Deployment) -> float:
    """Bytes of KV cache of one token in one layer on one GPU.

    Grouped-query: 2·g·d·bytes/min(tp, g) (heads are replicated once tp exceeds them); latent attention stores
    (r + rope) numbers once per rank, whatever tp (DeepSeek-V2, arXiv 2405.04434, §2.1). Decode context
    parallel ranks hold a dcp-th of the tokens each in place of all of them.
    """
    layout, attention = deployment.layout, deployment.model.attention
    if attention.decode_width and not deployment.stack.caches_latents:
        heads = max(attention.whole_heads / layout.tp, 1)
        return 2 * heads * EXPANDED_HEAD * deployment.kv_bytes
    return attention.cached_numbers(layout.tp) * deployment.kv_bytes / layout.dcp


def cache_dtype_of(stack: ServingStack, model: ModelSpec, *, maker: str) -> KvDtype | None:
    """The one format of a cache that an engine's layers of this model take on a maker's GPUs; None is any."""
    pages = stack.compressed_pages
    if pages is None or model.compression is None or maker != "nvidia":
        return None
    return pages.nvidia_cache_dtype or None
