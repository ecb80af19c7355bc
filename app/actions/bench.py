"""Carry out `plan bench`: measure, name the cluster, save; or measure the shapes of one plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.reports.bench import BenchResult, MeasuredShape
from costmodel.case import Workload
from costmodel.kernels.measurement import Measurement, measurements_json
from costmodel.kernels.saved import measurement_folder
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.ops.op import OpKind
from planner.plan import Plan
from topology.base.errors import InputError
from topology.builders import build, default_cluster
from topology.cluster import Cluster
from topology.hardware.device_names import gpu_of_device
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    from executor.bench.kernels import Benchmark, BenchSizes

MOST_SHAPES = 12  # of a plan, largest first


def measure_machine(
    *, device: str, ranks: int, gpu: str | None, cluster: str | None, save: bool
) -> BenchResult:
    """Measure the machine with the standard sizes."""
    from executor.bench.kernels import CPU_SIZES, GPU_SIZES, measurements

    on_gpu = uses_gpu(device)
    entries = run_entries(GPU_SIZES if on_gpu else CPU_SIZES, on_gpu=on_gpu, ranks=ranks)
    spec = cluster_here(entries, on_gpu=on_gpu, ranks=ranks, gpu=gpu, cluster=cluster)
    built = build(spec)
    values = measurements(entries, cluster=built.fingerprint(), gpu=built.gpu.name)
    return BenchResult(cluster=spec, measurements=values, notes=save_result(spec, values) if save else ())


def uses_gpu(device: str) -> bool:
    """Whether to measure a GPU: asked for, or there is one."""
    from executor.bench.devices import num_devices

    if device not in ("auto", "cuda", "cpu"):
        raise InputError(what=f"unknown device {device!r}", cause="--device", fix="use auto, cuda or cpu")
    if device == "cuda" and not num_devices():
        raise InputError(
            what="there is no GPU to measure", cause="torch sees no CUDA device", fix="use --device cpu"
        )
    return device == "cuda" or (device == "auto" and num_devices() > 0)


def run_entries(sizes: BenchSizes, *, on_gpu: bool, ranks: int) -> list[Benchmark]:
    """Measure on GPUs or on CPU ranks."""
    from executor.bench.devices import num_devices
    from executor.bench.kernels import bench_cpu, bench_gpu

    if not on_gpu:
        return bench_cpu(sizes, ranks)
    return bench_gpu(sizes, min(ranks, num_devices()))


def cluster_here(
    entries: Sequence[Benchmark], *, on_gpu: bool, ranks: int, gpu: str | None, cluster: str | None
) -> ClusterSpec:
    """The cluster that measurements belong to: the one named, or this machine as found."""
    import datetime as dt

    from app.requests.cluster import find_cluster
    from executor.bench.host_profile import cpu_cluster

    if cluster is not None or gpu is not None:
        return find_cluster(cluster=cluster, gpus=str(ranks), gpu=gpu, dumps=()).cluster.spec
    if not on_gpu:
        today = dt.datetime.now(tz=dt.UTC).date().isoformat()
        return cpu_cluster(entries, ranks, today)
    return default_cluster(gpu_here(), ranks).spec


def gpu_here() -> str:
    """Catalog name of the GPU of this machine."""
    from executor.bench.devices import driver_name, gpu_memory_bytes

    return gpu_of_device(driver_name(), gpu_memory_bytes())


def save_result(spec: ClusterSpec, measurements: Sequence[Measurement], head: str = "") -> tuple[str, ...]:
    """Write the measurements, and the cluster as a file to plan for, with comments at its head."""
    from app.reports.answer import write_file
    from topology.cluster_file import to_toml

    folder = measurement_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            what=f"cannot write to {folder}",
            cause=error.strerror or str(error),
            fix="set XDG_DATA_HOME to a folder you may write, or use --no-save with --output",
        ) from error
    stem = measurements[0].gpu if spec.gpus else f"{measurements[0].gpu}-{measurements[0].cluster}"
    write_file(folder / f"{stem}.json", measurements_json(measurements))
    write_file(folder / f"{stem}.toml", head + to_toml(spec))
    return (
        f"saved {folder / f'{stem}.json'}",
        f"plan for this machine with --cluster {folder / f'{stem}.toml'}",
    )


def check_plan(plan: Plan, *, device: str, ranks: int) -> tuple[MeasuredShape, ...]:
    """Measure a plan's own matrix products and collectives and set the cost model's times beside them."""
    from executor.bench.kernels import measurements

    on_gpu = uses_gpu(device)
    cluster = build(plan.request.cluster)
    sizes = sizes_of_plan(plan, ranks)
    entries = run_entries(sizes, on_gpu=on_gpu, ranks=ranks)
    values = measurements(entries, cluster=cluster.fingerprint(), gpu=cluster.gpu.name)
    cal = load_calibration()
    return tuple(MeasuredShape(measurement=m, predicted_s=predicted(m, cal, cluster)) for m in values)


def sizes_of_plan(plan: Plan, ranks: int) -> BenchSizes:
    """The largest distinct shapes of a plan's layers, and its messages."""
    from costmodel.models.spec import layer_runs
    from costmodel.ops.layer import layer_ops
    from costmodel.ops.shards import shard_of
    from costmodel.stack import stack
    from executor.bench.kernels import BenchSizes

    request, profile = plan.request, stack(plan.request.stack)
    shard = shard_of(plan.layout, request.job.sequence_length)
    ops = [
        op
        for run in layer_runs(request.model)
        for op in layer_ops(Workload(model=request.model, job=request.job, stack=profile), run.kind, shard)
    ]
    gemms = [op for op in ops if op.kind in (OpKind.GEMM, OpKind.GROUPED_GEMM)]
    sent = [op for op in ops if op.kind is OpKind.COLLECTIVE and op.collective_bytes]
    shapes = {(int(op.m), int(op.n), int(op.k)) for op in gemms}
    shapes = {shape for shape in shapes if min(shape) > 0}
    ordered = sorted(shapes, key=lambda s: s[0] * s[1] * s[2], reverse=True)[:MOST_SHAPES]
    messages = {int(op.collective_bytes) for op in sent}
    names = {str(op.collective) for op in sent}
    return BenchSizes(
        gemm=tuple(ordered),
        attention=(),
        copy_bytes=(),
        message_bytes=tuple(sorted(messages, reverse=True)[:MOST_SHAPES]) if ranks > 1 else (),
        collectives=tuple(sorted(names)),
    )


def predicted(measurement: Measurement, cal: Calibration, cluster: Cluster) -> float:
    """What the shipped tables say of the same kernel or collective, seconds."""
    from costmodel.kernels.collectives import collective_time
    from costmodel.kernels.compute import gemm_time

    inputs = measurement.inputs
    if measurement.what == "gemm":
        return float(gemm_time(cal, cluster.gpu, "bf16", inputs["m"], inputs["n"], inputs["k"]).seconds)
    group = int(inputs["size"]), int(inputs["stride"])
    return float(collective_time(cal, cluster.hierarchy, measurement.what, inputs["bytes"], *group))
