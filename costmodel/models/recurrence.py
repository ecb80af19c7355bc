"""Token mixers that carry a state of fixed size from token to token: Mamba-2 and gated linear attention.

Training scans chunks: products inside a chunk, and a state handed from chunk to chunk. Serving keeps the
state and the last inputs of the convolution instead of keys and values.

Legend: ``H`` hidden size, ``h`` value heads of width ``p``, ``g`` key heads (Mamba-2: groups) of width ``n``
(Mamba-2: state size), ``C`` tokens of a chunk. Ranks split value and key heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from costmodel.models.mechanism import Cut, EngineWords, Mechanism

RecurrenceName = Literal["mamba2", "gated-delta", "kimi-delta", "lightning"]

HALF_BYTES, FLOAT_BYTES = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What the scan of one token costs in a layer that is not split.

    Attributes:
        flop: Operations of the forward pass, with whole squares inside a chunk, as kernels compute them.
        moved_bytes: What the forward pass reads and writes, states between chunks included.
        saved_bytes: What its backward keeps of its inputs and intermediate results, its output excluded.
    """

    flop: float
    moved_bytes: float
    saved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a mixer by how ranks hold them.

    Attributes:
        input_width: Outputs of the projections of its input that ranks split.
        gate_ranks: Inner widths of low-rank gates, whole on every rank.
        gate_widths: Their outputs, which ranks split.
        conv_width: Channels of the short convolution.
        conv_bias: Whether it has a bias.
        split_parameters: Other parameters that ranks split: decays, step biases, skips, wide norms.
        whole_parameters: Parameters that every rank holds: the norm of one head.
    """

    input_width: int
    gate_ranks: tuple[int, ...] = ()
    gate_widths: tuple[int, ...] = ()
    conv_width: int = 0
    conv_bias: bool = False
    split_parameters: int = 0
    whole_parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(Mechanism):
    """A recurrent token mixer; sizes of heads as in the legend, `conv_kernel` 0 for none.

    With a `full_rank_gate` the output gate of Kimi Delta Attention is one product, not two (Kimi-K3).
    """

    named: ClassVar[str] = "a recurrence"
    mark: ClassVar[str] = "recurrence"
    parts: ClassVar[tuple[str, ...]] = ("recurrence",)
    context_law: ClassVar[str] = "recurrence-context"
    is_measured: ClassVar[bool] = False
    engines: ClassVar[Mapping[str, EngineWords]] = {}

    kind: RecurrenceName
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    chunk: int = 64
    full_rank_gate: bool = False

    @property
    def title(self) -> str:
        """What people call it."""
        return RECURRENCES[self.kind].title

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Heads of keys, or groups."""
        return (Cut(law="recurrence-heads", axis="tp", field="key_heads", size=self.key_heads),)

    @property
    def context_cuts(self) -> tuple[Cut, ...]:
        """Heads, of which every context rank scans its own over the whole sequence."""
        fields = RECURRENCES[self.kind].context_heads
        return tuple(
            Cut(law=self.context_law, axis="cp", field=field, size=getattr(self, field)) for field in fields
        )

    @property
    def whole_sequence(self) -> str:
        """Its state."""
        return f"the state of {self.title} goes through a sequence in order"

    @property
    def shape(self) -> Shape:
        """Sizes of its projections, convolution and small parameters."""
        return RECURRENCES[self.kind].shape(self)

    @property
    def scan(self) -> Scan:
        """Costs of its chunked scan per token."""
        return RECURRENCES[self.kind].scan(self)

    @property
    def value_width(self) -> int:
        """h·p, width of the output before its projection."""
        return self.value_heads * self.value_dim

    @property
    def key_width(self) -> int:
        """g·n, width of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def state_numbers(self) -> int:
        """h·n·p, numbers of the state of one sequence."""
        return self.value_heads * self.key_dim * self.value_dim

    def on_ranks(self, tp: int) -> Recurrence:
        """The recurrence as tensor-parallel ranks of a server hold it: each has a copy of an only group.

        >>> mamba = Recurrence(kind="mamba2", key_heads=1, value_heads=128, key_dim=128, value_dim=64)
        >>> [mamba.on_ranks(tp).key_heads for tp in (1, 2, 8)]
        [1, 2, 8]
        """
        copied = tp > 1 and self.key_heads == 1 and RECURRENCES[self.kind].repeats_groups
        return replace(self, key_heads=tp) if copied else self

    @property
    def convolution_numbers(self) -> int:
        """Past inputs of the convolution that one sequence keeps."""
        return self.shape.conv_width * max(self.conv_kernel - 1, 0)

    def parameters(self, hidden_size: int) -> int:
        """Projections, convolution, gates, small parameters and h·p·H of the output."""
        s = self.shape
        gates = zip(s.gate_ranks, s.gate_widths, strict=True)
        low_rank = sum(hidden_size * rank + rank * width for rank, width in gates)
        convolution = s.conv_width * (self.conv_kernel + s.conv_bias) if self.conv_kernel else 0
        small = s.split_parameters + s.whole_parameters
        return hidden_size * (s.input_width + self.value_width) + low_rank + convolution + small

    def whole_parameters(self, hidden_size: int) -> int:
        """Parameters that every tensor-parallel rank holds."""
        s = self.shape
        return hidden_size * sum(s.gate_ranks) + s.whole_parameters


def _mamba2(r: Recurrence) -> Shape:
    """Gate, input, B, C and step in one projection (arXiv 2405.21060 §7); a norm over the gated output."""
    value, keys = r.value_width, 2 * r.key_width
    return Shape(
        input_width=2 * value + keys + r.value_heads,
        conv_width=value + keys,
        conv_bias=True,
        split_parameters=3 * r.value_heads + value,
    )


def _gated_delta(r: Recurrence) -> Shape:
    """Query, key, value, output gate, and a step and a decay of each head (arXiv 2412.06464)."""
    mixed = 2 * r.key_width + r.value_width
    return Shape(
        input_width=mixed + r.value_width + 2 * r.value_heads,
        conv_width=mixed,
        split_parameters=2 * r.value_heads,
        whole_parameters=r.value_dim,
    )


def _kimi_delta(r: Recurrence) -> Shape:
    """A decay of each channel and an output gate, both of low rank (arXiv 2510.26692 §3)."""
    mixed, whole = 2 * r.key_width + r.value_width, r.full_rank_gate
    return Shape(
        input_width=mixed + r.value_heads + r.value_width * whole,
        gate_ranks=(r.key_dim,) if whole else (r.key_dim, r.value_dim),
        gate_widths=(r.key_width,) if whole else (r.key_width, r.value_width),
        conv_width=mixed,
        split_parameters=r.key_width + r.value_heads,
        whole_parameters=r.value_dim,
    )


def _lightning(r: Recurrence) -> Shape:
    """Query, key, value and output gate; a norm over all heads (arXiv 2501.08313 §2.2)."""
    width = 2 * r.key_width + 2 * r.value_width
    return Shape(input_width=width, split_parameters=r.value_width)


def _scan_mamba2(r: Recurrence) -> Scan:
    """2·C·g·n scores of a group, 2·C·h·p outputs inside a chunk, 2·h·n·p each into and out of the state.

    States of chunks are written, handed on and read in fp32. The fused kernel keeps no more than its inputs,
    which the convolution keeps before it.
    """
    C, value, state = r.chunk, r.value_width, r.state_numbers
    inputs = HALF_BYTES * (2 * value + 2 * r.key_width) + FLOAT_BYTES * r.value_heads
    return Scan(
        flop=2 * C * (r.key_width + value) + 4 * state,
        moved_bytes=inputs + 4 * FLOAT_BYTES * state / C,
        saved_bytes=FLOAT_BYTES * r.value_heads,
    )


def _scan_delta(r: Recurrence, *, channels: int = 1) -> Scan:
    """The WY form of the delta rule (arXiv 2406.06484 §3.2), all of a head of which so many channels decay.

    Inside a chunk K·Kᵀ, its triangular inverse (C³/3), the inverse times K and V, Q·Kᵀ and its product with
    the corrected values; 2·n·p each for what the state predicts, what it answers, and what is added to it.
    """
    C, h, n, p = r.chunk, r.value_heads, r.key_dim, r.value_dim
    decays = FLOAT_BYTES * h * channels
    corrected = h * (n + p)
    return Scan(
        flop=h * (2 * C * (3 * n + 2 * p) + C * C / 3 + 6 * n * p),
        moved_bytes=HALF_BYTES * (2 * h * n + 2 * h * p + 2 * corrected + 2 * C * h + 2 * h * n * p / C)
        + decays,
        saved_bytes=HALF_BYTES * (2 * r.key_width + h * p + C * h) + decays + FLOAT_BYTES * h,
    )


def _scan_lightning(r: Recurrence) -> Scan:
    """Scores and outputs inside a block, and 2·n·p each into and out of the state (arXiv 2401.04658)."""
    C, h, n, p = r.chunk, r.value_heads, r.key_dim, r.value_dim
    kept = HALF_BYTES * (2 * r.key_width + r.value_width)
    return Scan(
        flop=h * (2 * C * (n + p) + 4 * n * p),
        moved_bytes=kept + HALF_BYTES * (h * p + 2 * h * n * p / C),
        saved_bytes=kept,
    )


def _scan_channels(r: Recurrence) -> Scan:
    """The delta rule with a decay of each channel of a key."""
    return _scan_delta(r, channels=r.key_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRecord:
    """What is to know about one kind.

    Attributes:
        title: What people call it.
        shape: Sizes of its projections, convolution and small parameters.
        scan: Costs of its chunked scan per token.
        run_words: What files of measured runs say of a model that has it, where no column tells its layers.
        context_heads: Heads that context ranks must divide; () where no engine exchanges heads for tokens.
        repeats_groups: Whether ranks beyond the groups get a copy of one, sent with the heads; of an only
            group in serving (vLLM 0.33, `MambaMixer2`).
        context_messages: Tensors that an exchange of heads sends apart.
    """

    title: str
    shape: Callable[[Recurrence], Shape]
    scan: Callable[[Recurrence], Scan]
    run_words: str = "linear-attention layers"
    context_heads: tuple[str, ...] = ()
    repeats_groups: bool = False
    context_messages: int = 1


RECURRENCES: Mapping[RecurrenceName, RecurrenceRecord] = {
    "mamba2": RecurrenceRecord(
        title="Mamba-2",
        shape=_mamba2,
        scan=_scan_mamba2,
        run_words="Mamba-2 layers",
        context_heads=("value_heads",),
        repeats_groups=True,  # megatron-core 0.19.2 ssm/mamba_context_parallel.py: group_repeat_count
        context_messages=5,  # the same, pre_conv_ssm: z, x, B, C, dt
    ),
    "gated-delta": RecurrenceRecord(
        title="Gated DeltaNet",
        shape=_gated_delta,
        scan=_scan_delta,
        context_heads=("key_heads", "value_heads"),  # megatron-core 0.19.2 ssm/gated_delta_net/common.py
    ),
    "kimi-delta": RecurrenceRecord(title="Kimi Delta Attention", shape=_kimi_delta, scan=_scan_channels),
    "lightning": RecurrenceRecord(title="Lightning attention", shape=_lightning, scan=_scan_lightning),
}
"""Every kind, in the order of its names."""
