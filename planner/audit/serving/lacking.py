"""Formats of weights that an engine's release does not serve on a server's GPU, or not as it is told to."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.serving.formats import format_of, is_sure, served_format, serves_format
from planner.audit.serving.server import Server
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

_NAMES = {"modelopt_fp8": "fp8 (ModelOpt)"}
"""Formats in words, where engines spell them otherwise."""
_WIDE = ("bfloat16", "bf16")
_ANYWHERE = {"awq": "AWQ", "gptq": "GPTQ"}
"""Formats of integers, which more GPUs serve than those of floats."""


def lacking_weights(server: Server, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Why its engine refuses the server's weights on the GPU, and what helps."""
    name, engine, experts = _format_of(server, gpu), _release(server), server.model.is_moe
    if (row := served_format(server.engine, name, server.version)) is None:
        return
    if not serves_format(server.engine, gpu, name, server.version, experts=experts):
        whose = " of experts" if row.experts_capability and experts else ""
        why = (
            f"{gpu.name} does not multiply in {_NAMES.get(name, name)}, and {engine} widens such weights"
            f"{whose} from compute capability {row.least(experts=experts)}, where it has "
            f"{generation_of(gpu).compute_capability}"
        )
        newest = served_format(server.engine, name)
        if newest and serves_format(server.engine, gpu, name, experts=experts):
            yield why, f"take release {newest.since} or a later one, which widens them, or {_otherwise(name)}"
        else:
            yield why, _otherwise(name)
    if row.halves_only and server.quantization == name and server.dtype in _WIDE:
        why = f"{engine} multiplies weights of --quantization {name} in float16 alone, not in {server.dtype}"
        yield why, "give --dtype half"


def doubtful_weights(server: Server, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Why its engine may refuse them: where it widens those of some models alone."""
    name = _format_of(server, gpu)
    may = serves_format(server.engine, gpu, name, server.version, experts=server.model.is_moe)
    if may and not is_sure(server.engine, gpu, name, server.version):
        why = f"{gpu.name} does not multiply in {name}, which {_release(server)} widens for some models alone"
        yield why, _otherwise(name)


def _otherwise(name: str) -> str:
    """What helps beside a later release."""
    such = " or ".join(words for other, words in _ANYWHERE.items() if other != name)
    return f"serve a checkpoint in another format, such as {such}, or take another GPU"


def _format_of(server: Server, gpu: Gpu) -> str:
    return format_of(server.weights, server.model, gpu, f"{server.checkpoint} {server.quantization}")


def _release(server: Server) -> str:
    return f"{server.engine} {server.version}".strip()
