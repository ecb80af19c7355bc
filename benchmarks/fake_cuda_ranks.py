"""Training steps of fake ranks on a GPU that is not there: which operators, on which device, in which type?

`python -m benchmarks.fake_cuda_ranks [--capability 9.0] [--only NAME]` asks for torch's CUDA wheel and a C
compiler, not for a GPU: `played_gpu.c`, loaded before CUDA's own libraries, answers what torch asks of them
before it launches a kernel. Tensors have shapes, types and a device, no values. Each rank is built, trained
for two steps and evaluated by the code of `plan run`; routed rows that other ranks would count are balanced.
A test plays ranks of a CPU the same way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.updates.adapters import parse_adapter
from executor.data.held_out import HeldOut
from executor.model.moe import MoE, RoutedRows, balanced_traffic
from executor.parallel.pipeline import Pipeline
from executor.parallel.stages import even_layers
from executor.torch_internals.fakes import asks_device, has_distributed_tensor, tensors_in
from executor.training import loop
from executor.training.evaluation import held_out_loss
from executor.validation.fake_rank import FakeRank, RankTask, fake_rank, settings_of
from executor.validation.memory_trace import layers_of_rank

LENGTH, STEPS, END = 4096, 2, 7
"""Tokens of a sequence, training steps, and the token at which documents end."""


# ── what is played ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rank: a catalogue's model cut to a few layers, its layout, and what else decides its operators.

    It has so many microbatches for each chunk of its pipeline.
    """

    model: str
    layout: ParallelLayout
    layers: int = 2
    microbatches: int = 2
    stage: int = 0
    adapter: str = ""
    documents: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> RankTask:
        """The rank to play; every layer is recomputed if any is."""
        layout, whole = self.layout, model(self.model)
        chunks = layout.pp * layout.virtual_stages
        depth = max(self.layers, chunks) if self.layers >= chunks else self.layers * chunks
        spec = cut(whole, depth)
        split = even_layers(depth, chunks)
        every = layout.recompute != "none"
        recomputed = tuple(
            every * sum(layers_of_rank(spec, layout, split, rank)) for rank in range(layout.pp)
        )
        return RankTask(
            spec=spec,
            layout=layout,
            sequence_length=LENGTH,
            num_microbatches=self.microbatches * chunks,
            layers_of_stage=split,
            recompute_of_stage=recomputed,
            stage=self.stage,
            adapter=parse_adapter(self.adapter) if self.adapter else None,
            **self.fields,
        )


def cut(spec: ModelSpec, depth: int) -> ModelSpec:
    """The model with fewer layers, of each kind that it has."""
    dense = min(spec.num_dense_layers, 1)
    return replace(
        spec,
        num_layers=depth,
        num_dense_layers=dense,
        num_sliding_layers=min(spec.num_sliding_layers, depth // 2),
    )


def layout(**fields: Any) -> ParallelLayout:
    """A layout whose sequence parallelism is on with tp unless said otherwise."""
    fields.setdefault("sequence_parallel", fields.get("tp", 1) > 1)
    return ParallelLayout(**fields)


LLAMA, QWEN, DEEPSEEK, GPT_OSS = "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"
CASES: dict[str, Case] = {
    "one GPU": Case(model=LLAMA, layout=layout()),
    "two sequences": Case(model=LLAMA, layout=layout(tp=4, microbatch_size=2)),
    "tensor parallel": Case(model=LLAMA, layout=layout(tp=4)),
    "tensor parallel, whole sequences": Case(model=LLAMA, layout=layout(tp=4, sequence_parallel=False)),
    "replicas": Case(model=LLAMA, layout=layout(dp=4)),
    "ZeRO-1": Case(model=LLAMA, layout=layout(dp=4, zero_stage=1)),
    "ZeRO-2": Case(model=LLAMA, layout=layout(dp=4, zero_stage=2)),
    "ZeRO-3": Case(model=LLAMA, layout=layout(dp=8, zero_stage=3)),
    "hybrid shards": Case(model=LLAMA, layout=layout(dp=8, zero_stage=3, shard_degree=4)),
    "ZeRO-3 with tensor parallelism": Case(model=LLAMA, layout=layout(tp=2, dp=4, zero_stage=3)),
    "recomputed": Case(model=LLAMA, layout=layout(dp=8, zero_stage=3, recompute="full")),
    "recomputed by operator": Case(model=LLAMA, layout=layout(tp=2, dp=2, recompute="selective-op")),
    "recomputed attention": Case(model=LLAMA, layout=layout(tp=2, recompute="selective")),
    "ring": Case(model=LLAMA, layout=layout(cp=4)),
    "ring recomputed by operator": Case(model=LLAMA, layout=layout(cp=2, recompute="selective-op")),
    "ulysses": Case(model=LLAMA, layout=layout(cp=4, cp_kind="ulysses")),
    "gathered keys": Case(model=LLAMA, layout=layout(cp=4, cp_kind="allgather")),
    "packed documents": Case(model=LLAMA, layout=layout(dp=2, zero_stage=1), documents=True),
    "packed documents over a ring": Case(model=LLAMA, layout=layout(cp=2), documents=True),
    "first stage": Case(model=LLAMA, layout=layout(pp=2, tp=2)),
    "last stage": Case(model=LLAMA, layout=layout(pp=2, tp=2, dp=2, zero_stage=1), stage=1),
    "ZeRO-3 in a pipeline": Case(model=LLAMA, layout=layout(pp=2, dp=4, zero_stage=3)),
    "interleaved": Case(model=LLAMA, layout=layout(pp=2, virtual_stages=2, schedule="interleaved"), stage=1),
    "zero bubble": Case(
        model=LLAMA, layout=layout(pp=2, tp=2, dp=2, zero_stage=1, schedule="zb-h1"), stage=1
    ),
    "V pipeline": Case(model=LLAMA, layout=layout(pp=2, virtual_stages=2, schedule="zbv")),
    "DualPipeV": Case(model=QWEN, layout=layout(pp=2, ep=2, dp=2, virtual_stages=2, schedule="dualpipev")),
    "tied ends of a pipeline": Case(model="llama-3.2-1b", layout=layout(pp=2, dp=2, zero_stage=1), stage=1),
    "adapters": Case(model=LLAMA, layout=layout(tp=2, dp=2, zero_stage=1), adapter="lora:r=16"),
    "adapters at ZeRO-3": Case(model=LLAMA, layout=layout(dp=4, zero_stage=3), adapter="lora:r=16"),
    "muon": Case(model=LLAMA, layout=layout(tp=2, dp=2, zero_stage=1), fields={"optimizer": "muon"}),
    "eight bits by rows": Case(model=LLAMA, layout=layout(tp=2, dp=2), fields={"eight_bits": "fp8"}),
    "eight bits by blocks": Case(model=LLAMA, layout=layout(dp=2), fields={"eight_bits": "mxfp8"}),
    "experts in eight bits": Case(
        model=QWEN, layout=layout(dp=4, ep=4, zero_stage=1), fields={"eight_bits": "fp8"}
    ),
    "fp32": Case(model=LLAMA, layout=layout(dp=2), fields={"precision": "fp32"}),
    "whole experts": Case(model=QWEN, layout=layout(dp=4, zero_stage=3)),
    "experts": Case(model=QWEN, layout=layout(dp=8, ep=8, zero_stage=1)),
    "experts with tensor parallelism": Case(model=QWEN, layout=layout(tp=2, dp=4, ep=4, zero_stage=3)),
    "cut experts": Case(model="mixtral-8x7b", layout=layout(tp=2, dp=2, ep=2, expert_tp=2, zero_stage=1)),
    "experts recomputed by operator": Case(
        model=QWEN, layout=layout(dp=4, ep=4, zero_stage=3, recompute="selective-op")
    ),
    "latent attention with experts": Case(model=DEEPSEEK, layout=layout(tp=2, dp=4, ep=4, zero_stage=1)),
    "latent attention over a ring": Case(model=DEEPSEEK, layout=layout(cp=2, ep=2)),
    "sinks, windows and experts": Case(model=GPT_OSS, layout=layout(dp=4, ep=4, zero_stage=1)),
    "windows and soft caps": Case(model="gemma-2-9b", layout=layout(tp=2, dp=2, zero_stage=1)),
    "windows over ranks": Case(model="gemma-3-12b", layout=layout(cp=2, cp_kind="allgather")),
    "learned positions": Case(model="gpt-2", layout=layout(dp=2, zero_stage=1), fields={}),
}


# ── what is seen ──────────────────────────────────────────────────────────────────────────────────────────


PRODUCTS = frozenset(
    ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm", "aten::addmm_")
)
WAITS = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
COMPOSED = (
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
READING = frozenset(
    (
        "training/batches.read_microbatches",
        "training/batches.microbatches",
        "model/attention/attend.sequence_positions",
        "comm/host_copies.moved",
    )
)
"""Functions that make a batch of the host's tokens and send it to the device."""
VALUE = 1.0
"""What the host reads of a tensor without values."""


@dataclass(slots=True)
class Seen:
    """What a rank's steps did, operators by name with how often.

    Attributes:
        operators: All that ran.
        reading: On the host, where a batch is read.
        elsewhere: On tensors of another device alone.
        mixed: On tensors of several devices, scalars of the host left out.
        to_device: Copies to the device.
        waits: Values or sizes that the host reads, so that it waits for the device.
        lacking: Operators for which torch has no kernel of the device.
        wide: Operators that read or make doubles on the device.
        products: Products and attention by operand type.
        attention: Which of torch's attention operators ran.
    """

    operators: Counter[str] = field(default_factory=Counter)
    reading: Counter[str] = field(default_factory=Counter)
    elsewhere: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    to_device: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    wide: Counter[str] = field(default_factory=Counter)
    products: Counter[str] = field(default_factory=Counter)
    attention: Counter[str] = field(default_factory=Counter)


class DeviceCensus(TorchDispatchMode):
    """Sees every operator of a rank, with the devices and types of its tensors."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.seen = device, Seen()
        self._has_kernel: dict[str, bool] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to wrap each call so that nothing is compiled in it: nothing is, here."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, seen."""
        if asks_device(function, args):
            return args[0].fake_device
        if has_distributed_tensor(types):
            return NotImplemented  # its local operators come next
        name = function._schema.name  # noqa: SLF001
        if name == "aten::_local_scalar_dense":
            self._count("waits", name, args[0].device)
            return VALUE if args[0].is_floating_point() else int(VALUE)
        if name == "aten::_pin_memory":
            return args[0]  # of which torch makes none without values
        result = function(*args, **(kwargs or {}))
        self._look(function, args, kwargs, result)
        return result

    def _count(self, what: str, name: str, device: torch.device) -> None:
        """Count an operator of the rank's device."""
        if device.type == self.device.type:
            getattr(self.seen, what)[f"{name} ({caller()})"] += 1

    def _look(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operator by where its tensors are and of which type."""
        name, read, made = function._schema.name, tensors_in((args, kwargs)), tensors_in(result)  # noqa: SLF001
        seen, tensors = self.seen, [*read, *made]
        if not tensors or all(tensor.is_meta for tensor in tensors):
            return
        seen.operators[name] += 1
        here, by = self.device.type, caller()
        copies = name in ("aten::_to_copy", "aten::copy_")
        kinds = {x.device.type for x in tensors if copies or x.dim() or x.device.type == here}
        if kinds and here not in kinds:
            (seen.reading if by in READING else seen.elsewhere)[f"{name} ({by})"] += 1
            return
        if len(kinds) > 1:
            to_host = made and made[0].device.type != here
            where = "waits" if copies and to_host else "to_device" if copies else "mixed"
            if by not in READING or where != "to_device":
                getattr(seen, where)[f"{name} ({by})"] += 1
        if WAITS & set(function.tags) and not known_size(name, args, kwargs):
            seen.waits[f"{name} ({by})"] += 1
        if not self._kernel(function):
            seen.lacking[name] += 1
        if any(tensor.dtype == torch.float64 for tensor in tensors):
            seen.wide[f"{name} ({by})"] += 1
        attends = "scaled_dot_product" in name or name == "meshplan::attend"
        if (name in PRODUCTS or "scaled_mm" in name) and read:
            seen.products[str(read[0].dtype).removeprefix("torch.")] += 1
        if attends and "backward" not in name:
            seen.attention[name.removeprefix("aten::_scaled_dot_product_")] += 1

    def _kernel(self, function: Any) -> bool:
        """Whether torch has a kernel of the operator for the device, or makes it of others."""
        name = function.name()
        if name not in self._has_kernel:
            has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
            keys = ("CUDA" if self.device.type == "cuda" else "CPU", *COMPOSED)
            self._has_kernel[name] = any(has(name, key) for key in keys)
        return self._has_kernel[name]


def known_size(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the host knows the size of what an operator makes, though not of whatever it is given."""
    if name == "aten::index":
        return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1])
    return name == "aten::repeat_interleave" and (kwargs or {}).get("output_size") is not None


def caller() -> str:
    """File and function of the executor that called the operator; torch where none did."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        path = frame.f_code.co_filename
        if "/executor/" in path and "/torch_internals/" not in path:
            return f"{path.rpartition('/executor/')[2].removesuffix('.py')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "torch"


# ── how it is played ──────────────────────────────────────────────────────────────────────────────────────


class _Tokens:
    """Samples of which every token is the same, but for the ends of documents."""

    def sample(self, index: int) -> np.ndarray:
        """One sample with its next token."""
        tokens = np.ones(LENGTH + 1, dtype=np.int64)
        tokens[index % 7 + 100 :: 1000] = END
        return tokens


@contextmanager
def counted_elsewhere() -> Iterator[None]:
    """Routers choose by score; rows that other ranks count are balanced ones after it was asked for them."""
    asked = MoE._traffic  # noqa: SLF001

    def traffic(moe: MoE, expert: torch.Tensor) -> RoutedRows:
        real = asked(moe, expert)
        if real.sent is None:
            return real
        meta = torch.device("meta")
        rows = balanced_traffic(expert.numel(), moe.gate.out_features, moe.experts.axis, meta)
        return replace(real, sent=rows.sent, received=rows.received, totals=None)

    with mock.patch.object(MoE, "_traffic", traffic):
        yield


def trainer_of(rank: FakeRank, case: Case) -> Any:
    """What the training loop reads of a trainer."""
    task, layout = rank.task, rank.task.layout
    batch = task.num_microbatches * layout.microbatch_size * layout.dp
    job = SimpleNamespace(
        sequence_length=task.sequence_length,
        global_batch_size=batch,
        tokens_per_step=batch * task.sequence_length,
    )
    return SimpleNamespace(
        pipeline=rank.pipeline, optimizer=rank.optimizer, schedule=settings_of(task), source=_Tokens(),
        global_batch_size=batch, stop_requested=False, behind=False,
        settings=SimpleNamespace(document_end=END if case.documents else None),
        plan=SimpleNamespace(
            request=SimpleNamespace(job=job), estimate=SimpleNamespace(step_time_s=1.0, mfu=0.4)
        ),
    )  # fmt: skip


def played(case: Case, device: torch.device, *, steps: int = STEPS, evaluates: bool = True) -> Seen:
    """Train a rank for a few steps, evaluate it if that is asked for; what was seen."""
    with ExitStack() as stack:
        rank = stack.enter_context(fake_rank(case.task, device))
        stack.enter_context(counted_elsewhere())
        _route_by_score(rank.pipeline)
        trainer = trainer_of(rank, case)
        census = stack.enter_context(DeviceCensus(device))
        for step in range(steps):
            loop._train_step(trainer, step)  # noqa: SLF001
        if evaluates:
            _evaluate(trainer)
    return census.seen


def _evaluate(trainer: Any) -> None:
    """Evaluate a global batch."""
    held_out_loss(
        trainer.pipeline,
        HeldOut(source=trainer.source, samples=trainer.global_batch_size, interval=1),
        step=STEPS,
        global_batch_size=trainer.global_batch_size,
        sequence_length=LENGTH,
        document_end=trainer.settings.document_end,
        stop=lambda: False,
    )


def _route_by_score(pipeline: Pipeline) -> None:
    """Have routers choose experts as in training."""
    for stage in pipeline.stages:
        for module in stage.module.modules():
            if isinstance(module, MoE):
                module.gate.balanced = False


# ── devices that are not there ────────────────────────────────────────────────────────────────────────────


def played_gpu(folder: Path) -> Path:
    """Compile what answers for CUDA's libraries, against the headers that came with torch."""
    site = Path(sysconfig.get_paths()["purelib"])
    headers = next(path.parent.parent for path in site.glob("**/crt/host_defines.h"))
    library, source = folder / "libcuda.so.1", Path(__file__).parent / "played_gpu.c"
    (folder / "libcuda.so").symlink_to(library.name)
    options = ("-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1")
    subprocess.run(["cc", *options, "-I", str(headers), "-o", str(library), str(source)], check=True)
    return library


class _Streams:
    """What FSDP asks of a device's module: streams and events that do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """One stream, or one event."""

    def __getattr__(self, _name: str) -> Any:
        """Anything that is done with a stream or an event gives it back."""
        return lambda *_, **__: self

    def __enter__(self) -> Any:
        """Compute on it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Compute on another."""


def _made_empty(size: Any, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """A tensor on the device that stands in."""
    return torch._C._acc.create_empty_tensor(size, dtype or torch.get_default_dtype())  # noqa: SLF001


def stand_in() -> torch.device:
    """A device that is neither a CPU nor a GPU, for a process of its own: torch registers it once.

    With torch's CPU wheel ranks are played on it: what stays on the host is seen as on a GPU.
    """
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("played")
    kernels = torch.library.Library(
        "aten", "IMPL"
    )  # FSDP makes one tensor before there are any without values
    kernels.impl("empty.memory_format", _made_empty, "PrivateUse1")
    device = torch.get_device_module("played")
    device.kernels = kernels
    device.Stream = device.Event = device.stream = _Streams
    FakeTensorMode.avoid_device_init = True  # as on a machine without a GPU: no constant is copied to it
    device.current_stream, device.current_device = _Streams, lambda: 0
    device.is_available, device.device_count, device.is_initialized = lambda: True, lambda: 1, lambda: True
    return torch.device("played", 0)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────


def row(name: str, case: Case, seen: Seen) -> str:
    """One line of the table."""
    waits = sum(count for each, count in seen.waits.items() if "evaluation" not in each)
    return (
        f"| {name} | {case.model} | {seen.operators.total():,} | {len(seen.operators)} "
        f"| {seen.elsewhere.total()} | {seen.mixed.total()} | {seen.lacking.total()} "
        f"| {seen.to_device.total()} | {waits / STEPS:g} | {', '.join(sorted(seen.attention)) or '–'} |"
    )


COLUMNS = (
    "rank", "model", "operators", "kinds", "on the CPU", "of two devices", "without a kernel",
    "copies to the GPU", "values read, a step", "attention",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def run_with_played_driver(capability: str, program: str = "benchmarks.fake_cuda_ranks") -> int:
    """Start a program again with what answers for CUDA's libraries."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "LD_PRELOAD": str(played_gpu(Path(folder))), "PLAYED_CAPABILITY": capability,
            "TRITON_LIBCUDA_PATH": folder,
        }  # fmt: skip
        command = [sys.executable, "-m", program, *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def main() -> int:
    """Play every case on a GPU of a capability, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", default="9.0")
    parser.add_argument("--only", default="", help="parts of the names of cases, by commas")
    options = parser.parse_args()
    if "PLAYED_CAPABILITY" not in os.environ:
        return run_with_played_driver(options.capability)
    device = torch.device("cuda", 0)
    FakeTensorMode.avoid_device_init = True  # as on a machine without a GPU: no constant is copied to it
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}\n\n{HEADER}")
    total, faults = Seen(), 0
    for name, case in CASES.items():
        if not any(part in name for part in options.only.split(",")):
            continue
        seen = played(case, device)
        faults += bool(seen.elsewhere + seen.mixed + seen.lacking)
        print(row(name, case, seen), flush=True)
        for each in fields(Seen):
            getattr(total, each.name).update(getattr(seen, each.name))
    for each in fields(Seen):
        if each.name not in ("operators", "attention"):
            print(f"\n{each.name}: {dict(getattr(total, each.name))}")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
