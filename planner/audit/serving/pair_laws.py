"""What two pools must have alike or apart so that one hands its caches to the other, by engine and connector.

vLLM 0.33: `compute_nixl_compatibility_hash` (cache and model formats, version), `_get_tp_ratio` of NIXL and
Mooncake (one tensor-parallel degree divides the other), `block_size_ratio` (pages of decode are whole
multiples), `is_kv_replicated` (no more prefill ranks than heads where decode has fewer ranks).
SGLang 0.5.23, disaggregation/common/conn.py:
`ensure_parallel_info` (pages and cache formats alike), `_resolve_rank_mapping` (stages of decode as of
prefill, or one).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from costmodel.parallel.divisions import HEADS
from costmodel.serving.engine import is_before
from planner.audit.serving.pool_launch import PoolLaunch
from planner.audit.serving.refused import BrokenLaw
from planner.audit.serving.server import Server
from planner.formats.settings import NOT_KNOWN, Setting, whole_or_none

_SAME_RANKS = ("PyNcclConnector",)
"""Connectors whose rank meets the other pool's rank of its number at a port of both, before it serves
(vLLM 0.7.3, distributed/kv_transfer: `SimpleConnector.port_offset_base`, the barrier of `PyNcclPipe`)."""
_NIXL, _MOONCAKE = ("NixlConnector", "NixlPullConnector", "NixlPushConnector"), ("MooncakeConnector",)
_BACKENDS = {"sglang": "mooncake"}
"""What moves caches where no word says it (SGLang's `disaggregation_transfer_backend`)."""
_PAGES = {"vllm": "block_size", "sglang": "page_size"}
_SIDE = "vllm_nixl_side_channel_port"
_PORTS = {
    "port": {"vllm": 8000, "sglang": 30000, "trtllm": 8000},
    "disaggregation_bootstrap_port": {"sglang": 8998},
    _SIDE: {"vllm": 5600},
}
"""Ports that a server listens at, and what each engine takes where no word says it."""
_WIDE = ("auto", "bf16", "bfloat16")
"""Names of a cache in the format of products, which SGLang tells apart by what they come to."""
_FEWER_RANKS = "0.11.1"
"""Release before which vLLM's NIXL surely refuses fewer ranks in decode (ai-dynamo/dynamo issue 2295 of
2025-08, vLLM pull request 26848 of 2025-10)."""
ASKS_RELEASE = "0.14"
"""First release of vLLM whose NIXL surely compares releases."""
_ELSEWHERE = frozenset(("ssh", "srun", "docker", "podman", "pdsh", "mpirun", "kubectl", "nerdctl"))
"""Programs that may start a command on a host, or in a network, of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What the command of a worker says of handing over caches, and where it listens.

    Attributes:
        connector: What moves caches: vLLM's connector, SGLang's backend; "" where no word says it.
        pages: Tokens of a page; None is the engine's own.
        lenient: Whether it is told to take what its check of both sides refuses.
        host: The script that starts it on its own host; "" where that is not known.
        listens: The ports that it listens at.
    """

    connector: str = ""
    pages: int | None = None
    lenient: bool = False
    host: str = ""
    listens: tuple[tuple[str, int], ...] = field(default=())


def handover_of(engine: str, launch: PoolLaunch) -> Handover:
    """What the command of a worker says, of an engine by the name of its profile."""
    flags = {setting.path[-1].replace("-", "_"): setting for setting in launch.settings}

    def text(name: str) -> str:
        value = flags[name].value if name in flags else ""
        return "" if value == NOT_KNOWN else str(value)

    ports = []
    for name, usual in _PORTS.items():
        listens = engine in usual and (name != "disaggregation_bootstrap_port" or launch.phase == "prefill")
        if name == "port":
            listens = listens and not launch.registers
        if name == _SIDE:
            listens = listens and text("kv_connector") in _NIXL
        port = whole_or_none(flags[name].value) if name in flags else usual.get(engine)
        if listens and port:
            ports.append((name, port))
    own_host = launch.sure and launch.program not in _ELSEWHERE and launch.is_script
    return Handover(
        connector=text("kv_connector") or text("disaggregation_transfer_backend"),
        pages=whole_or_none(text(_PAGES.get(engine, ""))) if engine in _PAGES else None,
        lenient=text("enforce_handshake_compat").lower() == "false",
        host=Path(launch.file).name if own_host else "",
        listens=tuple(ports),
    )


def broken_pair(prefill: Server, decode: Server, launches: Sequence[PoolLaunch]) -> tuple[BrokenLaw, ...]:
    """Every law that two pools break together, what is sure first."""
    handovers = {
        phase: [handover_of(decode.engine, launch) for launch in launches if launch.phase == phase]
        for phase in ("prefill", "decode")
    }
    first, last = handovers["prefill"][0], handovers["decode"][0]
    laws = [
        *_connectors(prefill.engine, first, last),
        *_formats(prefill, decode, first, last),
        *_pages(prefill.engine, first, last),
        *_ranks(prefill, decode, first.connector or last.connector),
        *_stages(prefill, decode),
        *(_ports([*handovers["prefill"], *handovers["decode"]]) if prefill.gpu == decode.gpu else ()),
    ]
    return tuple(sorted(laws, key=lambda law: not law.certain))


def _connectors(engine: str, prefill: Handover, decode: Handover) -> Iterator[BrokenLaw]:
    """One connector on both sides."""
    usual = _BACKENDS.get(engine, "")
    sends, takes = prefill.connector or usual, decode.connector or usual
    if sends != takes and sends and takes:
        yield BrokenLaw(
            why=f"prefill hands caches over by {sends}, and decode takes them by {takes}",
            fix="give both pools one connector",
        )


def _formats(prefill: Server, decode: Server, sender: Handover, taker: Handover) -> Iterator[BrokenLaw]:
    """A cache of one format, and products of one; of NIXL one version of the engine, too."""
    engine, nixl = prefill.engine, sender.connector in _NIXL and not (sender.lenient or taker.lenient)
    checked = engine == "sglang" or nixl
    usual = _WIDE if engine == "sglang" else ("auto",)
    named = (server.cache_format or "auto" for server in (prefill, decode))
    formats = ["auto" if name in usual else name for name in named]
    if formats[0] != formats[1] and engine != "trtllm":
        yield BrokenLaw(
            why=f"the cache of prefill is in {formats[0]} and that of decode in {formats[1]}: "
            "no request is handed over",
            fix="give both pools one --kv-cache-dtype",
            certain=checked,
        )
    dtypes = [server.dtype or "auto" for server in (prefill, decode)]
    if dtypes[0] != dtypes[1] and nixl:
        yield BrokenLaw(
            why=f"prefill computes in {dtypes[0]} and decode in {dtypes[1]}: NIXL's handshake asks one",
            fix="give both pools one --dtype",
            certain="auto" not in dtypes,
        )
    if prefill.version and decode.version and prefill.version != decode.version and nixl:
        yield BrokenLaw(
            why=f"prefill is vLLM {prefill.version} and decode {decode.version}: NIXL's handshake asks one",
            fix="start both pools from one image",
            certain=not any(is_before(server.version, ASKS_RELEASE) for server in (prefill, decode)),
        )
    if prefill.drafter != decode.drafter and nixl and {prefill.drafter, decode.drafter} & {"mtp", "eagle3"}:
        yield BrokenLaw(
            why="one pool drafts with the model's hidden states and the other does not: NIXL's handshake of "
            "recent releases asks one speculation",
            fix="give both pools one --speculative-config",
            certain=False,
        )


def _pages(engine: str, prefill: Handover, decode: Handover) -> Iterator[BrokenLaw]:
    """Pages of one size (SGLang), or whole multiples in decode (vLLM's NIXL)."""
    if prefill.pages is None or decode.pages is None or prefill.pages == decode.pages:
        return
    sizes = f"pages of prefill hold {prefill.pages} tokens and those of decode {decode.pages}"
    if engine == "sglang":
        yield BrokenLaw(why=f"{sizes}: no request is handed over", fix="give both pools one --page-size")
    elif prefill.connector in _NIXL and HEADS.rest(decode.pages, prefill.pages):
        yield BrokenLaw(why=f"{sizes}, no multiple", fix=f"give decode --block-size {prefill.pages}")


def _ranks(prefill: Server, decode: Server, connector: str) -> Iterator[BrokenLaw]:
    """Tensor-parallel degrees of which one divides the other, as far as heads are not held twice."""
    prefill_ranks, decode_ranks = prefill.layout.tp, decode.layout.tp
    if prefill.engine == "vllm" and connector in _SAME_RANKS and prefill_ranks != decode_ranks:
        yield BrokenLaw(
            why=f"{connector} joins ranks of one number, and prefill has tp {prefill_ranks} where decode has "
            f"tp {decode_ranks}: the rest waits for ever",
            fix=f"give both pools tp {min(prefill_ranks, decode_ranks)}",
        )
    if prefill.engine != "vllm" or prefill_ranks == decode_ranks or connector not in (*_NIXL, *_MOONCAKE):
        return
    if connector in _NIXL and prefill_ranks > decode_ranks and is_before(decode.version, _FEWER_RANKS):
        yield BrokenLaw(
            why=f"NIXL of vLLM {decode.version} asks of decode as many ranks as prefill has, and tp "
            f"{decode_ranks} is less than {prefill_ranks}",
            fix=f"give decode tp {prefill_ranks} or prefill tp {decode_ranks}, or take a newer image",
        )
        return
    if HEADS.rest(max(prefill_ranks, decode_ranks), min(prefill_ranks, decode_ranks)):
        yield BrokenLaw(
            why=f"neither of tp {prefill_ranks} of prefill and tp {decode_ranks} of decode divides the other",
            fix=f"give both tp {min(prefill_ranks, decode_ranks)}, or one a multiple of the other",
        )
    attention = prefill.model.attention
    heads = attention.whole_heads if not attention.decode_width else 0
    held = attention.cached_groups
    if (
        heads
        and connector in _NIXL
        and prefill_ranks > max(decode_ranks, held)
        and prefill.model.recurrence is None
    ):
        yield BrokenLaw(
            why=f"tp {prefill_ranks} of prefill holds {held} heads of keys several times, which decode at "
            f"tp {decode_ranks} cannot take by NIXL",
            fix=f"give prefill tp {held} at most, or decode as many ranks",
        )


def _stages(prefill: Server, decode: Server) -> Iterator[BrokenLaw]:
    """Stages of decode: as many as prefill has, or one (SGLang)."""
    prefill_stages, decode_stages = prefill.layout.pp, decode.layout.pp
    if prefill.engine == "sglang" and decode_stages not in (1, prefill_stages):
        yield BrokenLaw(
            why=f"decode has {decode_stages} pipeline stages and prefill {prefill_stages}",
            fix=f"give decode one stage, or {prefill_stages} as prefill has",
        )


def _ports(workers: Sequence[Handover]) -> Iterator[BrokenLaw]:
    """Ports at which two servers of one host listen."""
    taken: dict[tuple[str, int], list[str]] = defaultdict(list)
    for handover in workers:
        for name, port in handover.listens if handover.host else ():
            taken[handover.host, port].append(name)
    for (host, port), names in taken.items():
        if len(names) > 1:
            is_side = _SIDE in names
            flag = "VLLM_NIXL_SIDE_CHANNEL_PORT" if is_side else f"--{names[-1].replace('_', '-')}"
            yield BrokenLaw(
                why=f"{len(names)} servers of {host} listen at port {port}",
                fix=f"give each a {flag} of its own",
                certain=not is_side,
            )


def port_settings(settings: Sequence[Setting], text: str) -> tuple[Setting, ...]:
    """Settings of a command that `handover_of` reads; a port that its file gives elsewhere is not known."""
    names = {
        *_PORTS, *_PAGES.values(), "kv_connector", "disaggregation_transfer_backend",
        "enforce_handshake_compat",
    }  # fmt: skip
    kept = tuple(setting for setting in settings if setting.path[-1].replace("-", "_").lower() in names)
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in text and not any(setting.path[-1] == _SIDE for setting in kept):
        return (*kept, Setting(name=_SIDE, value=NOT_KNOWN, line=0))
    return kept
