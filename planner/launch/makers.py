"""What a bundle says otherwise for the GPUs of each maker: base image, checks of a node, variables, resource.

Words: `nvidia-smi --help-query-gpu`; rocm.docs.amd.com, rocm_smi_lib (Using ROCm SMI with Python), amdsmi
(AMD SMI CLI tool), HIP (environment variables); ROCm/k8s-device-plugin. RCCL reads NCCL's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.launch.entries import Entry
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

AMD, NVIDIA = "amd", "nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """One maker of GPUs.

    Attributes:
        resource: What a pod asks Kubernetes for.
        tools: Shell functions of the preflight: `gpus` prints a line a GPU, `memory` MiB of each, `names` and
            `driver` what people call them; it stops where none of the maker's tools is there.
        torch: What torch must have been built with, a line of Python.
        built_for: The same for people.
        images: Base image by engine where it is not the one of the engine's entry.
        environment: Lines of `environment.sh`, with `{gpus}` of a node.
        devices: The variable that names the GPUs of a process.
        product: The label of a Kubernetes node that names its GPUs.
    """

    resource: str
    tools: str
    torch: str
    built_for: str
    images: Mapping[str, str]
    environment: tuple[str, ...] = ()
    devices: str = "CUDA_VISIBLE_DEVICES"
    product: str = "nvidia.com/gpu.product"


_ROCM_IMAGE = "rocm/primus:v26.2"
"""ROCm 7.2.1 with torch 2.9.1 and Transformer Engine (rocm.docs.amd.com, Primus, Quickstart)."""

MAKERS: Mapping[str, Maker] = {
    NVIDIA: Maker(
        resource="nvidia.com/gpu",
        tools="""\
command -v nvidia-smi >/dev/null || { echo "preflight: no nvidia-smi on $(hostname)" >&2; exit 1; }
gpus() { nvidia-smi --query-gpu=index --format=csv,noheader; }
memory() { nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; }
names() { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; }
driver() { nvidia-smi --query-gpu=driver_version --format=csv,noheader; }
""",
        torch="import torch; assert torch.cuda.is_available() and torch.distributed.is_nccl_available()",
        built_for="CUDA or no NCCL",
        images={},
    ),
    AMD: Maker(
        resource="amd.com/gpu",
        tools="""\
tool=rocm-smi
command -v rocm-smi >/dev/null || tool=amd-smi
command -v "$tool" >/dev/null || { echo "preflight: no rocm-smi or amd-smi on $(hostname)" >&2; exit 1; }
column() { awk -F, -v word="$1" '
  !at { for (i = 1; i <= NF; i++) if (index(tolower($i), word) && !at) at = i; next }
  NF > 1 { print $at }'; }
if [ "$tool" = rocm-smi ]; then  # bytes of each card
  memory() { rocm-smi --showmeminfo vram --csv | column "total memory" | awk '{ print int($1 / 1048576) }'; }
  names() { rocm-smi --showproductname --csv | column "card series"; }
  driver() { rocm-smi --showdriverversion --csv | awk -F, '/river version/ { print $2 }'; }
else  # MB of each card
  memory() { amd-smi metric --mem-usage --csv | column "total_vram"; }
  names() { amd-smi static --asic --csv | column "market_name"; }
  driver() { amd-smi static --driver --csv | column "version"; }
fi
gpus() { memory; }
""",
        torch="import torch; assert torch.version.hip and torch.cuda.is_available()"
        " and torch.distributed.is_nccl_available()",
        built_for="ROCm or no RCCL",
        images={
            **dict.fromkeys(("megatron", "torchtitan", "deepspeed", "accelerate"), _ROCM_IMAGE),
            "megatron-bridge": "<image with Megatron-Bridge for ROCm>",
            "colossalai": "<image with Colossal-AI for ROCm>",
            "horovod": "<image with Horovod for ROCm>",
            "tensorflow": "<image with TensorFlow for ROCm>",
            "vllm": "vllm/vllm-openai-rocm:v0.33.0",
            "sglang": "lmsysorg/sglang:v0.5.15.post1-rocm720",
            "meshplan": "<image with Python 3.11 or later and torch 2.11 or later for ROCm>",
        },
        environment=(
            "# GPUs of the ranks; Slurm and device plugins may have named them already",
            'export HIP_VISIBLE_DEVICES="${{HIP_VISIBLE_DEVICES:-${{CUDA_VISIBLE_DEVICES:-{gpus}}}}}"',
            "# arguments of kernels in the GPU's own memory: they start earlier",
            "export HIP_FORCE_DEV_KERNARG=1",
        ),
        devices="HIP_VISIBLE_DEVICES",
        product="amd.com/gpu.product-name",
    ),
}


def maker_of(gpu: Gpu) -> Maker:
    """Who made a GPU; NVIDIA where its generation does not say."""
    return MAKERS[generation_of(gpu).maker]


def image_of(engine: str, entry: Entry, maker: Maker) -> str:
    """Base image of an engine's container."""
    return maker.images.get(engine, entry.image)
