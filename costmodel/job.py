"""What is asked of a model: a training job or a serving job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.models.sizes import LARGEST_SIZE
from costmodel.updates.adapters import Adapter
from costmodel.updates.compression import Compression, parse_compression
from costmodel.updates.local_steps import LocalSteps, parse_local_steps
from costmodel.updates.offload import Offload
from costmodel.updates.optimizers import USUAL, require_known_optimizer
from topology.base.errors import InputError, shown

MOST_PER_S = 1e9
"""Requests a second; everybody on earth together sends fewer."""
MOST_TOKENS = 10**18
"""Tokens of a training run; the largest read some 10**14."""
MOST_USD = 1e15
"""Dollars of a budget: ten years of what the world makes."""
LONGEST_S = 1e12
"""Thirty thousand years, in seconds."""
MOST_IN_FLIGHT = 10**6
"""Requests at a time; more are several services."""
MOST_MTP_LAYERS = 64
"""Further tokens that a step predicts; published models train one to three."""
LARGEST_BUCKET = 1e13
"""Bytes of a gradient bucket; all gradients of the largest model are one of as many."""
_LARGEST: Mapping[str, float] = {
    "bucket_bytes": LARGEST_BUCKET, "request_rate_per_s": MOST_PER_S, "total_tokens": MOST_TOKENS,
    "budget_usd": MOST_USD,
    "concurrency": MOST_IN_FLIGHT,
    **dict.fromkeys(("deadline_s", "ttft_s", "tpot_s", "end_to_end_s"), LONGEST_S),
}  # fmt: skip
"""Of what a job asks for; of all else `LARGEST_SIZE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One pre-training job: how long a sequence is, how many make a step, and what the user is bound by.

    `global_batch_size` counts sequences. `total_tokens` and `deadline_s` are optional: the objective ``gpus``
    reads them, and a run knows from the tokens when it is done. `budget_usd` is what the run may cost: its
    campaign says the chance, no plan is chosen by it. With an `adapter` all other weights
    are frozen. What waits in host memory is `offload`; `gradient_compression` is how replicas
    send gradients (`parse_compression`), `local_steps` how many steps they run apart (`parse_local_steps`);
    replicas that keep whole gradients send them in buckets of `bucket_bytes`, where that is said. Of a number
    of expert-parallel ranks the busiest has `expert_load` times the mean's tokens, where that was measured.
    Of a model that sees, a sequence has `images` of `image_tokens` each; None: one, of the usual size. A
    `frozen_tower` is not trained, what joins it to the decoder is; beside an adapter it always is.
    Where documents are packed into sequences and attention stays inside each, `document_tokens` is the length
    that they would have, were they alike: Σl²/Σl of their lengths. None: a sequence is one document.
    `mtp_layers` modules predict one further token each (`costmodel.ops.mtp`), whether the published model has
    any or not.
    """

    sequence_length: int
    global_batch_size: int
    precision: TrainingPrecision = "bf16"
    optimizer: str = USUAL
    total_tokens: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    adapter: Adapter | None = None
    offload: Offload | None = None
    gradient_compression: str | None = None
    local_steps: str | None = None
    bucket_bytes: float | None = None
    expert_load: tuple[tuple[int, float], ...] = ()
    images: int | None = None
    image_tokens: int | None = None
    frozen_tower: bool = False
    mtp_layers: int = 0
    document_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a job without tokens, or with an optimizer that is not known."""
        require_known_optimizer(self.optimizer)
        if self.apart and self.compression:
            raise InputError(
                what="workers that run apart send no compressed gradients",
                cause=f"job.local_steps = {self.local_steps}, and gradients as {self.gradient_compression}",
                fix="leave one of them out",
            )
        if self.compression and self.adapter:
            raise InputError(
                what="adapters are not trained with compressed gradients",
                cause=f"job.gradient_compression = {self.gradient_compression}, and an adapter",
                fix="leave one of them out",
            )
        if self.mtp_layers and self.adapter:
            raise InputError(
                what="adapters are not trained with modules that predict further tokens",
                cause=f"job.mtp_layers = {shown(self.mtp_layers)}, and an adapter",
                fix="leave one of them out",
            )
        if not 0 <= self.mtp_layers <= MOST_MTP_LAYERS:
            raise InputError(
                what="training job is not possible",
                cause=f"mtp_layers = {shown(self.mtp_layers)}, which is 0 to {MOST_MTP_LAYERS}",
                fix=f"give mtp_layers from 0 to {MOST_MTP_LAYERS}",
            )
        for ranks, factor in self.expert_load:
            if not (1 <= ranks <= LARGEST_SIZE and factor * (1 + 1e-9) >= 1 and factor <= ranks * (1 + 1e-9)):
                raise InputError(
                    what="training job is not possible",
                    cause=f"the busiest of {shown(ranks)} ranks has {shown(factor)} times the mean's tokens",
                    fix=f"a share of the busiest lies between 1 and {shown(ranks)}",
                )
        _require_positive("training job", "sequence_length", self.sequence_length)
        _require_positive("training job", "global_batch_size", self.global_batch_size)
        for name in (
            "total_tokens", "deadline_s", "budget_usd", "bucket_bytes", "images", "image_tokens",
            "document_tokens",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                _require_positive("training job", name, value)

    @property
    def tokens_per_step(self) -> int:
        """Tokens consumed by one optimizer step."""
        return self.sequence_length * self.global_batch_size

    @property
    def compression(self) -> Compression | None:
        """How replicas send gradients; None as the engine does it."""
        return parse_compression(self.gradient_compression) if self.gradient_compression else None

    @property
    def apart(self) -> LocalSteps | None:
        """How workers run apart between agreements; None where they sum gradients in every step."""
        return parse_local_steps(self.local_steps) if self.local_steps else None

    @property
    def trains_tower(self) -> bool:
        """Whether gradients reach what the model sees with."""
        return self.adapter is None and not self.frozen_tower

    @property
    def is_low_precision(self) -> bool:
        """Whether the linear layers multiply in eight bits or four."""
        return TRAINING[self.precision].is_low


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJob:
    """One serving workload: request shape, load, and the latency that must be kept.

    Give either `request_rate_per_s` (open loop) or `concurrency` (closed loop, requests in flight).
    `percentile` is the share of requests, in 0…100, that must meet `ttft_s`, `tpot_s` and `end_to_end_s`.
    `cached_share` is the share of a prompt that a prefix cache already holds; `draft_tokens` are speculated
    per step by `drafter` (mtp, eagle3 or a model's name) and accepted at rate `acceptance`.
    `memory_fraction` is the engine's memory setting, in 0…1, in place of its default.
    Every request names one of `adapters` adapters like `adapter`, all of them held at once.
    """

    input_tokens: int
    output_tokens: int
    input_tokens_p99: int | None = None
    output_tokens_p99: int | None = None
    request_rate_per_s: float | None = None
    concurrency: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    end_to_end_s: float | None = None
    percentile: float = 99.0
    kv_dtype: Literal["bf16", "fp8"] = "bf16"
    weight_precision: Literal["bf16", "fp8", "fp4", "int8", "int4"] = "bf16"
    cached_share: float = 0.0
    draft_tokens: int = 0
    acceptance: float = 0.0
    drafter: str = ""
    burstiness: float = 1.0
    memory_fraction: float | None = None
    adapter: Adapter | None = None
    adapters: int = 0

    def __post_init__(self) -> None:
        """Refuse a job without tokens or load."""
        _require_positive("serving job", "input_tokens", self.input_tokens)
        _require_positive("serving job", "output_tokens", self.output_tokens)
        for name in (
            "input_tokens_p99", "output_tokens_p99",
            "request_rate_per_s", "concurrency", "ttft_s", "tpot_s", "end_to_end_s", "percentile",
            "burstiness", "memory_fraction",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                _require_positive("serving job", name, value)


def _require_positive(what: str, name: str, value: float) -> None:
    """Raise unless the value is positive and of a size that exists."""
    most = _LARGEST.get(name, LARGEST_SIZE)
    if not 0 < value <= most:
        cause, fix = f"{name} = {shown(value)}", f"give a positive {name} of at most {most:g}"
        raise InputError(f"{what} is not possible", cause, fix)
