"""Models whose layers have no module here are refused by their kinds of layers, and nothing else is trained."""

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from executor.model.layer_limits import check_layers
from executor.model.transformer import build_model
from topology.base.errors import InputError


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nemotron-3-nano-30b-a3b", "23 × Mamba-2, 23 × experts, 6 × attention"),
        ("qwen3-next-80b-a3b", "36 × Gated DeltaNet \\+ experts, 12 × attention \\+ experts"),
        ("llama-4-maverick", "24 × attention \\+ feed-forward, 24 × attention \\+ experts"),
        ("deepseek-v3.2", "2048 keys that an indexer chose"),
        ("command-a", "share a norm"),
    ],
)
def test_layers_without_a_module_are_named(name: str, cause: str) -> None:
    """Whatever else a file says is set aside, as a plan's validation does; the layers are refused."""
    for spec in (model(name), replace(model(name), unmodelled=())):
        with pytest.raises(InputError, match=cause):
            build_model(spec)


def test_models_with_attention_on_all_layers_are_built() -> None:
    """The check lets pass what the executor has modules for."""
    check_layers(model("deepseek-v3"))
    check_layers(model("gemma-3-1b"))
