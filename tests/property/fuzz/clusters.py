"""Files that describe a model or a cluster: config.json, the dumps of four tools, cluster files."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.property.fuzz.mutate import json_of, mutated_text, mutated_tree, toml_of
from tests.property.fuzz.surface import Box
from tests.unit.costmodel.models.test_hf_config import CONFIGS
from tests.unit.topology.discover.test_allocations import FORMS, ROCM, query
from tests.unit.topology.discover.test_discover import MODEL as TOPOGRAPH
from tests.unit.topology.discover.test_discover import XML, ib_dump, smi, square


def make_config(random: Random, story: list[str]) -> str:
    name = random.choice(list(CONFIGS))
    story.append(name)
    text = json_of(mutated_tree(CONFIGS[name], random, story))
    return mutated_text(text, random, story) if random.random() < 0.1 else text


def read_config(text: str, box: Box) -> object:
    from app.requests.uploads import read_model_upload
    from costmodel.models.catalog import model
    from costmodel.models.parameters import active_parameter_count, parameter_count
    from costmodel.models.spec import layer_runs

    path = box.file("config.json", text)
    spec = model(str(path)) if len(text) % 4 else read_model_upload("config.json", path.read_bytes())
    return spec, {
        "num_s": parameter_count(spec),
        "active_s": active_parameter_count(spec),
        "runs_s": len(layer_runs(spec)),
    }


DUMPS: Mapping[str, Sequence[str]] = {
    "nvidia-smi": (smi(square(8, "NV18"), nics=8), smi(square(4, "NV4")), smi(square(2, "PHB"), nics=1, odd="odd line")),
    "NCCL XML": (
        XML.format(nvlink="", extra=""),
        XML.format(nvlink='<nvlink target="9:99" count="12" tclass="0x068000"/>', extra='<nic><net name="a" speed="200000"/></nic>'),
    ),
    "ibnetdiscover": (ib_dump(units=3, hosts=4, rails=2, spines=2), ib_dump(units=2, hosts=3, rails=1, spines=1)),
    "topograph": (TOPOGRAPH,),
    "allocation": (*(text for text, _ in FORMS.values()), ROCM, query("Completed", "GPU is lost"), query(*["N/A"] * 8)),
}  # fmt: skip


def make_dump(kind: str, random: Random, story: list[str]) -> str:
    return mutated_text(random.choice(DUMPS[kind]), random, story)


def read_dump(text: str, box: Box) -> object:
    from app.requests.cluster import find_cluster
    from topology.cluster_file import to_toml

    found = find_cluster(cluster=None, gpus=None, gpu="h100-sxm", dumps=(box.file("dump.txt", text),))
    to_toml(found.cluster.spec)
    return found.cluster.spec, found.cluster.hierarchy


@functools.cache
def clusters() -> tuple[dict[str, Any], ...]:
    from topology.base.decode import unstructure
    from topology.builders import build, default_cluster

    node = {
        "gpu": "h100-sxm", "count": 2, "gpus_per_node": 2, "scaleup": "nvlink-mesh", "scaleup_bandwidth_bytes_per_s": "450 GB/s",
        "host_bandwidth_bytes_per_s": "64 GB/s", "nics_per_node": 2, "nic_bandwidth_bytes_per_s": "400 Gbit/s",
    }  # fmt: skip
    tree: dict[str, Any] = {
        "name": "tree", "rail_optimized": False, "nodes": [{**node, "switch": "a"}, {**node, "switch": "b"}],
        "switches": [
            {"name": "root"}, {"name": "a", "parent": "root", "uplink_bandwidth_bytes_per_s": 1e11},
            {"name": "b", "parent": "root", "uplink_bandwidth_bytes_per_s": 1e11},
        ],
    }  # fmt: skip
    less = {
        "name": "less", "nodes": [{**node, "count": 5, "hosts": ["a1", "a2", "a3", "a4", "a5"]}],
        "tiers": [{"name": "leaf", "nodes_per_unit": 2, "sharp": True}],
        "without": ["a2"], "degraded": ["a3:gpu1", "a4:nic=100 Gbit/s"],
    }  # fmt: skip
    usual = unstructure(default_cluster("h100-sxm", 64).spec)
    own = {**usual, "gpus": [unstructure(build(default_cluster("h100-sxm", 8).spec).gpu)]}
    pairs = (
        {"name": "two", "nodes": [node], "rail_optimized": True},
        {"nodes": [{"machine": "aws-p5.48xlarge", "count": 4}]},
    )
    return tuple(
        json.loads(json.dumps(each))
        for each in (*pairs, tree, less, _without_none(usual), _without_none(own))
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def make_toml(random: Random, story: list[str]) -> str:
    text = toml_of(mutated_tree(random.choice(clusters()), random, story))
    return mutated_text(text, random, story) if random.random() < 0.2 else text


def read_toml(text: str, box: Box) -> object:
    from topology.catalog import cluster
    from topology.cluster_file import to_toml

    found = cluster(box.file("cluster.toml", text))
    again = cluster(box.file("again.toml", to_toml(found.spec)))
    if again.spec != found.spec:
        raise AssertionError("the cluster does not survive being written and read")
    return found.spec, found.hierarchy
