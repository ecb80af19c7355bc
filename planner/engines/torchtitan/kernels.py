"""torchtitan's words for kernels: compilation, graphs of a step, the loss in chunks, attention of a flavour.

Names are those of torchtitan 0.3.0: ``CompileConfig``, ``TrainingConfig``, ``ChunkedLossWrapper`` of
``components/loss.py``, and ``get_attention_config`` of ``models/common/config_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from planner.engines.fields import Facts
from planner.engines.limit import limit
from planner.engines.setting import Given, Word
from planner.engines.switch_words import switch_words
from planner.plan import Problem

CHUNKS, INNER, LOSS = "loss.num_chunks", "loss.loss_fn", "loss"
_DEFAULT_CHUNKS = 8
_COMPILED, _COMPONENTS = "compile.enable", "compile.components"
_UNGRAPHED, _BACKEND = "training.disable_cuda_graphs", "model_spec.attn_backend"
_ATTENTION = {"varlen": "native", "flex_flash": "native", "sdpa": "sdpa"}


def _compiled(given: Given) -> str:
    """Whether layers are: the loss alone may be."""
    return "on" if given[_COMPILED] and "model" in map(str, given[_COMPONENTS]) else "off"


COMPILE = switch_words(
    "compile",
    words=(
        Word(
            name=_COMPILED, kind="flag", default=False, aliases=("training.compile",), states="said.compile"
        ),
        Word(name=_COMPONENTS, kind="list", default=("model", "loss")),
    ),
    write=lambda _, facts: {_COMPILED: bool(facts["stack.fused_elementwise"])},
    read=_compiled,
)


def _write_graphs(value: str, facts: Facts) -> Mapping[str, Any]:
    """Graphs where they are planned; off where a pipeline or experts ask the host within a step."""
    if value == "full_iteration":
        return {_UNGRAPHED: False}
    return {_UNGRAPHED: True} if facts["layout.pp"] > 1 or facts["layout.ep"] > 1 else {}


def _graphs(given: Given) -> str | None:
    """What a file says; releases before 0.3 have no such word, and no graphs."""
    if _UNGRAPHED not in given:
        return None
    return "none" if given[_UNGRAPHED] else "full_iteration"


GRAPHS = switch_words(
    "cuda_graph_scope",
    words=(Word(name=_UNGRAPHED, kind="flag", default=False),),
    write=_write_graphs,
    read=_graphs,
)


def _loss(given: Given) -> str | None:
    """Chunks that are named, or those of the wrapper; open where a flavour alone decides."""
    if given[CHUNKS] is not None:
        return "whole" if given[CHUNKS] == 1 else f"chunked:{given[CHUNKS]}"
    if INNER in given or "ChunkedLossWrapper" in str(given[LOSS]):
        return f"chunked:{_DEFAULT_CHUNKS}"
    return "whole" if "CrossEntropyLoss" in str(given[LOSS]) else None


CHUNKED = switch_words(
    "loss",
    words=(Word(name=CHUNKS, kind="int"), Word(name=INNER), Word(name=LOSS)),
    write=lambda value, _: {CHUNKS: int(value.partition(":")[2])} if value.startswith("chunked:") else {},
    read=_loss,
    untold=dict.fromkeys(
        ("fused_cross_entropy", "fused_linear", "chunked_logprobs"), "it has no such kernel"
    ),
)


def _backend(given: Given) -> str | None:
    return _ATTENTION.get(str(given[_BACKEND]))


def _flexible(given: Given) -> tuple[str, ...]:
    """That nothing prices a kernel that torch makes of a mask."""
    flexible = given[_BACKEND] is not None and _backend(given) is None
    return (f"attn_backend {given[_BACKEND]} is priced as torch's own choice",) if flexible else ()


ATTENTION = switch_words(
    "attention_kernel",
    words=(Word(name=_BACKEND),),
    write=lambda _value, _facts: {},
    read=_backend,
    untold=dict.fromkeys(
        ("native", "unfused", "triton", "fa2", "fa3", "cudnn", "fa4"),
        "its flavour's model_registry has it, by attn_backend",
    ),
    granted=_flexible,
)


def _graphs_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return s.stack.timing.cuda_graphs and np.asarray((t.pp > 1) | (t.ep > 1), dtype=bool)


def _says_graphs(_: Problem, x: ParallelLayout) -> tuple[str, str]:
    return f"pp = {x.pp}, ep = {x.ep} with graphs of a step: both ask the host within it", "set pp=1 and ep=1"


def _chunks_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    chunks = s.stack.memory.loss_chunks
    return chunks > 1 and np.asarray(s.job.sequence_length // t.cp % chunks != 0, dtype=bool)


def _says_chunks(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    length, chunks = s.job.sequence_length // x.cp, s.stack.memory.loss_chunks
    return f"(sequence_length / cp) % loss chunks = {length} % {chunks}, must be 0", "use fewer chunks"


KERNEL_LIMITS = (
    limit(name="graphs-of-a-step", reads=("pp", "ep"), broken=_graphs_broken, says=_says_graphs),
    limit(name="loss-in-chunks", reads=("cp",), broken=_chunks_broken, says=_says_chunks),
)
