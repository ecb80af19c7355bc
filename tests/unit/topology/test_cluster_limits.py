"""Cluster descriptions with a typing error of any size are refused at once, with the number that is wrong."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from planner.questions.settings import override_cluster
from topology import catalog
from topology.base.errors import InputError
from topology.base.units import parse_quantity
from topology.builders import build, default_cluster
from topology.cluster_file import is_path, read_cluster
from topology.spec import ClusterSpec, NodeSpec, SwitchSpec, TierSpec

NODE = default_cluster("h100-sxm", 16).spec.nodes[0]


def spec_of(
    *nodes: NodeSpec, switches: tuple[SwitchSpec, ...] = (), tiers: tuple[TierSpec, ...] = ()
) -> ClusterSpec:
    """A cluster of these nodes."""
    return ClusterSpec(name="x", nodes=nodes, switches=switches, tiers=tiers)


def written(folder: Path, text: str) -> Path:
    """A cluster file."""
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("nics_per_node = 1000000", "nodes[0].nics_per_node = 1e+06, more than the 1,024 that can be"),
        ("nics_per_node = 2147483648", "nics_per_node = 2.14748e+09, more than"),
        ("gpus_per_node = 999999999", "gpus_per_node = 1e+09, more than"),
        ("nodes_per_domain = 10000", "gpus_per_node·nodes_per_domain = 80000, more than the 16,384"),
        ('scaleup = "nvlink-mesh"\ngpus_per_node = 512', "of an nvlink-mesh = 512, more than the 64"),
        ("nic_bandwidth_bytes_per_s = 1e-300", "nic_bandwidth_bytes_per_s = 1e-300, must be at least 1"),
        ("count = 4611686018427387904", "more than the 1048576"),
        ("nics_per_node = -1", "nics_per_node = -1, must be"),
    ],
)
def test_a_count_nobody_has_is_refused_before_anything_is_drawn(
    tmp_path: Path, line: str, cause: str
) -> None:
    """A million NICs of a node were a million devices: more than 40 s and 1.3 GB."""
    count = "" if line.startswith("count") else "count = 2\n"
    path = written(tmp_path, f'[[nodes]]\ngpu = "h100-sxm"\n{count}{line}\n')
    begun = time.process_time()
    with pytest.raises(InputError) as error:
        catalog.cluster(path)
    assert cause in error.value.cause
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(replace(NODE, count=60_000), replace(NODE, count=1, gpus_per_node=4)),
        spec_of(replace(NODE, count=1024, gpus_per_node=1024, nics_per_node=1024)),
        spec_of(replace(NODE, count=2**20, gpus_per_node=1, nics_per_node=1)),
        spec_of(*(replace(NODE, nics_per_node=n) for n in range(1, 1025)), replace(NODE, gpus_per_node=1024)),
    ],
    ids=["uneven", "rails", "no tiers", "kinds"],
)
def test_a_graph_too_large_to_draw_is_refused(spec: ClusterSpec) -> None:
    """Nodes that differ are drawn one by one; a hundred thousand devices take ten seconds."""
    with pytest.raises(InputError, match="devices and ports, more than the 131,072 that are drawn"):
        build(spec)


def test_a_million_equal_gpus_in_tiers_are_few_devices() -> None:
    """What folds is not refused."""
    assert default_cluster("h100-sxm", 2**20).num_gpus == 2**20
    assert (
        build(spec_of(replace(NODE, count=1000), replace(NODE, count=1, gpus_per_node=4))).hierarchy.num_gpus
        == 8004
    )


def chain(length: int) -> tuple[SwitchSpec, ...]:
    """Switches, each below the one before."""
    return tuple(
        SwitchSpec(name=f"s{i}", parent=f"s{i - 1}" if i else "", uplink_bandwidth_bytes_per_s=1e9)
        for i in range(length)
    )


def test_a_tree_of_switches_has_a_depth() -> None:
    """The way to the root was walked once for every switch, and searched at every step."""
    begun = time.process_time()
    for switches, cause in (
        (chain(5000), "more than 16 switches away from a root"),
        (chain(20_000), "switches.length = 20000, more than the 10,000"),
        (
            (*chain(3), SwitchSpec(name="a", parent="b"), SwitchSpec(name="b", parent="a")),
            "cyclic: a -> b -> a",
        ),
        ((*chain(3), SwitchSpec(name="a", parent="a")), "cyclic: a -> a"),
    ):
        with pytest.raises(InputError, match=cause):
            build(spec_of(replace(NODE, switch="s0"), switches=switches))
    assert time.process_time() - begun < 3
    with pytest.raises(InputError, match=r"tiers\.length = 300"):
        build(spec_of(NODE, tiers=tuple(TierSpec(name=f"t{i}", nodes_per_unit=2) for i in range(300))))
    assert build(spec_of(replace(NODE, switch="s9"), switches=chain(10))).num_gpus == 16


def test_a_file_of_problems_is_answered_with_the_first_few() -> None:
    """Ten thousand wrong nodes are one kind of mistake."""
    with pytest.raises(InputError) as error:
        build(spec_of(*(replace(NODE, count=0),) * 10_000))
    assert error.value.cause.startswith("10000 problems")
    assert len(error.value.cause) < 5000


@pytest.mark.parametrize(
    "text",
    ['[[gpus]]\nname = ["x"]', "[[gpus]]\nname = {}", "gpus = [1]", "nodes = [1]", "nodes = 1", '[[nodes]]\ngpu = ["x"]',
     '[[nodes]]\nmachine = ["x"]', '[[nodes]]\ngpu = "h100-sxm"\ncount = 1\nname = 1', '[[gpus]]\nname = "h100-sxm"\npeak_flop_per_s = 1',
     '[[gpus]]\nname = "h100-sxm"\npeak_flop_per_s = []', "name = 1"],
)  # fmt: skip
def test_a_table_of_another_type_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    """Nothing is looked up before it is known to be text."""
    with pytest.raises(InputError, match="does not describe a cluster"):
        read_cluster(written(tmp_path, text))


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ({"nodes": "[]"}, "nodes is empty"),
        ({"tiers": "[[["}, "tiers: '[[[' is not a list"),
        ({"nodes": "[" * 100_000}, "is not a list"),
        ({"nics_per_node": "9" * 400}, "is not a whole number"),
        ({"nics_per_node": "9" * 5000}, "is not a whole number"),
        ({"nic_bandwidth_bytes_per_s": "NaN"}, "is not a quantity"),
        ({"nic_bandwidth_bytes_per_s": "1" + " " * 100_000 + "x"}, "is not a quantity"),
    ],
)
def test_a_setting_is_read_like_a_file(setting: dict[str, str], cause: str) -> None:
    """The same types, the same limits: an empty list of nodes reached the middle of the planner."""
    begun = time.process_time()
    with pytest.raises(InputError) as error:
        override_cluster(spec_of(NODE), setting)
    assert cause in error.value.cause
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "name", ["x" * 5000, "x" * 5000 + ".toml", "a\0b", "a\0b.toml", "\udce9", "\udce9.toml", "", "/", "."]
)
def test_a_name_of_any_length_and_letters_is_answered(name: str) -> None:
    """It is no cluster, and no file can have it."""
    is_path(name)
    with pytest.raises(InputError) as error:
        catalog.cluster(name)
    assert len(error.value.what) < 300


def test_a_quantity_is_short() -> None:
    """Text that is not a number is not searched for one."""
    with pytest.raises(InputError) as error:
        parse_quantity("1" * 10**6)
    assert len(str(error.value)) < 500
