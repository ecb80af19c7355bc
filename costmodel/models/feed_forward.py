"""The kinds of feed-forward block, one record each: a dense one, and routed experts with shared ones beside.

Both answer to the same names; what they compute is in `costmodel.ops.feed_forward` and
`executor.model.transformer`, by `name`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

FeedForwardName = Literal["dense", "moe"]


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
class DenseFeedForward:
    """One block that every token goes through."""

    name: ClassVar[FeedForwardName] = "dense"
    more_kernels: ClassVar[int] = 1  # the activation
    copies: ClassVar[int] = 0
    router_parameters: ClassVar[int] = 0
    latent_parameters: ClassVar[int] = 0
    expert_parameters: ClassVar[int] = 0
    idle_parameters: ClassVar[int] = 0

    matrices: Matrices
    width: int

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
class RoutedExperts:
    """Experts of which a router chooses some for every token, and experts that all tokens share."""

    name: ClassVar[FeedForwardName] = "moe"

    matrices: Matrices
    experts: int
    copies: int
    width: int
    shared_width: int
    router_bias: bool
    shared_gate: bool = False
    latent: int = 0

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


FeedForwardKind: TypeAlias = DenseFeedForward | RoutedExperts


def block_parameters(block: FeedForwardKind) -> int:
    """All parameters of a block."""
    beside = block.router_parameters + block.latent_parameters
    return block.common_parameters + beside + block.expert_parameters
