"""A card that the catalog lacks is described by four keys; the rest is derived, and said."""

from pathlib import Path

import pytest

from topology.base.errors import InputError
from topology.base.units import GB, GIB, TERA
from topology.catalog import cluster
from topology.hardware.datasheets import gpu_sheets

CARD = """
[[gpus]]
name = "my-card"
memory_bytes = "24 GiB"
memory_bandwidth_bytes_per_s = "936 GB/s"
peak_flop_per_s = { bf16 = "71 TFLOP/s" }
"""


def written(folder: Path, text: str) -> Path:
    """A cluster file."""
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_four_keys_are_a_cluster(tmp_path: Path) -> None:
    """One node of the nearest card's machine; what was taken is in the notes."""
    own = cluster(written(tmp_path, CARD))
    assert (own.gpu.name, own.gpu.memory_bytes, own.gpu.memory_bandwidth_bytes_per_s) == (
        "my-card", 24 * GIB, 936 * GB,
    )  # fmt: skip
    assert (own.gpu.peak("bf16"), own.gpu.architecture, own.gpu.tdp_w) == (71 * TERA, "ampere-rtx", 350)
    assert own.gpu.derived_from == "rtx-3090"
    assert {"architecture", "tdp", "int8"} <= set(own.gpu.unverified)
    said, nodes = own.notes
    assert "taken from rtx-3090, the nearest card here" in said
    assert nodes.startswith("nodes of my-card have 8 GPUs over pcie, 32 GB/s to the host")


def test_three_of_its_node_can_be_used(tmp_path: Path) -> None:
    """As of any machine."""
    assert cluster(written(tmp_path, CARD), 3).spec.num_gpus == 3


def test_other_peaks_keep_their_ratio_to_the_nearest_card(tmp_path: Path) -> None:
    """Half the arithmetic in 16 bits is half in eight."""
    own = cluster(written(tmp_path, CARD.replace("71 TFLOP/s", "35.5 TFLOP/s")))
    near = gpu_sheets()[own.gpu.derived_from].gpu()
    assert own.gpu.peak("int8") / own.gpu.peak("bf16") == pytest.approx(near.peak("int8") / near.peak("bf16"))


@pytest.mark.parametrize("name", list(gpu_sheets()))
def test_every_card_of_the_catalog_is_nearest_to_itself(tmp_path: Path, name: str) -> None:
    """By its three numbers, up to cards that share all of them."""
    card = gpu_sheets()[name].gpu()
    dtype = "bf16" if "bf16" in card.peak_flop_per_s else "fp16"
    text = (
        f'[[gpus]]\nname = "own"\nmemory_bytes = {card.memory_bytes}\n'
        f"memory_bandwidth_bytes_per_s = {card.memory_bandwidth_bytes_per_s}\n"
        f"peak_flop_per_s = {{ {dtype} = {card.peak(dtype)} }}\n"
    )
    near = gpu_sheets()[cluster(written(tmp_path, text)).gpu.derived_from].gpu()
    alike = ("memory_bytes", "memory_bandwidth_bytes_per_s")
    assert [getattr(near, key) for key in alike] == [getattr(card, key) for key in alike]
    assert near.peak("bf16") == card.peak("bf16")


def test_what_the_file_states_is_not_derived(tmp_path: Path) -> None:
    """A card with its architecture has the peaks that are stated and no others."""
    more = 'architecture = "ada"\ntdp_w = 300\npeer_to_peer = true\n'
    own = cluster(written(tmp_path, CARD + more))
    assert (own.gpu.unverified, dict(own.gpu.peak_flop_per_s)) == ((), {"bf16": 71 * TERA})
    assert [note.split(" have")[0] for note in own.notes] == ["nodes of my-card"]


@pytest.mark.parametrize("key", ["memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flop_per_s"])
def test_a_card_described_in_part_is_refused_with_the_keys(tmp_path: Path, key: str) -> None:
    """The message names the missing one and all four."""
    text = "\n".join(line for line in CARD.splitlines() if not line.startswith(key))
    with pytest.raises(InputError, match="in part") as refused:
        cluster(written(tmp_path, text))
    assert key in refused.value.cause
    assert "the rest is derived" in refused.value.fix
