"""FlexAttention's kernels of the catalogue's models, compiled for GPUs that are not there.

`python -m benchmarks.cross_compile [--capability 9.0]` asks for torch's CUDA wheel and a C compiler, as
`benchmarks.fake_cuda_ranks` does. Inductor writes the kernels that a rank would compile at its first step,
Triton and ptxas compile them; registers, stack frame and shared memory of each are read off the binary.
A kernel that needs more shared memory than a block has does not start.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.fake_cuda_ranks import run_with_played_driver
from costmodel.models.catalog import model
from executor.model.attention import flex
from executor.model.attention.documents import Documents
from executor.model.attention.masks import Mask

LENGTH = 4096
SHARED_KIB = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
"""Shared memory that a block may have: CUDA C++ programming guide, technical specifications."""
MOST_REGISTERS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What a model attends to in a sequence of `LENGTH` tokens."""

    model: str
    documents: Documents | None = None

    @property
    def mask(self) -> Mask:
        """A window where the model has one that is shorter than the sequence."""
        window = model(self.model).sliding_window
        short = window is not None and window < LENGTH
        return Mask(length=LENGTH, window=window if short else None, documents=self.documents)


PACKED: Documents = ((1000, 3000, 96),)
SHAPES = {
    "gpt-oss, window of 128": Attention(model="gpt-oss-20b"),
    "Llama 3.1 8B, documents": Attention(model="llama-3.1-8b", documents=PACKED),
    "DeepSeek-V2-Lite, documents": Attention(model="deepseek-v2-lite", documents=PACKED),
    "Gemma 2 9B, soft cap": Attention(model="gemma-2-9b", documents=PACKED),
    "Gemma 3 12B, window of 1024": Attention(model="gemma-3-12b"),
}


# ── kernels as Inductor writes them ───────────────────────────────────────────────────────────────────────


@contextmanager
def written() -> Iterator[list[str]]:
    """Sources of the kernels that Inductor would compile, none of which it does."""
    from torch._inductor.async_compile import AsyncCompile

    sources: list[str] = []

    def keep(_self: Any, _name: str, source: str, *_: Any, **__: Any) -> Any:
        """Take a kernel's source."""
        sources.append(source)
        return lambda *_a, **_k: None

    with mock.patch.object(AsyncCompile, "triton", keep):
        yield sources


def sources_of(attention: Attention, device: torch.device) -> list[str]:
    """Kernels of a forward and a backward."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    spec = model(attention.model)
    d, h, g = spec.qk_head_dim, spec.num_attention_heads, spec.num_key_value_heads
    with written() as sources, FakeTensorMode(allow_non_fake_inputs=True), on_the_host():
        like = {"device": device, "dtype": torch.bfloat16}
        q = torch.empty(1, LENGTH, h, d, **like).transpose(1, 2)
        k, v = (torch.empty(1, LENGTH, g, d, **like).transpose(1, 2) for _ in range(2))
        scale, cap = d**-0.5, spec.attn_logit_softcapping
        for run in (flex._forward, flex._backward):  # noqa: SLF001
            tables = flex._tables(attention.mask, device)  # noqa: SLF001
            lse = torch.empty(1, h, LENGTH, device=device, dtype=torch.float32)
            tensors = (q, k, v) if run is flex._forward else (q, q, k, v, q, lse)  # noqa: SLF001
            flex._run(run, (attention.mask.length, tables.read, scale, cap), (*tensors, *tables.tensors))  # noqa: SLF001
            flex._tables.cache_clear()  # noqa: SLF001
    return sources


@contextmanager
def on_the_host() -> Iterator[None]:
    """Tables of masks without values, and compiled functions that are not run."""
    from executor.torch_internals.compiler import compile_graph

    def compiled(function: Any, tensors: Any) -> Any:
        compile_graph(function, tensors)
        return lambda *_: None

    def moved(array: Any, device: torch.device) -> torch.Tensor:
        return torch.empty(array.shape, dtype=torch.int32, device=device)

    with (
        mock.patch.object(flex, "_moved", moved),
        mock.patch.object(flex, "compile_graph", compiled),
        mock.patch("torch._inductor.fx_passes.joint_graph.lazy_init"),
        mock.patch("torch._inductor.fx_passes.post_grad.lazy_init"),
    ):
        yield


# ── compiled for a GPU ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a kernel takes of a GPU."""

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    warps: int
    seconds: float


def compiled(source: str, capability: str) -> Iterator[Resources]:
    """Compile the configurations of a kernel's source."""
    import triton
    from torch._inductor.runtime import triton_heuristics
    from triton.backends.compiler import GPUTarget

    heuristics: list[tuple[Mapping[str, Any], Any]] = []

    def decorator(*_: Any, **options: Any) -> Any:
        """What stands above a kernel: its configuration and types."""

        def keep(function: Any) -> Any:
            heuristics.append((options, function))
            return function

        return keep

    recorded = dict.fromkeys(("template", "pointwise", "reduction", "persistent_reduction"), decorator)
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(triton_heuristics, **recorded):
        path = Path(folder) / "kernel.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("kernel", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for options, function in heuristics:
            if "num_warps" not in options:
                continue  # element by element: what it takes is small
            meta = options["triton_meta"]
            began = time.process_time()
            of = triton.compiler.ASTSource(
                fn=function,
                signature=dict(meta["signature"]),
                constexprs=dict(meta["constants"]),
                attrs=meta["configs"][0] if isinstance(meta["configs"][0], dict) else None,
            )
            target = GPUTarget("cuda", int(capability.replace(".", "")), 32)
            options_ = {"num_warps": options["num_warps"], "num_stages": options["num_stages"]}
            kernel = triton.compile(of, target=target, options=options_)
            registers, stack = usage(kernel.asm["cubin"], Path(folder))
            yield Resources(
                kernel=function.__name__,
                registers=registers,
                stack_bytes=stack,
                shared_bytes=kernel.metadata.shared,
                warps=kernel.metadata.num_warps,
                seconds=time.process_time() - began,
            )


def usage(binary: bytes, folder: Path) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack frame, as cuobjdump reads them off a binary."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(binary)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [tool, "--dump-resource-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    return int(registers[1]), int(stack[1])


def main() -> int:
    """Compile all shapes for a capability and print what they take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", default="9.0", choices=sorted(SHARED_KIB))
    parser.add_argument("--only", default="", help="part of the names of shapes")
    options = parser.parse_args()
    if "PLAYED_CAPABILITY" not in os.environ:
        return run_with_played_driver(options.capability, "benchmarks.cross_compile")
    room, faults = SHARED_KIB[options.capability] * 1024, 0
    print(
        f"torch {torch.__version__}, capability {options.capability}, {room // 1024} KiB of shared memory\n"
    )
    print("| attention | kernel | warps | registers | stack, bytes | shared, KiB | compiled in, s of CPU |")
    print("|---|---|---|---|---|---|---|")
    for name, attention in SHAPES.items():
        if not any(part in name for part in options.only.split(",")):
            continue
        for source in dict.fromkeys(sources_of(attention, torch.device("cuda", 0))):
            for each in compiled(source, options.capability):
                faults += each.shared_bytes > room
                print(
                    f"| {name} | `{each.kernel}` | {each.warps} | {each.registers} | {each.stack_bytes} "
                    f"| {each.shared_bytes / 1024:.0f} | {each.seconds:.0f} |",
                    flush=True,
                )
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
