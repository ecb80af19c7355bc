"""How fast a user's own server is beside the shipped profile of its engine: its host, and its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.serving.engine import ServingStack
from topology.base.errors import InputError

KERNEL_RANGE = (0.5, 3.0)
"""Time on the GPU over that of the measured kernels: none is twice as fast, and a GPU that takes three times
as long is another GPU, or computes something else."""
HOST_RANGE = (0.1, 20.0)
"""Time of the host over that of the hosts in the sample, from a tenth to a shared, throttled core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLevel:
    """Levels of one engine on one GPU kind, from benchmarks of a user's own server.

    Attributes:
        engine: The engine's profile that they correct.
        gpu: The GPU kind.
        host: Factor on everything the host does: scheduling, launches, requests and responses.
        kernel: Factor on everything the GPU does.
        runs: Benchmarks they rest on.
    """

    engine: str
    gpu: str
    host: float
    kernel: float
    runs: int

    def __post_init__(self) -> None:
        """Refuse levels that no server has."""
        for name, value, (least, most) in (
            ("host", self.host, HOST_RANGE),
            ("kernel", self.kernel, KERNEL_RANGE),
        ):
            if not least <= value <= most:
                raise InputError(
                    what=f"the {name} level of {self.engine} on {self.gpu} is out of reach",
                    cause=f"it is {value:.3g} times the shipped profile's, outside {least:g} to {most:g}",
                    fix="check model, GPU, layout and precision: the benchmark may be of another server",
                )


def at_levels(stack: ServingStack, *, host: float, kernel: float) -> ServingStack:
    """The profile of a server whose host and GPU take so many times as long.

    >>> from costmodel.serving.engine import serving_stack
    >>> slow = at_levels(serving_stack("vllm"), host=2.0, kernel=1.1)
    >>> slow.host_s / serving_stack("vllm").host_s, slow.kernel_level
    (2.0, 1.1)
    """
    return replace(
        stack,
        kernel_level=kernel,
        host_s=stack.host_s * host,
        scheduling_s=stack.scheduling_s * host,
        host_s_per_request=stack.host_s_per_request * host,
        loop_s=stack.loop_s * host,
        loop_s_per_request=stack.loop_s_per_request * host,
        launch_s=stack.launch_s * host,
        request_s=stack.request_s * host,
        response_s=stack.response_s * host,
    )
