"""The GPU of a server is the one that its files name; no verdict rests on one that nobody named."""

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import audited_server
from planner.audit.serving.server import Server, server_of
from topology.base.errors import InputError

CAL = load_calibration()
COMMAND = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
POD = """spec:
  nodeSelector: {{{label}}}
  containers:
    - image: vllm/vllm-openai:v0.11.0
      args: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
"""


def gpus(text: str, name: str = "serve.sh") -> tuple[str, ...]:
    """Kinds of GPU that a file names."""
    return read_texts({name: text}).gpus


@pytest.mark.parametrize(
    ("comment", "gpu"),
    [("one Tesla T4", "t4"), ("2 x H20", "h20-sxm"), ("4x A10G", "a10g"), ("on two L4 GPUs", "l4")],
)
def test_short_names_behind_a_count_or_a_maker_are_gpus(comment: str, gpu: str) -> None:
    """Though they are words of other things elsewhere."""
    assert gpus(f"# {comment}\n{COMMAND}") == (gpu,)
    assert gpus(f"# step t4 of l4, a10 h20\n{COMMAND}") == ()


@pytest.mark.parametrize(
    ("label", "gpu"),
    [
        ("cloud.google.com/gke-accelerator: nvidia-l4", "l4"),
        ("nvidia.com/gpu.product: Tesla-T4", "t4"),
        ("nvidia.com/gpu.product: NVIDIA-H20", "h20-sxm"),
        ("karpenter.k8s.aws/instance-gpu-name: a10g", "a10g"),
        ("karpenter.k8s.aws/instance-gpu-name: t4", "t4"),
    ],
)
def test_labels_of_nodes_name_gpus(label: str, gpu: str) -> None:
    """As makers, clouds and autoscalers spell them."""
    assert gpus(POD.format(label=label), "pod.yaml") == (gpu,)


def test_a_part_of_a_files_name_is_a_gpu_where_no_text_names_one() -> None:
    """A comment holds over the name of its file."""
    assert gpus(COMMAND, "serve_l4.sh") == ("l4",)
    assert gpus(f"# one T4\n# one NVIDIA L40S\n{COMMAND}", "serve_l4.sh") == ("l40s", "t4")


@pytest.mark.parametrize("card", ["RTX 3060", "GTX 1080 Ti", "Tesla P40", "Arc A770"])
def test_a_card_that_the_catalog_lacks_is_refused_as_its_flag_is(card: str) -> None:
    """It never becomes the usual GPU."""
    reading = read_texts({"serve.sh": f"# one {card} 12GB\n{COMMAND}"})
    with pytest.raises(InputError, match=card):
        server_of(reading, model=None, gpu=None)
    assert isinstance(server_of(reading, model=None, gpu="rtx-3090"), Server)


def test_nothing_starts_on_a_guessed_gpu() -> None:
    """The first line says which one was taken, and the memory is what it would hold."""
    reading = read_texts({"serve.sh": COMMAND})
    server = server_of(reading, model=None, gpu=None)
    assert isinstance(server, Server)
    audit = audited_server(CAL, reading, server, ())
    assert audit.start is not None
    assert (audit.start.starts, audit.fits) == (None, None)
    assert audit.start.words.startswith("on a guessed h100-sxm it would hold weights")
    assert server_answer(audit).headline.endswith("on a guessed h100-sxm (--gpu)")
