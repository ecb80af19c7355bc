"""Measured layouts of Sailor's pools beside what is predicted: are they in the same order?

    python benchmarks/sailor.py POOLS_FOLDER

The layouts are those that Sailor (SOSP 2025) measured with Megatron-DeepSpeed: OPT-350 with weights in fp32
and TF32 products, on 4 to 128 GH200 of Alps, and on nodes of unlike workstation GPUs over 1 Gbit/s. Links
are what Sailor measured between as many GPUs as a row uses; nothing is fitted on these rows. A stage whose
replicas are on unlike GPUs is taken for its slowest, with the slowest links inside a node.

No training in four bytes is planned for, so rows are priced in bf16 on GPUs that multiply at their TF32 rate
and move half the values a second: a value of four bytes takes as long as two of two.

Found on 2026-11-23: 15 layouts on alike GH200, rank correlation 0.99 (their batches differ too), 15 % too
fast in the median, 93 % in the band; 4 on unlike cards, all in the band, within 30 %, rank correlation 0.20.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pools import spearman
from costmodel.case import Case
from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.stack import stacks
from costmodel.training.estimate import estimate
from costmodel.training.unlike import estimate_unlike
from topology.base.units import GIGA, TERA
from topology.builders import build
from topology.cluster import Cluster
from topology.hardware.gpu import Gpu
from topology.spec import ClusterSpec, NodeSpec, TierSpec

VOCABULARY = 50_272
WIDER = 2
"""Bytes of a value over those of bf16."""
_REPLICAS = re.compile(r"(\d+)x([^:]+):tp(\d+)")


def _card(name: str, architecture: str, tflops: float, gigabytes: float, gbytes_per_s: float) -> Gpu:
    """A card that trains in four bytes; Turing has no TF32, and Ampere's consumer cards gain none by it."""
    return Gpu(
        name=name, architecture=architecture, peak_flop_per_s=dict.fromkeys(("fp32", "bf16"), tflops * TERA),
        memory_bytes=gigabytes * GIGA, memory_bandwidth_bytes_per_s=gbytes_per_s * GIGA / WIDER, tdp_w=300,
        source="NVIDIA product pages (TF32 or fp32, memory bandwidth); memory as Sailor's planner has it",
        as_of="2026-11-23",
    )  # fmt: skip


CARDS = {
    "GH-96": _card("gh200-tf32", "hopper", 494.5, 102.6, 4000),
    "RTX-2080": _card("rtx-2080-ti", "other", 13.4, 11.8, 616),  # 11 GB: it is the Ti
    "Titan-RTX": _card("titan-rtx", "other", 16.3, 25.8, 672),
    "RTX-3090": _card("rtx-3090", "ampere", 35.6, 25.8, 936),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured layout; `kinds` are the GPUs of each stage's replicas."""

    mixed: bool
    layout: ParallelLayout
    blocks: tuple[int, ...]
    kinds: tuple[frozenset[str], ...]
    nodes: int
    per_node: int
    batch: int
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bandwidths in bytes/s: inside a node by GPU and GPUs used, between nodes by GPU and GPUs used."""

    inside: Mapping[tuple[str, int], float]
    between: Mapping[tuple[str, str, int], float]


def rows_of(folder: Path) -> Iterator[Row]:
    """The layouts of OPT-350 that are to be used; first and last layer are embedding and head."""
    with (folder / "sailor_runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["use"] != "yes" or row["model"] != "OPT-350":
                continue
            layers = [int(count) for count in row["layers_per_stage"].split()]
            layers[0], layers[-1] = layers[0] - 1, layers[-1] - 1
            yield Row(
                mixed=row["mixed"] == "yes",
                layout=ParallelLayout(
                    tp=int(row["tp"]), dp=int(row["dp"]), pp=int(row["pp"]), microbatch_size=int(row["mbs"])
                ),
                blocks=tuple(layers),
                kinds=tuple(
                    frozenset(gpu for _, gpu, _ in _REPLICAS.findall(stage))
                    for stage in row["stage_kinds"].split("|")
                ),
                nodes=int(row["nodes"]),
                per_node=int(row["gpus"]) // int(row["nodes"]),
                batch=int(row["gbs"]),
                measured_s=float(row["real_s"]),
            )


def links_of(folder: Path) -> Links:
    """What Sailor measured."""
    inside, between = {}, {}
    with (folder / "sailor_links.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rate, count = float(row["bandwidth_bytes_per_s"]), int(row["gpus_a"])
            if row["scope"] == "intra-node":
                inside[row["gpu_a"], count] = rate
            else:
                between[row["gpu_a"], row["gpu_b"], count] = rate
    return Links(inside=inside, between=between)


def node(row: Row, kinds: frozenset[str], links: Links) -> tuple[Gpu, NodeSpec]:
    """The node of a stage: its slowest GPU, the slowest links inside and to any other of the pool."""
    pool = frozenset[str]().union(*row.kinds)
    gpu = min(
        (CARDS[kind] for kind in kinds),
        key=lambda gpu: gpu.peak_flop_per_s["bf16"],
    )
    count = row.per_node
    pairs = [(a, b, count) for a in pool for b in pool]
    out = min((links.between[pair] for pair in pairs if pair in links.between), default=GIGA) / WIDER
    spec = NodeSpec(
        gpu=gpu.name, count=row.nodes, gpus_per_node=count, scaleup="pcie" if row.mixed else "nvlink-mesh",
        scaleup_bandwidth_bytes_per_s=min(links.inside[kind, count] for kind in kinds) / WIDER,
        scaleup_latency_s=3e-6, host_bandwidth_bytes_per_s=12 * GIGA, nics_per_node=1 if row.mixed else count,
        nic_latency_s=20e-6 if row.mixed else 3e-6,
        nic_bandwidth_bytes_per_s=out if row.mixed else out / count,
    )  # fmt: skip
    return gpu, spec


def predicted(row: Row, links: Links) -> Estimate:
    """The estimate of one row on its pool."""
    spec = replace(model("gpt-2-medium"), vocab_size=VOCABULARY, tie_word_embeddings=False)
    job = TrainingJob(sequence_length=2048, global_batch_size=row.batch)
    stack, cal = stacks()["megatron-deepspeed"], load_calibration()
    split = StageSplit(
        layers_of_stage=tuple((count,) for count in row.blocks),
        recompute_of_stage=(0,) * row.layout.pp,
    )
    each = list(dict.fromkeys(row.kinds))
    clusters = [_cluster(*node(row, kinds, links)) for kinds in each]
    case = Case(model=spec, cluster=clusters[0], job=job, stack=stack, cal=cal)
    if len(each) == 1:
        return estimate(case, row.layout, split)
    kind_of_stage, paid = tuple(map(each.index, row.kinds)), row.nodes * row.per_node
    found, _ = estimate_unlike(case, row.layout, tuple(clusters), split, kind_of_stage, paid_gpus=paid)
    return found


def _cluster(gpu: Gpu, entry: NodeSpec) -> Cluster:
    tier = TierSpec(name="leaf", nodes_per_unit=entry.count)
    return build(ClusterSpec(name="sailor", nodes=(entry,), tiers=(tier,), gpus=(gpu,)))


def told(rows: Sequence[Row], links: Links) -> str:
    """Rank correlation, median ratio and share within the band of some rows, then each."""
    found = [predicted(row, links) for row in rows]
    ratios = [one.step_time_s / row.measured_s for one, row in zip(found, rows, strict=True)]
    inside = [one.lower_s <= row.measured_s <= one.upper_s for one, row in zip(found, rows, strict=True)]
    order = spearman([one.step_time_s for one in found], [row.measured_s for row in rows])
    middle, share = statistics.median(ratios), sum(inside) / len(inside)
    lines = [f"{len(rows)} rows  spearman {order:.2f}  predicted/measured {middle:.2f}  band {share:.2f}"]
    for row, one, ratio in zip(rows, found, ratios, strict=True):
        x = row.layout
        lines.append(
            f"  tp {x.tp} pp {x.pp} dp {x.dp} microbatch {x.microbatch_size} batch {row.batch}: "
            f"measured {row.measured_s:.3f} s, predicted {one.step_time_s:.3f} s "
            f"({one.lower_s:.3f} – {one.upper_s:.3f}), {ratio:.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print alike and mixed rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows, links = list(rows_of(folder)), links_of(folder)
    for mixed in (False, True):
        text = told([row for row in rows if row.mixed == mixed], links)
        sys.stdout.write(f"{'mixed' if mixed else 'alike'}: {text}\n")


if __name__ == "__main__":
    main()
