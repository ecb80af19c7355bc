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
)
from costmodel.serving.engine import ServingStack, is_before, serving_stack
from planner.audit.environment import exchanges_through_hosts
from planner.audit.facts import JobFact, JobFacts, meaning
from planner.audit.file_names import model_of_names
from planner.audit.launch import OPTION_FILES
from planner.audit.read import Reading
from planner.audit.server_flags import NOTHING_UNREAD, Unread, unread_flags
from planner.audit.serving.configured import configured_model
from planner.audit.serving.degrees import BrokenWord, broken_degrees, read_or_broken
from planner.audit.serving.graphs import captures_steps, graph_batch, is_level, switches_graphs_off
from planner.audit.serving.kept_prefixes import FLAGS_OF_PREFIXES, keeps_prefixes
from planner.audit.serving.lora import ServedAdapters, adapters_of
from planner.audit.serving.machine import compared_with_machine, gpus_of_machine
from planner.audit.serving.speculation import UNPRICED, drafts_of
from planner.audit.serving.stages import OPTIONS_OF_LAYERS, fitting_order, kinds_of_stages, with_layers
from planner.formats.server_lines import ServerLog
from planner.formats.settings import NOT_KNOWN, Scalar, Setting, number, whole_or_none
from planner.serving.plan import PoolPlan, ServingPlan, ServingRequest
from topology.base.errors import InputError, shown
from topology.base.units import GIB
from topology.catalog import gpu_name, gpus
from topology.hardware.datasheets import default_gpu, generation_of

ONE_OF_TWO = "the files of both pools: these start one of two"
"""What a load's price lacks where files start the workers of one pool alone; their start is judged."""
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
        slow: Settings that make it slow.
        graph_batch: Most requests of a rank whose decode steps graphs hold; 0 for none, None for any number.
        own_all_reduce: Whether the engine's own all-reduce is used, which a switch ends.
        peers: Whether NCCL may read another GPU's memory, which variables forbid.
        checkpoint: What it loads, as the files name it.
        knows_gpu: Whether its GPUs are said, and not taken for granted.
        version: Of the engine, where the files name it; "" is the newest known.
        tag: Of its image, where that names no release; "" where one does, or no image is named.
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
        captures_steps: Whether graphs hold whole decode steps.
        printed: What its log says.
        broken_words: Degrees and values that its engine refuses at once, with what helps; others stand in
            their place.
        beyond_machine: What its degrees take and what files give one server, if that is less; else "".
        dtype: What products are told to be in; "" is the checkpoint's.
        quantization: The method that is named for its weights; "" where none is.
        cache_format: The cache's format, as the files spell it; "" where they do not.
        cuts_prompts: Whether prompts may span steps where its engine computes them whole unless told.
        adapters: Adapters that requests name; None without.
        shares: A GPU of whose memory it and others take more than all; None without.
        little_shm: Whether its container has no more shared memory than usual ones.
        host_gpus: GPUs of a host, where files say on how many hosts a replica lies.
        cluster: A cluster that is described, by its name or file.
        backend: Kernels of attention that are asked for by name; "" where the engine chooses.
        profiles_encoder: Whether its profile run has the tower encode, where that of its engine does.
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
    quantization: str = ""
    cache_format: str = ""
    backend: str = ""
    cuts_prompts: bool = False
    adapters: ServedAdapters | None = None
    shares: SharedDevice | None = None
    little_shm: bool = False
    host_gpus: int | None = None
    cluster: str = ""
    version: str = ""
    tag: str = ""
    drafter: str = ""
    draft_tokens: int = 0
    overlaps: bool = True
    graph_batch: int | None = None
    own_all_reduce: bool = True
    peers: bool = True
    mixes: bool = False
    profiles_encoder: bool = True
    """Whether a switch lets prompts and decodes share steps, where the engine does not by itself."""
    unread: Unread = NOTHING_UNREAD
    host_weights_bytes: float = 0.0
    cache_bytes: float | None = None
    cache_tokens: int | None = None
    whole_prompts: bool = False
    captures_steps: bool = True
    printed: ServerLog | None = None
    beyond_machine: str = ""
    words: Mapping[str, Scalar] = field(default_factory=dict, compare=False)
    """Words of its command and its file of options, in one spelling; workers of two ports are alike."""
    broken_stages: str = ""
    """Why the engine refuses the layers that its stages are given; "" where it takes them."""
    keeps_prefixes: bool = False
    """Whether prompts find what earlier ones left, of a trace that names their blocks."""
    without_role: str = ""
    """A connector of two pools beside which no role is said; "" without one."""
    broken_words: tuple[BrokenWord, ...] = ()
    is_half: bool = False
    """Whether it is of one of two pools, and no file starts the other."""
    planned: ServingRequest | None = None
    """The question that it was planned for, of a server whose plan is known."""

    @property
    def unpriced(self) -> str:
        """What a time of its requests lacks; "" where it lacks nothing."""
        if self.host_weights_bytes:
            return (
                "weights on the GPUs alone: what --cpu-offload-gb keeps on hosts is read anew by every step"
            )
        if self.is_half:
            return ONE_OF_TWO
        flags = ", ".join(self.unread.uncounted)
        return f"a server without {flags}, which nothing reads" if flags else ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its GPUs, each once."""
        return tuple(dict.fromkeys(self.layout.gpus)) or (self.gpu,)

    @property
    def gpus_in_words(self) -> str:
        """How many GPUs of which kinds."""
        if not self.layout.gpus:
            return f"{self.num_gpus} × {self.gpu}"
        each = self.replicas * self.layout.stage_gpus
        return " + ".join(f"{each * self.layout.gpus.count(kind)} × {kind}" for kind in self.kinds)

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
    store = _store_of_caches(reading)
    whole = of_pool or bool(_connector_without_role(reading)) or bool(store)
    half = not whole and any(name in facts.by_field for name in _OF_POOLS)
    by_flag = any(_field_of(flag, reading) in _OF_POOLS for flag in reading.flags)
    missing = [ONE_OF_TWO] if half and not by_flag else []
    checkpoint = facts.value("said.model_source") or facts.value(
        "said.model"
    )  # the id of Ray's may be any name
    named = _LEFT_OPEN.sub(r"\2-\1", str(checkpoint or ""))
    assumed: list[str] = []
    if store:
        assumed.append(f"not priced: prompts that {store} finds in caches outside the GPUs are computed here")
    if not (model or named):
        missing.append(_asked_model(reading))
    if (untold := _untold_degree(reading, assumed)) and not missing:
        missing.append(untold)
    if missing:
        return Unknown(missing=tuple(dict.fromkeys(missing)))
    served = _served_model(reading.facts, model or "", named, configs or {}, assumed)
    if isinstance(served, Unknown):
        return served
    spec, knows = served
    engine = serving_stack(reading.family.name)
    broken: list[BrokenWord] = []
    version = reading.versions.get(_PACKAGES.get(engine.name, engine.name), "")
    tag = "" if version else reading.tags.get(_PACKAGES.get(engine.name, engine.name), "")
    if not version:
        stated = f"the tag {tag} of its image names none" if tag else "no file states one"
        assumed.append(
            f"{reading.family.name} is of the newest release known, {engine.release}: {stated}, and memory "
            "depends on it (an image of a release, or a comment such as # vLLM 0.11, says another)"
        )
    layout, replicas = read_or_broken(
        lambda: _split(engine.name, version, facts, spec), (_tensor_ranks(facts), 1), broken
    )
    broken += broken_degrees(engine.name, reading, layout)
    if (drafts := drafts_of(facts, spec, assumed)) is None:
        if not broken:
            return Unknown(missing=(UNPRICED,))
        drafts = "", 0
    options = (*reading.options, *reading.flags)
    layout, broken_stages = with_layers(layout, engine.name, reading.variables, options, spec)
    weights = _weights(facts, named, spec, assumed)
    kinds = kinds_of_stages(gpu, cluster, layout)
    if not kinds and len(reading.gpus) == layout.pp > 1:
        kinds = fitting_order(spec, engine.name, weights, layout, reading.gpus)
        assumed.append(f"stages on {', '.join(kinds)}, by their layers: no file says the order (--gpu a,b)")
    layout = replace(layout, gpus=kinds) if len(kinds) > 1 else layout
    kind = kinds[0] if kinds else _gpu(reading, assumed)
    sequences, budget = facts.count("said.max_sequences"), facts.count("said.token_budget")
    if engine.shares_budget:
        budget = budget and max(budget // layout.attention_dp, 1)
    else:
        sequences = sequences and sequences * layout.attention_dp
    steps, more = _waits(facts, layout, assumed)
    cache_format = str(facts.value("said.kv_dtype") or "").lower()
    memory = read_or_broken(lambda: _share(facts.value("said.memory_share")), None, broken)
    if memory is None and engine.reserves:
        assumed.append(
            "weights and cache take the share of the memory that the rule of the engine's release gives "
            "(--mem-fraction-static): none is given"
        )
    unread = _unread(reading, version)
    assumed += unread.notes
    beyond, idle = compared_with_machine(reading, replicas * layout.num_gpus)
    assumed += idle
    held = graph_batch(reading, drafts[1], assumed)
    eager = "cuda graphs are off: every step lasts at least as long as its operations are launched"
    return Server(
        engine=engine.name,
        model=spec,
        gpu=kind,
        layout=layout,
        replicas=replicas,
        weights=weights,
        kv_dtype=_cache_dtype(engine, spec, kind, cache_format),
        memory_fraction=memory,
        max_batch=sequences,
        token_budget=budget,
        balance_steps=steps,
        gather_steps=more,
        longest=facts.count("said.max_length"),
        assumed=tuple(assumed),
        slow=(eager,) if held == 0 else (),
        graph_batch=held,
        own_all_reduce=not facts.truth("said.no_custom_all_reduce"),
        peers=not exchanges_through_hosts(reading.variables, reading.slow_variables),
        checkpoint=named,
        knows_gpu=bool(kinds) or len(reading.gpus) == 1,
        fits_length=_length_is_left_open(reading),
        stretches=_stretches(reading),
        knows_positions=knows,
        dtype=str(facts.value("said.dtype") or "").lower(),
        quantization=str(facts.value("said.precision") or "").lower(),
        cache_format=cache_format,
        backend=_backend(reading),
        cuts_prompts=facts.truth("said.cuts_prompts") is True,
        adapters=adapters_of(reading, spec, engine),
        host_gpus=_host_gpus(facts, layout),
        cluster="" if layout.gpus else cluster or "",
        version=version,
        tag=tag,
        drafter=drafts[0],
        draft_tokens=drafts[1],
        mixes=facts.truth("said.mixed_chunks") is True,
        profiles_encoder=facts.truth("said.unprofiled_encoder") is not True,
        unread=unread,
        words=_words_of_server(reading),
        host_weights_bytes=(number(facts.value("said.cpu_offload")) or 0.0) * GIB,
        cache_bytes=_bytes(facts.value("said.cache_bytes")),
        cache_tokens=facts.count("said.cache_tokens"),
        whole_prompts=bool(facts.truth("said.whole_prompts")),
        captures_steps=captures_steps(reading),
        printed=reading.served,
        beyond_machine=beyond,
        broken_stages=broken_stages,
        keeps_prefixes=keeps_prefixes(reading, engine.name, spec, version),
        without_role=_connector_without_role(reading) if engine.name == "vllm" else "",
        broken_words=tuple(broken),
        is_half=half,
        overlaps=facts.truth("said.overlap") is not False and not facts.truth("said.overlap_off"),
    )


def _store_of_caches(reading: Reading) -> str:
    """The connector by which a server of whole requests keeps caches elsewhere (kv_both); "" without."""
    named = {setting.path[-1]: str(setting.value) for setting in reading.settings if setting.path}
    connector = named.get("kv_connector", "")
    return "" if named.get("kv_role") != "kv_both" or _HANDS_OVER.search(connector) else connector


_DEGREES = {
    "layout.tp": "tensor",
    "layout.pp": "pipeline",
    "layout.dp": "data",
    "layout.ep": "expert",
    "said.dcp": "decode context",
}


def _untold_degree(reading: Reading, assumed: list[str]) -> str:
    """What a price lacks where only a run knows a degree; tensor ranks alone are all GPUs that files give.

    Nothing is priced on one rank in its place: that would hold other weights.
    """
    facts = reading.facts
    untold = [name for name in _DEGREES if name in facts.unknown and name not in facts.by_field]
    machine = gpus_of_machine(reading)
    if machine is None and reading.mentioned_gpus:
        machine = reading.mentioned_gpus, f"a comment counts {reading.mentioned_gpus}"
    others = {facts.count("layout.pp") or 1, facts.count("layout.dp") or 1}
    if untold == ["layout.tp"] and machine is not None and others == {1}:
        gpus, where = machine
        facts.by_field["layout.tp"] = JobFact(name="layout.tp", value=gpus, how="derived")
        assumed.append(f"tp is {gpus}, all GPUs that the server has ({where}): only a run knows it")
        return ""
    for name in untold:
        unread = [each for each in reading.settings if meaning(each, reading.family.words) == name]
        line = next((f" (line {each.line})" for each in unread if each.value == NOT_KNOWN), "")
        return f"the {_DEGREES[name]} parallel degree{line}, which only a run knows: --env NAME=VALUE says it"
    return ""


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
    if facts.truth("said.text_only") or _takes_no_images(facts.value("said.item_limits")):
        spec = replace(spec, encoder=None)
    spec, knows = _positioned(spec, model, named)
    if not knows and facts.count("said.max_length") is None:
        assumed.append(
            f"requests of up to {spec.max_sequence_length:,} tokens, the positions of {spec.name}: those of "
            f"{named or model} are not known, and other checkpoints of its shape have others (say its length)"
        )
    return spec, knows


def _asked_model(reading: Reading) -> str:
    """The flag that says the model; the name of a file may tell one, and decides nothing."""
    named = model_of_names([*reading.kinds])
    return "--model" if named is None else f"--model (the name of {named[1]} tells {named[0].name})"


_ELSEWHERE = frozenset(
    (
        *OPTION_FILES,
        *FLAGS_OF_PREFIXES,
        *OPTIONS_OF_LAYERS.values(),
        "disaggregation_transfer_backend",
        "cudagraph_mode",
        "no_disable_hybrid_kv_cache_manager",
    )
)
"""Flags that no field states and that are read all the same."""


def _field_of(setting: Setting, reading: Reading) -> str | None:
    """What a flag states, by itself or by the table that it is in; None of one that states nothing."""
    whole = replace(setting, name=setting.path[0])
    return meaning(setting, reading.family.words) or meaning(whole, reading.family.words)


def _unread(reading: Reading, version: str) -> Unread:
    """Flags of its command that nothing reads; those of positions are read where they scale them."""
    scaled = {flag.path[0] for flag in reading.flags if _stretches_positions(flag) or is_level(flag)}

    def is_read(setting: Setting) -> bool:
        stated = _field_of(setting, reading)
        elsewhere = setting.path[0] in _ELSEWHERE or setting.path[0] in scaled
        elsewhere = elsewhere or switches_graphs_off(setting)
        return elsewhere or (stated is not None and stated != "said.ignored")

    unread = unread_flags(reading.family.name, reading.flags, is_read, version, reading.options)
    return replace(unread, lacking=reading.lacking)


def _words_of_server(reading: Reading) -> dict[str, Scalar]:
    """Words of a server's command and its file of options; of a release's values the last part of each."""
    words = (*reading.options, *reading.flags)
    if words:
        return {".".join(each.path): each.value for each in words if each.value != NOT_KNOWN}
    return {each.path[-1]: each.value for each in reading.settings if each.value != NOT_KNOWN}


def _stretches_positions(flag: Setting) -> bool:
    """Whether a flag says how positions are scaled, and nothing else of a model."""
    names = flag.path[0].replace("_", "-").startswith(_POSITIONS)
    return names and ("rope" in flag.path[0] or "rope" in str(flag.value))


_LIMIT = re.compile(r"(image|video)\W{1,4}(?:count\W{1,4})?(\d{1,6})")


def _takes_no_images(limits: object) -> bool:
    """Whether a prompt may have no image and no video, whose tower vLLM then leaves out.

    >>> _takes_no_images('{"image": 0, "video": 0}'), _takes_no_images({"image": 0}), _takes_no_images(None)
    (True, False, False)
    """
    counts = dict(_LIMIT.findall(str(limits)))
    return len(counts) == len(("image", "video")) and not any(int(count) for count in counts.values())


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


_HANDS_OVER = re.compile(r"nixl|mooncakeconnector|p2pnccl|moriio|multiconnector", re.IGNORECASE)
"""Connectors of vLLM by which one server gives its caches to another; the rest keep them beside one."""


def _connector_without_role(reading: Reading) -> str:
    """The connector that a command names without saying its role."""
    named = {setting.path[-1]: str(setting.value) for setting in reading.settings if setting.path}
    return named.get("kv_connector", "") if "kv_role" not in named else ""


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
    """The workers of a plan's pool as they start: told a memory setting where the engine computes one."""
    request, stack = plan.request, serving_stack(plan.request.engine)
    return Server(
        engine=request.engine,
        model=request.model,
        gpu=request.gpu,
        layout=pool.layout,
        replicas=pool.workers,
        weights=plan.weights,
        kv_dtype=plan.kv_dtype,
        memory_fraction=request.job.memory_fraction or (stack.memory_fraction if stack.reserves else None),
        max_batch=pool.max_batch,
        token_budget=pool.token_budget,
        longest=request.length_limit,
        balance_steps=pool.balance_steps,
        gather_steps=pool.gather_steps,
        fits_length=request.length_limit is None,
        drafter=request.job.drafter,
        draft_tokens=request.job.draft_tokens,
        planned=request,
        keeps_prefixes=bool(request.router),
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


def _tensor_ranks(facts: JobFacts) -> ServingLayout:
    """Tensor-parallel ranks alone, in the place of degrees that are not possible together."""
    return ServingLayout(tp=max(facts.count("layout.tp") or 1, 1), pp=max(facts.count("layout.pp") or 1, 1))


_OWN_ATTENTION_RANKS = "0.4.4"
"""First release of SGLang whose attention ranks are as many as --dp-size says: before, each GPU was one."""


def _split(engine: str, version: str, facts: JobFacts, model: ModelSpec) -> tuple[ServingLayout, int]:
    """How a replica is split, and how many the server starts."""
    tp, pp, dp, ep, dcp = (
        facts.count(name) or 1 for name in ("layout.tp", "layout.pp", "layout.dp", "layout.ep", "said.dcp")
    )
    if engine == "vllm":
        ranks = dp if model.is_moe else 1
        ep = tp * ranks if model.is_moe and facts.truth("said.expert_parallel") else 1
        return ServingLayout(tp=tp, pp=pp, attention_dp=ranks, ep=ep, dcp=dcp), dp // ranks
    if engine == "sglang":
        ranks = tp if is_before(version, _OWN_ATTENTION_RANKS) else dp
        together = facts.count("said.attention_ranks") or (ranks if facts.truth("said.attention_dp") else 1)
        copies = 1 if together > 1 else dp
        ep = tp if model.is_moe and _exchanges_tokens(facts) else ep
    else:
        together, copies = (tp if facts.truth("said.attention_dp") else 1), 1
    if tp % together:
        raise InputError(
            what="the attention ranks do not divide the server",
            cause=f"{together} attention ranks share {tp} GPUs",
            fix=f"give attention ranks among the divisors of {tp}",
        )
    return ServingLayout(tp=tp // together, pp=pp, attention_dp=together, ep=ep), copies


_NO_EXCHANGE = ("none", "ascend_tp")


def _exchanges_tokens(facts: JobFacts) -> bool:
    """Whether tokens travel to experts: SGLang then spreads these over all ranks, whatever --ep-size says.

    Of v0.4.5 to v0.5.23, `_a2a_ep_size` of its arguments: so every backend but none and Ascend's of ranks.
    """
    backend = facts.value("said.expert_exchange")
    return backend is not None and str(backend).lower() not in (*_NO_EXCHANGE, "false")


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
