"""A name of a GPU is the part it says, however people, drivers, schedulers and clouds write it, or none."""

import pytest

from topology.base.errors import UnknownNameError
from topology.hardware.datasheets import gpu_sheets, machine_named, sheet_named
from topology.hardware.device_names import gpus_in_text
from topology.hardware.gpu_names import NAME_TOLERANCE, part_name, parts_named

NAMES = {
    "H100": "h100-sxm", "H100-80GB": "h100-sxm", "NVIDIA H100 80GB HBM3": "h100-sxm", "h100sxm": "h100-sxm",
    "NVIDIA-H100-80GB-HBM3-SHARED": "h100-sxm", "H100 SXM5 80GB": "h100-sxm", "H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl", "H100-NVL-94GB": "h100-nvl", "h100 96gb": "h100-sxm-96gb-hbm2e",
    "A100": "a100-sxm-80gb", "NVIDIA A100": "a100-sxm-80gb", "a100-40": "a100-sxm-40gb", "A100-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "a100sxm80gb": "a100-sxm-80gb", "A100 40GB PCIE": "a100-pcie-40gb",
    "GB200NVL72": "gb200", "GB200 NVL72": "gb200", "GB300-NVL72": "gb300", "B200-SXM-180GB": "b200-sxm",
    "NVIDIA B200 192GB": "b200-sxm", "NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)": "b300-sxm",
    "H200-SXM5-141GB": "h200-sxm", "NVIDIA H200 NVL": "h200-nvl", "NVIDIA GH200 480GB": "gh200-96gb",
    "GH200 144G HBM3e": "gh200-144gb", "H20-96GB": "h20-sxm", "H20-141GB": "h20-sxm-141gb", "H20-3e": "h20-sxm-141gb",
    "A800": "a800-sxm-80gb", "NVIDIA A800-SXM4-80GB": "a800-sxm-80gb", "A800 PCIe": "a800-pcie-80gb",
    "H800": "h800-sxm", "h800-pcie": "h800-pcie", "L20": "l20", "NVIDIA L40": "l40", "L40S 48GB": "l40s", "A40": "a40",
    "RTX3090": "rtx-3090", "3090": "rtx-3090", "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti", "rtx 3090ti": "rtx-3090-ti",
    "GeForce RTX 4090 24GB": "rtx-4090", "RTX_5090": "rtx-5090", "5090": "rtx-5090", "A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada", "RTX6000Ada": "rtx-6000-ada", "RTX A5000": "rtx-a5000",
    "RTX PRO 6000": "rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "rtx_pro_6000_blackwell_max-q": "rtx-pro-6000-max-q", "RTX PRO 6000 96GB": "rtx-pro-6000", "GB10": "gb10",
    "dgx spark": "gb10", "Tesla T4": "t4", "V100-SXM2-32GB": "v100-sxm-32gb", "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "V100-16": "v100-sxm-16gb", "NVIDIA A30": "a30", "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI210": "mi210", "mi250x (per OAM = 2 GCD)": "mi250x-gcd",
    "A100 80 GB": "a100-sxm-80gb", "V100 32 GB": "v100-sxm-32gb", "H100 80 GiB SXM": "h100-sxm", "H100 (PCIe)": "h100-pcie",
    "H100 (80GB)": "h100-sxm", "NVIDIA H100 (SXM5, 80 GB)": "h100-sxm", "H200 141GB": "h200-sxm",
}  # fmt: skip
"""What people, nvidia-smi, torch, labels and clouds print, and the part."""
REFUSED = {
    "RTX 2080": "rtx-2080-ti", "RTX 4090 Laptop GPU": "rtx-4090", "RTX 4090 D": "rtx-4090",
    "A100-SXM-64GB": "a100-sxm-80gb", "h100 sxm 64gb": "h100-sxm", "GH-96": "gh200-96gb", "RTX 6000": "rtx-6000-ada",
    "H100 80GB HBM3 MIG 1g.10gb": "h100-sxm", "gb200-nvl36": "gb200", "GH200 NVL32": "gh200-96gb",
}  # fmt: skip
"""Parts that the catalog lacks, and one of those that are proposed in their place."""


@pytest.mark.parametrize(("name", "part"), NAMES.items())
def test_a_name_is_the_part_that_it_says(name: str, part: str) -> None:
    """In any case, with any separators, and again by the name that was found."""
    assert {sheet_named(each).name for each in (name, name.lower(), name.upper(), f" {name} ")} == {part}
    assert sheet_named(part).name == part


@pytest.mark.parametrize(("name", "near"), REFUSED.items())
def test_a_part_that_is_not_here_is_refused_with_those_of_its_family(name: str, near: str) -> None:
    """Never taken for the nearest; the way out is named."""
    with pytest.raises(UnknownNameError) as refused:
        sheet_named(name)
    assert near in refused.value.suggestions
    assert "four keys" in refused.value.fix


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("H100 94GB", {"h100-nvl", "h100-sxm-96gb-hbm2e"}),
        ("A100 SXM", {"a100-sxm-80gb", "a100-sxm-40gb"}),
    ],
)
def test_a_name_of_several_parts_is_refused_with_them(name: str, parts: set[str]) -> None:
    """94 GB are an NVL board's, and are sold as SXM boards, too."""
    with pytest.raises(UnknownNameError, match="ambiguous") as refused:
        sheet_named(name)
    assert set(refused.value.suggestions) == parts


@pytest.mark.parametrize("name", ["tpu-v5p", "Ascend 910B", "Gaudi 3", "strix-halo", "", "gpu", "80gb"])
def test_what_is_no_part_is_refused_with_the_keys_that_describe_it(name: str) -> None:
    """Another maker's card is described in a file."""
    with pytest.raises(UnknownNameError, match="unknown GPU") as refused:
        sheet_named(name)
    assert "four keys" in refused.value.fix


@pytest.mark.parametrize("name", ["8xH100", "h100x8", "8 x NVIDIA H100 80GB HBM3", "h100:8"])
def test_a_number_of_gpus_is_answered_with_both_flags(name: str) -> None:
    """As clouds write their machines."""
    with pytest.raises(UnknownNameError) as refused:
        sheet_named(name)
    assert refused.value.fix == "use --gpu h100-sxm --gpus 8"


@pytest.mark.parametrize("name", list(gpu_sheets()))
@pytest.mark.parametrize("form", ["{}", "NVIDIA {}", "nvidia_{}", "({})"])
def test_no_spelling_of_a_part_is_another(name: str, form: str) -> None:
    """Of every part of the catalog: itself alone, and no part is within the tolerance of its family's others."""
    assert parts_named(form.format(name.upper()), gpu_sheets().values()) == [name]
    own, gib = part_name(name), gpu_sheets()[name].memory_gib
    for other, sheet in gpu_sheets().items():
        alike = part_name(other)
        if other != name and (alike.family, alike.form) == (own.family, own.form):
            assert abs(sheet.memory_gib / gib - 1) > NAME_TOLERANCE


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("8x A100-SXM4-40GB, 1 TB", ("a100-sxm-40gb",)),
        ("# 4 x RTX 3090 and RTX 3090 Ti", ("rtx-3090", "rtx-3090-ti")),
        ("step 4090 of 5090, 0x4090", ()),
        ("8x4090, 2 x 3090", ("rtx-4090", "rtx-3090")),
        ("on A800 nodes", ("a800-sxm-80gb",)),
    ],
)
def test_a_text_speaks_of_parts_with_their_memory(text: str, parts: tuple[str, ...]) -> None:
    """A bare number is no GPU."""
    assert gpus_in_text(text) == parts


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("Standard_ND96isr_H100_v5", "azure-nd96isr-h100-v5"),
        ("gpu_8x_a100", "lambda-8x-a100"),
        ("gpu_8x_h100_sxm5", "lambda-8x-h100-sxm5"),
        ("p5.48xlarge", "aws-p5.48xlarge"),
        ("a3-highgpu-8g", "gcp-a3-highgpu-8g"),
        ("BM.GPU.H100.8", "oci-bm.gpu.h100.8"),
        ("GB200 NVL72 rack", "gb200-nvl72"),
        ("DGX SuperPOD H100 scalable unit", "dgx-superpod-h100"),
    ],
)
def test_a_machine_is_found_by_the_name_of_its_cloud(name: str, machine: str) -> None:
    """Without the provider before it, with what clouds write around it."""
    assert machine_named(name).name == machine
