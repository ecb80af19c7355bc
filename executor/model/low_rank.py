"""Low-rank matrices that are trained beside frozen projections (LoRA), under PEFT's parameter names.

y = W·x + (α/r)·B·(A·x), A of (r, k) and B of (n, r). Where W is split by rows A is whole on every rank and B
split alike; by columns it is the other way round. A whole matrix then sees only its rank's part of the
products, so its gradient is summed over tp (`executor.comm.sharding`).

Source: LoRA (arXiv 2106.09685) section 4.1; PEFT's `LoraLayer` for names and initial values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import nn

from costmodel.updates.adapters import Adapter, AdapterTarget
from executor.model.linear import Linear, RowLinear
from executor.model.transformer import CausalLM

IN, OUT = "lora_A", "lora_B"
PROJECTIONS: Mapping[AdapterTarget, tuple[str, ...]] = {
    "attention": (
        "q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    ),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}  # fmt: skip
"""Names of the projections of a block; those of routed experts are no modules of their own."""
_ADDED = re.compile(rf"\.({IN}|{OUT})\.weight$")


def is_added(name: str) -> bool:
    """Whether a parameter is a matrix of an adapter.

    >>> is_added("model.layers.0.self_attn.q_proj.lora_A.weight"), is_added("model.norm.weight")
    (True, False)
    """
    return _ADDED.search(name) is not None


def starts_at_zero(name: str) -> bool:
    """Whether a parameter is the second matrix of an adapter, so that the model begins as it was."""
    return name.endswith(f".{OUT}.weight")


def initial_std(inputs: int) -> float:
    """Deviation of the first matrix: that of a uniform distribution up to 1/√k, as PEFT draws it."""
    return 1 / math.sqrt(3 * inputs)


def add_adapter(model: CausalLM, adapter: Adapter) -> CausalLM:
    """Put two matrices beside every projection of the target blocks, and freeze all others, in place."""
    names = {name for target in adapter.targets for name in PROJECTIONS[target]}
    for path, module in list(model.named_modules()):
        if path.rpartition(".")[2] in names and isinstance(module, (Linear, RowLinear)):
            device = module.weight.device
            module.lora_A = Linear(module.in_features, adapter.rank, bias=False, device=device)
            module.lora_B = Linear(adapter.rank, module.out_features, bias=False, device=device)
            module.scale = adapter.alpha_or_rank / adapter.rank
    model.adapter = adapter
    freeze_others(model)
    return model


def freeze_others(model: CausalLM, *, dtype: torch.dtype = torch.float32) -> None:
    """Train the matrices of the adapter alone; the frozen ones are kept in `dtype`."""
    frozen: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if is_added(f"{path}.{name}"):
                continue
            if id(parameter) not in frozen:  # tied weights stay one parameter
                kept = parameter.detach().to(dtype)
                frozen[id(parameter)] = nn.Parameter(kept, requires_grad=False)
            module.register_parameter(name, frozen[id(parameter)])
