"""What recomputation by operator keeps: every kernel of attention that torch may choose."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from executor.torch_internals.operators import KEPT

PREFIX = "aten::_scaled_dot_product"
COMPOSED = ("_math", "_math_for_mps")
"""Of other operators, which are kept or not by themselves; a GPU of Apple is none that plans are for."""


def test_every_attention_kernel_is_kept() -> None:
    """Torch prefers cuDNN's on Hopper and Blackwell: one that is not kept is computed twice, against the plan."""
    schemas = torch._C._jit_get_all_schemas()
    names = {schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith(PREFIX)}
    forward = {name for name in names if not name.endswith(("_backward", *COMPOSED))}
    kept = {operator.name().removeprefix("aten::").partition(".")[0] for operator in KEPT}
    assert len(forward) >= 5
    assert forward <= kept
