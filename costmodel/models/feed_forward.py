"""The kinds of feed-forward block, one record each: a dense one, and routed experts with shared ones beside.

All answer to the same names. A new kind is its record here, in `FEED_FORWARD_KINDS`, its fields in
`costmodel.models.spec`, its operations in `costmodel.ops.feed_forward`, by `name`, and its reader in
`costmodel.models.hf`; to run it, its module in `executor.model.transformer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from costmodel.models.mechanism import Cut, Mechanism

FeedForwardName = Literal["dense", "moe"]
BlockName = Literal["dense", "moe"]
"""What of a layer a token goes through: all of one block, or some of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """The two, or if gated three, matrices of a block, of which blocks of several widths are made."""

    hidden_size: int
    gated: bool
    bias: bool

    def parameters(self, width: int) -> int:
        """Parameters of one block of inner size `width`; none for a width of zero."""
        into = 2 if self.gated else 1
        biases = (into * width + self.hidden_size) * self.bias
        return (into + 1) * self.hidden_size * width + biases if width else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeedForward(Mechanism):
    """One block that every token goes through."""

    name: ClassVar[FeedForwardName] = "dense"
    named: ClassVar[str] = "a dense feed-forward"
    title: ClassVar[str] = "feed-forward"
    repeated_as: ClassVar[Literal["mlp", "moe"]] = "mlp"
    more_kernels: ClassVar[int] = 1  # the activation
    copies: ClassVar[int] = 0
    router_parameters: ClassVar[int] = 0
    latent_parameters: ClassVar[int] = 0
    expert_parameters: ClassVar[int] = 0
    idle_parameters: ClassVar[int] = 0

    matrices: Matrices
    width: int

    @classmethod
    def describes(cls, model: Any, block: BlockName) -> bool:
        """Blocks that every token goes through."""
        del model
        return block == "dense"

    @classmethod
    def of(cls, model: Any) -> DenseFeedForward:
        """The record of such a block of a model."""
        return cls(matrices=_matrices_of(model), width=model.intermediate_size)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Its inner width."""
        return _common_cut(*self.common_width)

    @property
    def inner_size(self) -> int:
        """Inner width that a token goes through."""
        return self.width

    @property
    def common_width(self) -> tuple[str, int]:
        """Field and inner width of the block that every token goes through."""
        return "intermediate_size", self.width

    @property
    def common_parameters(self) -> int:
        """Parameters of what every token goes through."""
        return self.matrices.parameters(self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts(Mechanism):
    """Experts of which a router chooses some for every token, and experts that all tokens share."""

    name: ClassVar[FeedForwardName] = "moe"
    named: ClassVar[str] = "routed experts"
    mark: ClassVar[str] = "num_experts"
    counts: ClassVar[tuple[str, ...]] = (
        "num_experts", "num_experts_per_token", "moe_intermediate_size", "shared_expert_size",
        "moe_latent_size",
    )  # fmt: skip
    sizes: ClassVar[tuple[str, ...]] = ("num_experts_per_token", "moe_intermediate_size")
    title: ClassVar[str] = "experts"
    repeated_as: ClassVar[Literal["mlp", "moe"]] = "moe"

    matrices: Matrices
    experts: int
    copies: int
    width: int
    shared_width: int
    router_bias: bool
    shared_gate: bool = False
    latent: int = 0

    @classmethod
    def describes(cls, model: Any, block: BlockName) -> bool:
        """Blocks of which a token goes through some."""
        del model
        return block == "moe"

    @classmethod
    def of(cls, model: Any) -> RoutedExperts:
        """The record of such a block of a model."""
        return cls(
            matrices=_matrices_of(model),
            experts=model.num_experts,
            copies=model.num_experts_per_token,
            width=model.moe_intermediate_size,
            shared_width=model.shared_expert_size,
            latent=model.moe_latent_size,
            router_bias=model.router_bias,
            shared_gate=model.shared_expert_gate,
        )

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The inner width of the shared experts, and that of a routed one."""
        width = Cut(law="expert-width", axis="expert_tp", field="moe_intermediate_size", size=self.width)
        return (*_common_cut(*self.common_width), width)

    @property
    def expert_matrices(self) -> Matrices:
        """The matrices of a routed expert: of the latent width where tokens are projected to one."""
        return replace(self.matrices, hidden_size=self.latent) if self.latent else self.matrices

    @property
    def latent_parameters(self) -> int:
        """Parameters of the projections to the latent width of routed experts and back: 2·H·L, biases."""
        H, L = self.matrices.hidden_size, self.latent
        return 2 * H * L + (H + L) * self.matrices.bias if L else 0

    @property
    def more_kernels(self) -> int:
        """The activation of the shared experts, if any.

        The measured expert kernels hold the rest: top-k, sort, permutation, activation, weighted sum. Of one
        token, and experts cut into 32, they take 19 us on a B200 and 37 on an H100, many times two launches.
        """
        return int(self.shared_width > 0)

    @property
    def inner_size(self) -> int:
        """Inner width of the routed experts that a token goes through."""
        return self.copies * self.width

    @property
    def common_width(self) -> tuple[str, int]:
        """Field and inner width of the shared experts together."""
        return "shared_expert_size", self.shared_width

    @property
    def common_parameters(self) -> int:
        """Parameters of the shared experts, and of their gate."""
        return self.matrices.parameters(self.shared_width) + self.matrices.hidden_size * self.shared_gate

    @property
    def router_parameters(self) -> int:
        """Parameters of the gate."""
        return self.experts * (self.matrices.hidden_size + self.router_bias)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts: what expert parallelism splits."""
        return self.experts * self.expert_matrices.parameters(self.width)

    @property
    def idle_parameters(self) -> int:
        """Parameters of the experts that a token is not sent to."""
        return (self.experts - self.copies) * self.expert_matrices.parameters(self.width)


def _common_cut(field: str, width: int) -> tuple[Cut, ...]:
    """The inner width of the block that every token goes through, where there is one."""
    return (Cut(law="feed-forward", axis="tp", field=field, size=width),) if width > 0 else ()


def _matrices_of(model: Any) -> Matrices:
    """The matrices of every block of a model."""
    return Matrices(hidden_size=model.hidden_size, gated=model.gated_mlp, bias=model.mlp_bias)


FeedForwardKind: TypeAlias = DenseFeedForward | RoutedExperts
FEED_FORWARD_KINDS: tuple[type[FeedForwardKind], ...] = (RoutedExperts, DenseFeedForward)
"""Every kind; the first that describes a block of a model is its own."""
NO_FEED_FORWARD = DenseFeedForward(matrices=Matrices(hidden_size=0, gated=False, bias=False), width=0)
"""That of a layer without one."""


def block_parameters(block: FeedForwardKind) -> int:
    """All parameters of a block."""
    beside = block.router_parameters + block.latent_parameters
    return block.common_parameters + beside + block.expert_parameters
