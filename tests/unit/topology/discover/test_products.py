"""A product keeps its memory: no spelling of a scheduler or a driver is read as a part with more or less of it."""

import pytest

from topology.base.errors import UnknownNameError
from topology.discover.formats.products import gpu_of_product
from topology.hardware.datasheets import gpu_sheets, sheet_named

PRINTED = {
    "NVIDIA-A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "a100-sxm4-80gb": "a100-sxm-80gb", "NVIDIA-A100-SXM4-40GB": "a100-sxm-40gb",
    "a100_sxm4_40gb": "a100-sxm-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb", "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA-H100-SXM5-80GB": "h100-sxm", "NVIDIA H200": "h200-sxm", "NVIDIA H200 141GB HBM3e": "h200-sxm",
}  # fmt: skip
"""What nvidia-smi, GPU feature discovery and GRES lines print, and the part."""


@pytest.mark.parametrize(("text", "name"), PRINTED.items())
def test_what_drivers_and_labels_print_is_read_with_its_memory(text: str, name: str) -> None:
    """Whatever stands between the words."""
    assert gpu_of_product(text) == name


@pytest.mark.parametrize("name", list(gpu_sheets()))
@pytest.mark.parametrize("form", ["NVIDIA-{}", "{}", "nvidia {}"])
@pytest.mark.parametrize("socket", ["", "3", "4", "5"])
def test_no_part_is_read_as_one_of_other_memory(name: str, form: str, socket: str) -> None:
    """Every part of the catalog with its memory said, its socket numbered or not: itself, or nothing."""
    gib = gpu_sheets()[name].memory_gib
    plain = name.replace("-sxm", f"-sxm{socket}").replace("-pcie", f"-pcie{socket}")
    text = plain if plain.endswith("gb") else f"{plain}-{gib:.0f}gb"
    read = gpu_of_product(form.format(text.upper() if "NVIDIA" in form else text))
    assert read == "" or abs(gpu_sheets()[read].memory_gib / gib - 1) < 0.1


@pytest.mark.parametrize("text", ["a100-sxm4", "A100 SXM", "a100-pcie"])
def test_a_family_of_two_memories_is_asked_which(text: str) -> None:
    """By a label it is no part; a user is shown both."""
    assert gpu_of_product(text) == ""
    with pytest.raises(UnknownNameError, match="ambiguous") as error:
        sheet_named(text)
    assert "80gb" in str(error.value.cause)
    assert "40gb" in str(error.value.cause)
