"""Where FlexAttention's kernels do not run plain products stand in, and a GPU that computes so is told of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from executor.model.attention import flex, kernels

CPU = torch.device("cpu")
SHARED_MEMORY = {  # bytes of a block at most, by capability: CUDA's programming guide
    (7, 5): 65_536,
    (8, 0): 166_912,
    (8, 6): 101_376,
    (8, 9): 101_376,
    (9, 0): 232_448,
    (12, 0): 101_376,
}
SMALL = "a block has 99 KiB of shared memory, not 163 KiB"


def have_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    """Have torch tell of a GPU, with Triton beside it."""
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_MEMORY[capability])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _=None: properties)
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda _: object())


@pytest.mark.parametrize(
    ("dtype", "head", "capability", "said"),
    [
        (torch.bfloat16, 64, (9, 0), ""),
        (torch.bfloat16, 64, (7, 5), "compute capability is 7.5, not 8.0"),
        (torch.float64, 64, (9, 0), "they do not take float64"),
        (torch.bfloat16, 8, (9, 0), "heads are of size 8, not 16 to 256"),
        (torch.bfloat16, 576, (9, 0), "heads are of size 576, not 16 to 256"),
        (torch.bfloat16, 256, (8, 0), ""),
        (torch.bfloat16, 128, (8, 9), ""),
        (torch.bfloat16, 192, (8, 6), f"{SMALL} for heads of 384 bytes"),
        (torch.bfloat16, 256, (8, 9), f"{SMALL} for heads of 512 bytes"),
        (torch.bfloat16, 256, (12, 0), f"{SMALL} for heads of 512 bytes"),
        (torch.float32, 128, (8, 6), f"{SMALL} for heads of 512 bytes"),
    ],
)
def test_where_the_kernels_do_not_run_is_told(
    dtype: torch.dtype, head: int, capability: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain products stand in, in words; a CPU computes so without a word."""
    have_gpu(monkeypatch, capability)
    gpu, spec = torch.device("cuda"), replace(model("gemma-2-9b"), head_dim=head)
    assert flex.obstacle(gpu, dtype, head) == said
    expected = said and f"windows, soft caps without FlexAttention, by plain products: {said}"
    whole = ParallelLayout()
    assert kernels.attention_line(spec, whole, gpu, dtype, documents=False) == expected
    assert kernels.attention_line(spec, whole, CPU, dtype, documents=True) == ""


@pytest.mark.parametrize(
    ("layout", "documents", "said"),
    [
        (ParallelLayout(), False, ""),
        (ParallelLayout(), True, "documents"),
        (ParallelLayout(cp=2), False, ""),
        (ParallelLayout(cp=2, cp_kind="allgather"), False, "gathered keys"),
        (ParallelLayout(cp=2, cp_kind="allgather"), True, "documents, gathered keys"),
        (ParallelLayout(cp_kind="allgather"), False, ""),
    ],
)
def test_documents_and_gathered_keys_are_told_of(
    layout: ParallelLayout, documents: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of plain causal attention attends under a mask where documents end, or keys are gathered."""
    have_gpu(monkeypatch, (7, 5))
    cause = "compute capability is 7.5, not 8.0"
    found = kernels.attention_line(
        model("llama-3.1-8b"), layout, torch.device("cuda"), torch.bfloat16, documents=documents
    )
    assert found == (said and f"{said} without FlexAttention, by plain products: {cause}")


@pytest.mark.parametrize(("version", "runs"), [("2.11.0", False), ("2.12.1+cu130", False), ("2.13.0", True)])
def test_the_kernels_are_those_of_a_version(
    version: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators of torch before 2.13 take a mask in fewer parts: plain products stand in."""
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    have_gpu(monkeypatch)
    found = flex.obstacle(torch.device("cuda"), torch.bfloat16, 64)
    assert found == ("" if runs else f"torch is {version}, not 2.13 or later")


def test_without_triton_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch without its compiler's back end."""
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda _: None)
    assert flex.obstacle(torch.device("cuda"), torch.bfloat16, 64) == "triton is not installed"
