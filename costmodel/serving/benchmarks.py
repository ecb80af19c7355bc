"""What public serving benchmarks ask of a server, where tables of their results do not say it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from costmodel.serving.engine import is_before

_FILE = Path(__file__).parents[1] / "data" / "serving_benchmarks.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """A recipe in which an engine looks for new requests every so many steps (SGLang's receive interval).

    `steps_from_concurrency` are pairs of the fewest concurrent requests and the steps. `pools` are servers of
    two pools with tensor-parallel attention; else servers of whole requests.
    """

    engine: str
    gpus: tuple[str, ...]
    steps_from_concurrency: tuple[tuple[int, int], ...]
    pools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPool:
    """What recipes of a benchmark give servers of an engine that compute prompts alone: tokens of a step.

    `counted_weights` are formats of weights whose attention ranks exchange tokens by DeepEP's normal kernels,
    which tell the host how many come. `kv_dtype` is the format of the cache of both pools; empty where it is
    the engine's own.
    """

    engine: str
    token_budget: int
    counted_weights: tuple[str, ...] = ()
    kv_dtype: Literal["", "bf16", "fp8"] = ""
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCheckpoint:
    """The checkpoint that a benchmark serves of these models in one format of weights."""

    models: tuple[str, ...]
    weights: str
    name: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retokenised:
    """Prompts that a server reads as more tokens than its client wrote, as both tokenise unlike.

    Of these models in an engine from version `since` on, in runs before the day `until`: `read` tokens for
    every `written` ones.
    """

    engine: str
    models: tuple[str, ...]
    since: str
    until: str
    written: int
    read: int
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedServer:
    """How a benchmark starts servers of an engine, from version `since` on.

    `prompts_per_step` are the prompts that the token budget holds beside a token of each request of the
    batch; 0 where it leaves that to the engine.
    `mixed` says whether it lets prompts and decodes share steps, where the engine does not by itself.
    `cached_models` are those whose servers kept prompts that came before, as one of their rows proves.
    `warp_products` says that it asks for kernels of MXFP4 experts which multiply by instructions of one warp.
    """

    engine: str
    source: str
    as_of: str
    since: str = ""
    prompts_per_step: int = 0
    mixed: bool = False
    cached_models: tuple[str, ...] = ()
    warp_products: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingBenchmark:
    """A benchmark's client and recipes.

    Attributes:
        lowest_share: Shortest request over the nominal length; lengths are uniform in between.
        source: Where it says so.
        as_of: When that was read.
        clients: What tables call its client.
        tables: First word of the `source` of tables whose rows without a client are its own.
        polling: Engines that it makes look for requests less often than every step.
        prompt_pools: What it gives servers that compute prompts alone.
        servers: How it starts servers whose rows state no flags.
        checkpoints: Which of several of a model it serves.
        unlike_prompts: Prompts that its client makes, each request one of them at random; 0 where all differ.
        warm_up_rounds: Requests for each in flight that come before those which count.
        retokenised: Prompts of its client that were longer than it says.
    """

    lowest_share: float
    source: str
    as_of: str
    clients: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    polling: tuple[Polling, ...] = ()
    prompt_pools: tuple[PromptPool, ...] = ()
    servers: tuple[StartedServer, ...] = ()
    checkpoints: tuple[ServedCheckpoint, ...] = ()
    unlike_prompts: int = 0
    warm_up_rounds: int = 0
    retokenised: tuple[Retokenised, ...] = ()


@functools.cache
def serving_benchmarks() -> Mapping[str, ServingBenchmark]:
    """The known benchmarks by name.

    >>> list(serving_benchmarks())
    ['aiconfigurator', 'aiperf', 'inferencemax']
    """
    from topology.base.decode import read_toml, structure

    return {
        name: structure(entry, ServingBenchmark, f"{_FILE.name}: {name}")
        for name, entry in read_toml(_FILE).items()
    }


def benchmark_named(name: str) -> ServingBenchmark | None:
    """The benchmark of this name, None for an empty one; raises `InputError` where none is known by it.

    >>> benchmark_named("InferenceMAX").lowest_share, benchmark_named("")
    (0.8, None)
    """
    from topology.base.names import resolve

    known = serving_benchmarks()
    return known[resolve(name, known, "benchmark")] if name else None


def benchmark_of_client(client: str) -> str:
    """The benchmark of a client; "" where none is stated, or none is known by its name.

    >>> benchmark_of_client("inferencex"), benchmark_of_client("genai-perf"), benchmark_of_client("")
    ('inferencemax', 'aiperf', '')
    """
    named = (name for name, benchmark in serving_benchmarks().items() if client in benchmark.clients)
    return next(named, "")


def benchmark_of_table(source: str) -> str:
    """The benchmark whose own rows a table has where these name no client; "" for any other table.

    >>> benchmark_of_table("aiconfigurator-core 0.12.0 silicon_sample.csv"), benchmark_of_table("a blog")
    ('aiconfigurator', '')
    """
    named = (
        name
        for name, benchmark in serving_benchmarks().items()
        if source.lower().startswith(benchmark.tables or ("\0",))
    )
    return next(named, "")


def started_server(benchmark: ServingBenchmark | None, engine: str, version: str) -> StartedServer | None:
    """How a benchmark starts this version of an engine; None where it does not say.

    >>> known = serving_benchmarks()["aiconfigurator"]
    >>> [started_server(known, "sglang", version) is None for version in ("0.5.1.post1", "0.5.6.post2", "")]
    [True, False, False]
    >>> started_server(known, "vllm", "0.12.0").prompts_per_step, started_server(None, "vllm", "")
    (1, None)
    """
    servers = benchmark.servers if benchmark else ()
    alike = (each for each in servers if each.engine == engine and not is_before(version, each.since))
    return next(alike, None)


def polling_steps(
    benchmark: ServingBenchmark | None, engine: str, gpu: str, concurrency: int, *, pools: bool = False
) -> int:
    """Steps between two looks of the engine for new requests; 1 where no recipe says otherwise.

    >>> known = serving_benchmarks()["inferencemax"]
    >>> [polling_steps(known, "sglang", "b200-sxm", many) for many in (8, 64)]
    [10, 30]
    >>> polling_steps(known, "sglang", "h200-sxm", 64), polling_steps(known, "sglang", "gb200", 4, pools=True)
    (1, 10)
    """
    for recipe in benchmark.polling if benchmark else ():
        if recipe.engine == engine and gpu in recipe.gpus and recipe.pools == pools:
            return max(
                (least, steps) for least, steps in recipe.steps_from_concurrency if concurrency >= least
            )[1]
    return 1


def tokens_read(
    benchmark: ServingBenchmark | None, engine: str, version: str, model: str, run_date: str, written: int
) -> int:
    """Tokens that a server reads of a prompt which its client writes as `written`.

    >>> known = serving_benchmarks()["inferencemax"]
    >>> [
    ...     tokens_read(known, "sglang", version, "deepseek-v3", day, 7140)
    ...     for version, day in (("0.5.9", "2026-04-17"), ("0.5.10", "2026-04-17"), ("0.5.10", "2026-06-01"))
    ... ]
    [7140, 35921, 7140]
    """
    for each in benchmark.retokenised if benchmark else ():
        dated = bool(version and run_date) and not is_before(version, each.since) and run_date < each.until
        if dated and each.engine == engine and model in each.models:
            return round(written * each.read / each.written)
    return written


def served_checkpoint(benchmark: ServingBenchmark | None, model: str, weights: str) -> str:
    """The checkpoint that a benchmark serves; "" where it does not say.

    >>> known = serving_benchmarks()["inferencemax"]
    >>> [served_checkpoint(known, "deepseek-v3", weights) for weights in ("fp4", "fp8")]
    ['nvidia/DeepSeek-R1-0528-FP4-v2', '']
    """
    served = benchmark.checkpoints if benchmark else ()
    return next((each.name for each in served if model in each.models and weights == each.weights), "")


def prompt_pool(benchmark: ServingBenchmark | None, engine: str) -> PromptPool | None:
    """What a server that computes prompts alone is given; None where no recipe says.

    >>> prompt_pool(serving_benchmarks()["inferencemax"], "trtllm").token_budget, prompt_pool(None, "trtllm")
    (16384, None)
    """
    pools = benchmark.prompt_pools if benchmark else ()
    return next((pool for pool in pools if pool.engine == engine), None)
