"""Published models have their published parameters and multiply-adds, and the FLOP that torch itself counts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode

from examples.diffusion import dit, sdxl_unet
from executor.tracing.of_transformers import of_configuration
from executor.tracing.trace import example_inputs, trace_module
from tests.counts import IS_NIGHTLY, cases_of_run

TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "published_models.toml").read_text(encoding="utf-8")
)
DROPS_LAYERS = ("bart", "whisper")  # a random number decides which layers run: the counter cannot ask for it
COUNTED = {one["type"]: name for name, one in reversed(TABLE.items()) if one["type"] not in DROPS_LAYERS}


LARGER = [name for name, known in TABLE.items() if COUNTED.get(known["type"]) != name] + ["whisper-large-v3"]
"""Of the nightly run: the other sizes of a type that the suite has."""


@pytest.mark.parametrize("name", cases_of_run(TABLE, [name for name in LARGER if name in TABLE]))
def test_a_published_model_has_its_parameters_and_products(name: str) -> None:
    """Parameters within 1 % of the card, multiply-adds likewise; FLOP of one of each type as torch's counter."""
    known = TABLE[name]
    config = transformers.AutoConfig.for_model(known["type"], **known.get("sizes", {}))
    config.architectures = [known["class"]]
    with torch.device("meta"):
        module, usual = of_configuration(config)
    inputs = example_inputs(usual)
    found = trace_module(module, inputs)
    assert found.parameters == pytest.approx(known["parameters"], rel=0.01)
    if "multiply_adds" in known:
        assert found.forward_flop / 2 == pytest.approx(known["multiply_adds"], rel=0.01)
    if COUNTED.get(known["type"]) == name:
        with FlopCounterMode(display=False) as counted:
            module.bfloat16()(*inputs)
        assert found.forward_flop == pytest.approx(counted.get_total_flops() / 8, rel=0.01)


DENOISERS = {"S": (33e6, 6.06e9), "B": (130e6, 23.01e9), "L": (458e6, 80.71e9), "XL": (675e6, 118.64e9)}
"""Parameters and multiply-adds of one image: arXiv 2212.09748 table 4 (DiT with patches of 2)."""


@pytest.mark.parametrize("name", cases_of_run(DENOISERS, ("B", "L", "XL")))
def test_a_diffusion_transformer_has_its_parameters_and_products(name: str) -> None:
    """Within 1 % of its paper's table, which rounds."""
    with torch.device("meta"):
        module = dit(name)
    found = trace_module(module, example_inputs("2x4x32x32,2,2:long"))
    assert found.parameters == pytest.approx(DENOISERS[name][0], rel=0.01)
    assert found.forward_flop / 2 == pytest.approx(DENOISERS[name][1], rel=0.01)


@pytest.mark.skipif(
    not IS_NIGHTLY, reason="of the nightly run: the suite traces a small U-Net, and other models whole"
)
def test_the_u_net_of_sdxl_has_its_parameters_and_products() -> None:
    """2,567,463,684 parameters (its checkpoint's card, recalled), and the products of torch's counter."""
    with torch.device("meta"):
        module = sdxl_unet()
    inputs = example_inputs("2x4x128x128,2,2x77x2048,2x2816")
    found = trace_module(module, inputs)
    assert found.parameters == 2_567_463_684
    with FlopCounterMode(display=False) as counted:
        module.bfloat16()(*inputs)
    assert found.forward_flop == pytest.approx(counted.get_total_flops() / 2, rel=0.01)
