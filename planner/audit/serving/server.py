"""What a server was started with: model, split, cache and batch, from the facts of its files.

Engines count differently. vLLM's tp is that of attention and its limits are of one attention rank; the tp of
SGLang and TensorRT-LLM counts every GPU of a stage, and SGLang divides its prompt chunk by attention ranks
(their server arguments; written by `planner.deployment.vllm_sglang`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from costmodel.accuracy.checkpoint_names import WEIGHTS_OF_NAME, checkpoint_model
from costmodel.models.catalog import exact_model, knows_positions
from costmodel.models.catalog import model as find_model
from costmodel.models.names import weight_format
from costmodel.models.parameters import without_tower
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import (
    WEIGHTS,
    KvDtype,
    ServingLayout,
    Weights,
    cache_dtype_of,
    published_weights,
    stage_layers,
)
from costmodel.serving.engine import ServingStack, serving_stack
from planner.audit.facts import JobFacts
from planner.audit.file_names import model_of_names
from planner.audit.read import OPTION_FILES, Reading
from planner.audit.server_flags import NOTHING_UNREAD, Unread, unread_flags
from planner.audit.serving.configured import configured_model
from planner.audit.serving.lora import ServedAdapters, adapters_of
from planner.audit.serving.machine import compared_with_machine
from planner.audit.serving.speculation import UNPRICED, drafts_of
from planner.formats.server_lines import ServerLog
from planner.formats.settings import Setting, number, whole_or_none
from planner.serving.plan import PoolPlan, ServingPlan, ServingRequest
from topology.base.errors import InputError, shown
from topology.base.units import GIB
from topology.catalog import cluster as named_cluster
from topology.catalog import gpu_name, gpus
from topology.hardware.datasheets import default_gpu, generation_of

_UNPRICED = {
    "said.transfer": "the files of both pools: these start one of two",
    "said.role": "the files of both pools: these start one of two",
}
_OF_POOLS = ("said.transfer", "said.role")

_PACKAGES = {"trtllm": "tensorrtllm"}
"""Names of packages and images, where not the profile's."""
_LEFT_OPEN = re.compile(r"^<(\w+) checkpoint of (\S+)>$")
"""What a command of ours names where no checkpoint of that precision is known by name."""
_LENGTHS = ("max-model-len", "max-seq-len", "context-length")
_WAITS = {
    "said.balance_steps": ("timeout_iters", 50),
    "said.gather_steps": ("batching_wait_iters", 10),
}
"""Words of TensorRT-LLM's AttentionDpConfig, and the steps that it takes where they are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """A GPU on which files start several servers, and the shares of its memory that they take.

    `one_host` tells whether the files surely mean one host: services of one Compose file.
    """

    device: str
    shares: tuple[float, ...]
    one_host: bool

    @property
    def words(self) -> str:
        """What they take, in words."""
        each = " and ".join(f"{share:g}" for share in self.shares)
        total = f"{sum(self.shares):g} in all"
        return f"{len(self.shares)} servers take {each} of the memory of GPU {self.device}, {total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as it was started; limits that are None are the engine's own.

    Attributes:
        engine: By the name of its profile.
        model: What it serves.
        gpu: The kind of GPU.
        layout: How a replica is split.
        replicas: Copies of the model that the server starts and spreads requests over.
        weights: Precision of its checkpoint, or to which it is quantised at load.
        kv_dtype: Format of its cache.
        memory_fraction: The engine's memory setting.
        max_batch: Requests of a replica that run at once, over all attention ranks.
        token_budget: Tokens of a step of an attention rank.
        balance_steps: Decode steps that prompts wait at most until every attention rank has one.
        gather_steps: Decode steps that they wait for others after that.
        longest: Tokens of the longest request that it takes.
        assumed: What was taken for granted.
        slow: Settings that are not priced and make it slower than predicted.
        checkpoint: What it loads, as the files name it.
        knows_gpu: Whether its GPUs are said, and not taken for granted.
        version: Of the engine, where the files name it; "" is the newest known.
        drafter: What drafts tokens ahead of the model; "" for nothing.
        draft_tokens: Tokens that it drafts a step.
        overlaps: Whether the next step is prepared while one runs, which a switch may end.
        fits_length: Whether its longest request is said in words, as one that the cache holds (auto).
        stretches: Whether positions beyond the checkpoint's are allowed, by rope scaling or a variable.
        unread: Flags of its command that nothing reads.
        host_weights_bytes: Weights of each GPU that stay on its host.
        cache_bytes: Cache of each GPU, where it is said and not left by weights.
        cache_tokens: Tokens of the cache of an attention rank at most.
        whole_prompts: Whether prompts are computed whole, by a word.
        printed: What its log says.
        beyond_machine: What its degrees take and what files give one server, if that is less; else "".
        dtype: What products are told to be in; "" is the checkpoint's.
        cache_format: The cache's format, as the files spell it; "" where they do not.
        cuts_prompts: Whether prompts may span steps where its engine computes them whole unless told.
        adapters: Adapters that requests name; None without.
        shares: A GPU of whose memory it and others take more than all; None without.
        little_shm: Whether its container has no more shared memory than usual ones.
        host_gpus: GPUs of a host, where files say on how many hosts a replica lies.
        cluster: A cluster that is described, by its name or file.
        backend: Kernels of attention that are asked for by name; "" where the engine chooses.
        knows_positions: Whether the model's positions are those of its checkpoint, and not of one alike.
    """

    engine: str
    model: ModelSpec
    gpu: str
    layout: ServingLayout
    replicas: int
    weights: Weights
    kv_dtype: KvDtype
    memory_fraction: float | None
    max_batch: int | None
    token_budget: int | None
    longest: int | None
    balance_steps: int = 0
    gather_steps: int = 0
    assumed: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    checkpoint: str = ""
    knows_gpu: bool = True
    fits_length: bool = False
    stretches: bool = False
    knows_positions: bool = True
    dtype: str = ""
    cache_format: str = ""
    backend: str = ""
    cuts_prompts: bool = False
    adapters: ServedAdapters | None = None
    shares: SharedDevice | None = None
    little_shm: bool = False
    host_gpus: int | None = None
    cluster: str = ""
    version: str = ""
    drafter: str = ""
    draft_tokens: int = 0
    overlaps: bool = True
    mixes: bool = False
    """Whether a switch lets prompts and decodes share steps, where the engine does not by itself."""
    unread: Unread = NOTHING_UNREAD
    host_weights_bytes: float = 0.0
    cache_bytes: float | None = None
    cache_tokens: int | None = None
    whole_prompts: bool = False
    printed: ServerLog | None = None
    beyond_machine: str = ""
    planned: ServingRequest | None = None
    """The question that it was planned for, of a server whose plan is known."""

    @property
    def unpriced(self) -> str:
        """What a time of its requests lacks; "" where it lacks nothing."""
        if self.host_weights_bytes:
            return (
                "weights on the GPUs alone: what --cpu-offload-gb keeps on hosts is read anew by every step"
            )
        flags = ", ".join(self.unread.uncounted)
        return f"a server without {flags}, which nothing reads" if flags else ""

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.layout.num_gpus

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of a step, where no prompt is cut and a longer one is refused (TensorRT-LLM issue 9277)."""
        return None if serving_stack(self.engine).chunked or self.cuts_prompts else self.token_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Why files are no server that can be priced: what nobody said, as the flag that says it."""

    missing: tuple[str, ...] = field(default=())


def server_of(
    reading: Reading,
    *,
    model: str | None,
    gpu: str | None,
    cluster: str | None = None,
    configs: Mapping[str, str] | None = None,
    of_pool: bool = False,
) -> Server | Unknown:
    """The server of files.

    Args:
        reading: What the files say.
        model: A model that holds over the files.
        gpu: A kind of GPU that holds over the files.
        cluster: A cluster on which the server lies, by its name or file; its GPUs hold over the files, too.
        configs: Texts of ``config.json`` by name, where the files have any.
        of_pool: Whether it is known that this is a worker of one of two pools.

    Raises:
        InputError: A value of the files is not possible.
    """
    facts = reading.facts
    unpriced = {name: why for name, why in _UNPRICED.items() if not (of_pool and name in _OF_POOLS)}
    missing = [why for name, why in unpriced.items() if name in facts.by_field]
    checkpoint = facts.value("said.model_source") or facts.value(
        "said.model"
    )  # the id of Ray's may be any name
    named = _LEFT_OPEN.sub(r"\2-\1", str(checkpoint or ""))
    assumed: list[str] = []
    if not (model or named) and "said.model" not in facts.unknown:
        named = _checkpoint_of_names(reading, assumed)
    if not (model or named):
        missing.append("--model")
    if missing:
        return Unknown(missing=tuple(dict.fromkeys(missing)))
    served = _served_model(reading.facts, model or "", named, configs or {}, assumed)
    if isinstance(served, Unknown):
        return served
    spec, knows = served
    engine = serving_stack(reading.family.name)
    if (drafts := drafts_of(facts, spec, assumed)) is None:
        return Unknown(missing=(UNPRICED,))
    if uneven := _uneven_stages(reading, spec):
        return Unknown(missing=(uneven,))
    if cluster:
        gpu = named_cluster(cluster).gpu.name
    kind = gpu_name(gpu) if gpu else _gpu(reading, assumed)
    layout, replicas = _split(engine.name, facts, spec)
    sequences, budget = facts.count("said.max_sequences"), facts.count("said.token_budget")
    if engine.name == "sglang":
        budget = budget and max(budget // layout.attention_dp, 1)
    else:
        sequences = sequences and sequences * layout.attention_dp
    steps, more = _waits(facts, layout, assumed)
    cache_format = str(facts.value("said.kv_dtype") or "").lower()
    memory = _share(facts.value("said.memory_share"))
    if memory is None and engine.fraction_of == "static":
        assumed.append(
            f"weights and cache take {engine.memory_fraction:g} of the memory, as plans set it "
            "(--mem-fraction-static): none is given, and the engine computes one by a rule of its own"
        )
    version = reading.versions.get(_PACKAGES.get(engine.name, engine.name), "")
    unread = _unread(reading, version)
    assumed += unread.notes
    beyond, idle = compared_with_machine(reading, replicas * layout.num_gpus)
    assumed += idle
    eager = "cuda graphs are off (enforce_eager): every step also waits for its launches, not priced"
    return Server(
        engine=engine.name,
        model=spec,
        gpu=kind,
        layout=layout,
        replicas=replicas,
        weights=_weights(facts, named, spec, assumed),
        kv_dtype=_cache_dtype(engine, spec, kind, cache_format),
        memory_fraction=memory,
        max_batch=sequences,
        token_budget=budget,
        balance_steps=steps,
        gather_steps=more,
        longest=facts.count("said.max_length"),
        assumed=tuple(assumed),
        slow=(eager,) if facts.truth("said.eager") else (),
        checkpoint=named,
        knows_gpu=bool(gpu) or len(reading.gpus) == 1,
        fits_length=_length_is_left_open(reading),
        stretches=_stretches(reading),
        knows_positions=knows,
        dtype=str(facts.value("said.dtype") or "").lower(),
        cache_format=cache_format,
        backend=_backend(reading),
        cuts_prompts=facts.truth("said.cuts_prompts") is True,
        adapters=adapters_of(reading, spec, engine),
        host_gpus=_host_gpus(facts, layout),
        cluster=cluster or "",
        version=version,
        drafter=drafts[0],
        draft_tokens=drafts[1],
        mixes=facts.truth("said.mixed_chunks") is True,
        unread=unread,
        host_weights_bytes=(number(facts.value("said.cpu_offload")) or 0.0) * GIB,
        cache_bytes=_bytes(facts.value("said.cache_bytes")),
        cache_tokens=facts.count("said.cache_tokens"),
        whole_prompts=bool(facts.truth("said.whole_prompts")),
        printed=reading.served,
        beyond_machine=beyond,
        overlaps=facts.truth("said.overlap") is not False and not facts.truth("said.overlap_off"),
    )


def _served_model(
    facts: JobFacts, model: str, named: str, configs: Mapping[str, str], assumed: list[str]
) -> tuple[ModelSpec, bool] | Unknown:
    """What is served, with its checkpoint's positions, and whether these are known."""
    try:
        if model:
            spec = without_tower(find_model(model))
        else:
            spec = without_tower(configured_model(named, configs, assumed) or checkpoint_model(named))
    except InputError as unknown:
        if model:
            raise
        return Unknown(missing=(f"--model ({unknown.what}; {unknown.fix})",))
    spec, knows = _positioned(spec, model, named)
    if not knows and facts.count("said.max_length") is None:
        assumed.append(
            f"requests of up to {spec.max_sequence_length:,} tokens, the positions of {spec.name}: those of "
            f"{named or model} are not known, and other checkpoints of its shape have others (say its length)"
        )
    return spec, knows


def _checkpoint_of_names(reading: Reading, assumed: list[str]) -> str:
    """The model that the name of a file tells, where no word of it names a checkpoint; else ""."""
    if (named := model_of_names([*reading.kinds])) is None:
        return ""
    assumed.append(f"the model is {named[0].name}, by the name of {named[1]}: --model gives another")
    return named[0].name


_ELSEWHERE = frozenset((*OPTION_FILES, "disaggregation_transfer_backend"))
"""Flags that no field states and that are read all the same."""


def _unread(reading: Reading, version: str) -> Unread:
    """Flags of its command that nothing reads; those of positions are read where they scale them."""
    scaled = {flag.path[0] for flag in reading.flags if _stretches_positions(flag)}
    read = {*reading.family.words, *_ELSEWHERE, *scaled}
    return unread_flags(reading.family.name, reading.flags, read, version)


def _stretches_positions(flag: Setting) -> bool:
    """Whether a flag says how positions are scaled, and nothing else of a model."""
    names = flag.path[0].replace("_", "-").startswith(_POSITIONS)
    return names and ("rope" in flag.path[0] or "rope" in str(flag.value))


_SIZE = re.compile(r"(?P<count>\d+(?:\.\d+)?)(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def _bytes(value: object) -> float | None:
    """A number of bytes as vLLM takes it (`human_readable_int`): ``25g`` is decimal, ``25G`` is binary.

    >>> _bytes("2147483648"), _bytes("2g"), _bytes("2G"), _bytes(None)
    (2147483648.0, 2000000000.0, 2147483648.0, None)
    """
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        return None
    power = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}[match["unit"].lower()]
    return float(match["count"]) * (
        1024.0**power if match["binary"] or match["unit"].isupper() else 1000.0**power
    )


def _positioned(spec: ModelSpec, model: str, named: str) -> tuple[ModelSpec, bool]:
    """The model with the positions of its checkpoint, and whether they are known.

    A model that is said names a shape where files name a checkpoint of it, or a place of their own.
    """
    exact = exact_model(named) if model and named else None
    if exact is not None and exact[0].name == spec.name:
        spec = replace(spec, max_sequence_length=exact[0].max_sequence_length)
        return spec, knows_positions(named, spec)
    return spec, knows_positions(model or named, spec)


_STAGES = ("VLLM_PP_LAYER_PARTITION", "SGLANG_PP_LAYER_PARTITION")
"""Variables with the layers of every pipeline stage, in commas."""


def _uneven_stages(reading: Reading, model: ModelSpec) -> str:
    """What a price lacks where a variable gives the stages other layers than an even split; else ""."""
    for name in _STAGES:
        if (setting := reading.variables.get(name)) is None:
            continue
        layers = [whole_or_none(part) for part in str(setting.value).split(",")]
        even = stage_layers(model, len(layers))
        if sorted(layer or 0 for layer in layers) != sorted(even):
            return (
                f"a pipeline of even stages: {name}={shown(setting.value)} gives them other layers than "
                f"{','.join(map(str, even))}, and neither that nor unlike GPUs in one replica are priced"
            )
    return ""


def as_planned(server: Server, request: ServingRequest) -> ServingRequest:
    """The request with what the plan of a server says of it and no word of a launch does.

    Its drafts and how many are accepted, its adapters, and the levels of its measured times.
    """
    if (plan := server.planned) is None:
        return request
    asked = plan.job
    job = replace(
        request.job,
        drafter=asked.drafter,
        draft_tokens=asked.draft_tokens,
        acceptance=asked.acceptance,
        adapter=asked.adapter,
        adapters=asked.adapters,
    )
    return replace(request, job=job, level=plan.level, host_cache_bytes=plan.host_cache_bytes)


def planned_server(plan: ServingPlan, pool: PoolPlan) -> Server:
    """The workers of a plan's pool as they are started."""
    request = plan.request
    return Server(
        engine=request.engine,
        model=request.model,
        gpu=request.gpu,
        layout=pool.layout,
        replicas=pool.workers,
        weights=plan.weights,
        kv_dtype=plan.kv_dtype,
        memory_fraction=request.job.memory_fraction,
        max_batch=pool.max_batch,
        token_budget=pool.token_budget,
        longest=request.length_limit,
        balance_steps=pool.balance_steps,
        gather_steps=pool.gather_steps,
        fits_length=request.length_limit is None,
        drafter=request.job.drafter,
        draft_tokens=request.job.draft_tokens,
        planned=request,
    )


def _length_is_left_open(reading: Reading) -> bool:
    """Whether the longest request is said in words, such as auto, and not as a number of tokens."""
    is_named = any(setting.name.replace("_", "-").lstrip("-") in _LENGTHS for setting in reading.settings)
    return is_named and reading.facts.count("said.max_length") is None


def _host_gpus(facts: JobFacts, layout: ServingLayout) -> int | None:
    """GPUs of a host: ranks of a replica over the nodes that files say, which engines start evenly."""
    nodes = facts.count("said.nodes") or 1
    return None if nodes == 1 or layout.num_gpus % nodes else layout.num_gpus // nodes


def _backend(reading: Reading) -> str:
    """The kernels of attention that a flag or a variable names; "" where none does."""
    named = str(reading.facts.value("said.attention_backend") or "")
    setting = reading.variables.get("VLLM_ATTENTION_BACKEND")
    return named or ("" if setting is None else str(setting.value))


_POSITIONS = ("rope-scaling", "rope-parameters", "hf-overrides", "json-model-override-args")
_LONGER = ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")


def _stretches(reading: Reading) -> bool:
    """Whether flags or variables allow more positions than the checkpoint has."""
    words = [word for setting in reading.settings for word in (*setting.path, str(setting.value))]
    names = [word.replace("_", "-").lstrip("-") for word in words]
    allows = any(word.partition("=")[0] in _LONGER for word in (*reading.variables, *words))
    return allows or any(name.startswith(_POSITIONS) for name in names)


def _gpu(reading: Reading, assumed: list[str]) -> str:
    """The one kind that files mention, else the usual one."""
    if len(reading.gpus) == 1:
        assumed.append(f"on {reading.gpus[0]}, which the files mention (--gpu)")
        return reading.gpus[0]
    if sized := _gpu_of_memory(reading.gpu_memories_gb):
        assumed.append(f"on {sized}: no file names a kind of GPU, one names its memory (--gpu)")
        return sized
    if reading.unknown_gpus:
        gpu_name(reading.unknown_gpus[0])  # refused, as --gpu refuses it
    assumed.append(f"on {default_gpu()}: no file names one kind of GPU (--gpu)")
    return default_gpu()


def _gpu_of_memory(sizes_gb: tuple[int, ...]) -> str:
    """A kind of the catalog with the one memory that files name, the usual one first; "" without one.

    What makers print as GB is nearest what a GPU has in GiB.
    """
    if len(sizes_gb) != 1:
        return ""
    alike = [name for name, kind in gpus().items() if round(kind.memory_bytes / GIB) == sizes_gb[0]]
    alike += [name for name, kind in gpus().items() if abs(kind.memory_bytes / GIB - sizes_gb[0]) < 1.5]
    return default_gpu() if default_gpu() in alike else next(iter(alike), "")


def _split(engine: str, facts: JobFacts, model: ModelSpec) -> tuple[ServingLayout, int]:
    """How a replica is split, and how many the server starts."""
    tp, pp, dp, ep, dcp = (
        facts.count(name) or 1 for name in ("layout.tp", "layout.pp", "layout.dp", "layout.ep", "said.dcp")
    )
    if engine == "vllm":
        ranks = dp if model.is_moe else 1
        ep = tp * ranks if model.is_moe and facts.truth("said.expert_parallel") else 1
        return ServingLayout(tp=tp, pp=pp, attention_dp=ranks, ep=ep, dcp=dcp), dp // ranks
    if engine == "sglang":
        together = facts.count("said.attention_ranks") or (dp if facts.truth("said.attention_dp") else 1)
        copies = 1 if together > 1 else dp
    else:
        together, copies = (tp if facts.truth("said.attention_dp") else 1), 1
    if tp % together:
        raise InputError(
            what="the attention ranks do not divide the server",
            cause=f"{together} attention ranks share {tp} GPUs",
            fix=f"give attention ranks among the divisors of {tp}",
        )
    return ServingLayout(tp=tp // together, pp=pp, attention_dp=together, ep=ep), copies


def _weights(facts: JobFacts, named: str, model: ModelSpec, assumed: list[str]) -> Weights:
    """Precision: as quantised at load, as the checkpoint's name says, or as published."""
    precision = str(facts.value("said.precision") or "").lower()
    known = next(
        (
            WEIGHTS_OF_NAME[word]
            for word in (precision, precision.partition("_")[0])
            if word in WEIGHTS_OF_NAME
        ),
        None,
    )
    if known is None:
        stated = weight_format(named)  # of anybody's checkpoint: it need not be of a model known here
        known = next((each for each in WEIGHTS if each == stated), None) or published_weights(model) or "bf16"
        assumed.append(f"weights are {known}, by the name of the checkpoint")
    return known


def _waits(facts: JobFacts, layout: ServingLayout, assumed: list[str]) -> tuple[int, int]:
    """Decode steps that prompts wait for other ranks and then for more prompts; none where balance is off."""
    if not facts.truth("said.balance"):
        return 0, 0
    waits = []
    for name, (word, default) in _WAITS.items():
        value = facts.value(name)
        steps = default if value is None else whole_or_none(value)
        if steps is None or steps < 0:
            raise InputError(
                what=f"the server's {word} is no number of steps",
                cause=f"attention_dp_config has {word}: {shown(value)}",
                fix=f"give a whole number of at least 0, such as {default}",
            )
        if value is None and layout.attention_dp > 1:
            assumed.append(
                f"{word} is {default}, TensorRT-LLM's default: attention_dp_config does not say it"
            )
        waits.append(steps)
    return waits[0], waits[1]


def _cache_dtype(engine: ServingStack, spec: ModelSpec, gpu: str, stated: str) -> KvDtype:
    """The format of a cache: as stated, else the one that the engine's layers take, else the weights' own."""
    if "fp8" in stated:
        return "fp8"
    only = cache_dtype_of(engine, spec, maker=generation_of(gpus()[gpu]).maker)
    return only if only is not None and stated in ("", "auto") else "bf16"


def _share(value: object) -> float | None:
    """A share of the memory; None where none is said."""
    try:
        share = float(str(value))
    except ValueError:
        return None
    if not 0 < share <= 1:
        raise InputError(
            what="the server's memory setting is not possible",
            cause=f"it takes {share:g} of a GPU's memory",
            fix="give a share of at most 1, such as 0.9",
        )
    return share
