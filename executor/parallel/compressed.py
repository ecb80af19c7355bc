"""Gradients of replicas summed in sixteen bits, as torch's communication hooks of DDP send them.

Replicas share no state then (ZeRO-0): FSDP keeps every parameter whole, and reduces nothing. After the last
microbatch each unit, a layer or an end of the model, is one message. Torch's hooks see the gradient of a
rank's own mean, which is cast and then divided by the number of ranks; here gradients are shares of one sum,
so they are multiplied first, that the same values are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from executor.comm.collectives import ProcessGroup
from executor.comm.tensor_parallel import local
from executor.model.transformer import CausalLM

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LAYER = re.compile(r"model\.layers\.[0-9]+\.")


def units(model: CausalLM) -> Iterator[list[torch.nn.Parameter]]:
    """Parameters of each layer, and of each end of the model; of both ends together where they are tied."""
    found: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        layer = _LAYER.match(name)
        end = "embedding" if name.startswith("model.embed") and not model.spec.tie_word_embeddings else "head"
        found.setdefault(layer[0] if layer else end, []).append(parameter)
    yield from found.values()


def sum_narrow(models: Sequence[CausalLM], group: ProcessGroup, kind: str) -> None:
    """Sum every gradient over the replicas in place, a message for each unit."""
    ranks = dist.get_world_size(group)
    for unit in (unit for model in models for unit in units(model)):
        parts = [local(parameter.grad) for parameter in unit if parameter.grad is not None]
        if not parts or ranks == 1:
            continue
        message = torch.cat([(part.flatten() * ranks).to(FORMATS[kind]) for part in parts]).div_(ranks)
        dist.all_reduce(message, group=group)
        for part, found in zip(parts, message.split([part.numel() for part in parts]), strict=True):
            part.copy_(found.view_as(part))
