"""Record which tokens vLLM's own scheduler puts into every step of random workloads.

    "$MESHPLAN_PARSERS" tools/record_scheduler.py OUT.json.gz

`tools/build_parsers.py` makes that interpreter. A step takes one unit of time; requests have a prompt, an
output and a step of arrival. Nothing of vLLM is written, only numbers: for every step the request and its
tokens.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from planner.parsers import vllm as parser

WORKLOADS, SEED, BLOCK = 50, 17, 16
MOST_STEPS = 5000


class Unset:
    """A configuration in which whatever was not given is None."""

    def __init__(self, **given: Any) -> None:
        """Set what is given."""
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        """What was not given."""
        if name.startswith("__"):
            raise AttributeError(name)


def scheduler(blocks: int, seqs: int, budget: int) -> Any:
    """The scheduler of vLLM over a cache of so many blocks, without a model."""
    import torch
    from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    cache.num_gpu_blocks = blocks
    config = Unset(
        scheduler_config=SchedulerConfig(
            max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=8192, enable_chunked_prefill=True,
            is_encoder_decoder=False, async_scheduling=False,
        ),
        cache_config=cache,
        parallel_config=ParallelConfig(),
        model_config=Unset(max_model_len=8192, runner_type="generate"),
        observability_config=Unset(),
        ec_manager_config=Unset(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Unset(enabled=False),
        compilation_config=Unset(),
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_concurrent_batches=1,
    )  # fmt: skip
    held = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    return Scheduler(config, held, Unset(accept_tokens=lambda *_: True), BLOCK, BLOCK)


def recorded(requests: list[tuple[int, int, int]], blocks: int, seqs: int, budget: int) -> list[Any]:
    """Pairs of request and tokens of every step that has some."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    engine, coming, steps = scheduler(blocks, seqs, budget), list(enumerate(requests)), []
    for step in range(MOST_STEPS):
        while coming and coming[0][1][2] <= step:
            number, (prompt, output, _) = coming.pop(0)
            wanted = SamplingParams(max_tokens=output, ignore_eos=True)
            engine.add_request(Request(str(number), [1] * prompt, wanted, None))
        if not engine.has_unfinished_requests():
            if not coming:
                return steps
            continue
        decided = engine.schedule()
        tokens = dict(decided.num_scheduled_tokens)
        steps.append(sorted((int(name), count) for name, count in tokens.items()))
        ended = [engine.requests[name] for name in tokens]
        engine.update_from_output(
            decided,
            ModelRunnerOutput(
                req_ids=list(tokens),
                req_id_to_index={name: i for i, name in enumerate(tokens)},
                sampled_token_ids=[[7] if one.num_computed_tokens >= one.num_tokens else [] for one in ended],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
    raise RuntimeError("the workload does not end")


def main() -> None:
    """Record and write."""
    import vllm.platforms

    vllm.platforms.current_platform.device_type = "cuda"
    rng, found = random.Random(SEED), []  # noqa: S311  # workloads, not secrets
    for number in range(WORKLOADS):
        count, seqs = rng.randint(8, 40), rng.choice([4, 8, 16])
        budget, tight = rng.choice([64, 256, 512, 2048]), number % 5 == 4
        requests = [
            (rng.randint(10, 900), rng.randint(1, 60), rng.randint(0, count * 3)) for _ in range(count)
        ]
        requests.sort(key=lambda one: one[2])
        blocks = rng.choice([200, 260]) if tight else 4000
        steps = recorded(requests, blocks, seqs, budget)
        found.append({"blocks": blocks, "seqs": seqs, "budget": budget, "requests": requests, "steps": steps})
    version = __import__("importlib.metadata").metadata.version("vllm")
    document = {
        "source": f"vllm {version}, v1/core/sched/scheduler.py, by tools/record_scheduler.py",
        "seed": SEED,
    }
    text = json.dumps({**document, "workloads": found}, separators=(",", ":"))
    Path(sys.argv[1]).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{parser.__name__}: {WORKLOADS} workloads, {sum(len(one['steps']) for one in found)} steps")


if __name__ == "__main__":
    main()
