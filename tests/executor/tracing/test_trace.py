"""Traced modules have the sizes that their papers print, and keep what autograd keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

from published import ResNet

from costmodel.models.traced import TracedModule
from costmodel.ops.module_spec import spec_of_module
from executor.tracing.process import traced_by_process
from executor.tracing.trace import example_inputs, trace_module
from topology.base.decode import structure, unstructure
from topology.base.errors import InputError


def traced(module: torch.nn.Module, text: str) -> TracedModule:
    """The table of a module for inputs as on the command line."""
    return trace_module(module, example_inputs(text))


def on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """A module without weights."""
    with torch.device("meta"):
        return make()


PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
"""Parameters, by torchvision's model cards."""
CARDS = {18: 1.814e9, 34: 3.664e9, 50: 4.089e9, 101: 7.801e9, 152: 11.514e9}
"""Multiply-adds of torchvision's model cards, whose stride is at the 3×3."""


@pytest.mark.parametrize("depth", CARDS)
def test_a_resnet_has_the_published_parameters_and_multiply_adds(depth: int) -> None:
    """Counts are equal, products within 1 % of the cards."""
    found = traced(on_meta(lambda: ResNet(depth)), "4x3x224x224")
    assert found.parameters == PUBLISHED[depth]
    assert found.forward_flop / 2 == pytest.approx(CARDS[depth], rel=0.01)


def test_equal_blocks_of_a_resnet_are_runs() -> None:
    """Sixteen blocks of ResNet-50: four stages of 3, 4, 6 and 3, the first of each unlike the others."""
    found = traced(on_meta(lambda: ResNet(50)), "4x3x224x224")
    assert found.order == ((0, 1), (1, 2), (2, 1), (3, 3), (4, 1), (5, 5), (6, 1), (7, 2))


def test_what_a_table_keeps_is_what_autograd_keeps() -> None:
    """All saved storages of a real forward pass on the CPU, parameters and the input left out."""
    module, x = ResNet(18).bfloat16(), torch.randn(2, 3, 64, 64, dtype=torch.bfloat16)
    kept: dict[int, int] = {}
    alive = []
    known = {p.untyped_storage().data_ptr() for p in module.parameters()} | {x.untyped_storage().data_ptr()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        alive.append(module(x))
    found = traced(on_meta(lambda: ResNet(18)), "2x3x64x64")
    blocks = sum(n * kind.saved_bytes for n, kind in zip(found.counts, found.kinds, strict=True))
    total = 2 * (found.stem.saved_bytes + blocks + found.head.saved_bytes)
    channels = sum(m.num_features for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d))
    wider = 2 * 2 * channels  # a CPU keeps mean and deviation of a batch in bf16, a GPU and the trace in fp32
    assert total == sum(kept.values()) + wider


HUGGING_FACE = {
    "bert-large": (335_174_458, "4x512:long"),
    "vit-large": (304_326_632, "4x3x224x224"),
    "convnext-tiny": (28_589_128, "4x3x224x224"),
}
"""Parameters of the checkpoints' own cards."""


def _hugging_face(name: str) -> torch.nn.Module:
    hf = pytest.importorskip("transformers")
    large = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    if name == "bert-large":
        return hf.BertForMaskedLM(hf.BertConfig(**large))
    if name == "vit-large":
        return hf.ViTForImageClassification(hf.ViTConfig(**large, num_labels=1000))
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000))


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_models_of_transformers_have_their_published_parameters(name: str) -> None:
    """Tied embeddings count once, and the table says that both ends hold them."""
    found = traced(on_meta(lambda: _hugging_face(name)), HUGGING_FACE[name][1])
    assert found.parameters == HUGGING_FACE[name][0]
    assert bool(found.tied_parameters) == (name == "bert-large")


def test_a_table_survives_its_file() -> None:
    """What is written of a trace is read as the same."""
    found = traced(on_meta(lambda: ResNet(18)), "2x3x64x64")
    assert structure(unstructure(found), TracedModule, "a table") == found


def test_a_traced_model_counts_its_module() -> None:
    """Parameters and blocks of the model to plan are those of the module."""
    from costmodel.models.parameters import parameter_count
    from costmodel.models.spec import layer_order

    found = traced(on_meta(lambda: ResNet(50)), "4x3x224x224")
    spec = spec_of_module(found)
    assert (parameter_count(spec), spec.num_layers, layer_order(spec)) == (25_557_032, 16, found.order)


def test_a_parameter_used_on_both_sides_forbids_a_cut() -> None:
    """Blocks that share a weight are one block."""
    linear = torch.nn.Linear(8, 8)

    class Shares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inner(x))

    found = traced(torch.nn.Sequential(Shares(), Shares(), Shares()), "4x8")
    assert (found.order, found.parameters) == (((0, 1),), 72)


@pytest.mark.parametrize("text", ["", "8x", "0x3", "8x3:quaternion", "99999999999x99999999999"])
def test_an_input_that_is_none_is_refused(text: str) -> None:
    """Sizes joined by x, and a dtype that tensors have."""
    with pytest.raises(InputError, match="is not an input"):
        example_inputs(text)


@pytest.mark.parametrize(
    ("builder", "says"),
    [("published:looks_at_values", r"published.py, line \d+"), ("published:nothing", "cannot be imported"), ("nowhere:build", "cannot be imported")],
)  # fmt: skip
def test_a_module_that_cannot_be_traced_says_which_line(
    builder: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three lines, and the line of the user's own file where it has one."""
    root, here = Path(__file__).parents[3], Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{root}:{here}")
    with pytest.raises(InputError, match=says):
        traced_by_process(builder, "8x4")


def test_a_trace_that_takes_too_long_is_stopped() -> None:
    """The limit of time holds from the start of the process."""
    with pytest.raises(InputError, match="not traced in time"):
        traced_by_process("published:resnet50", "8x3x224x224", longest_s=0.01)
