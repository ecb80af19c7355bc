"""Gradients of replicas summed in fewer bytes: in sixteen bits, in eight, or as factors of low rank.

Replicas share no state then (ZeRO-0): FSDP keeps every parameter whole, and reduces nothing. After the last
microbatch each unit, a layer or an end of the model, is summed by itself. Torch's hooks see the gradient of a
rank's own mean, which is cast and then divided by the number of ranks; here gradients are shares of one sum,
so they are multiplied first, that the same values are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from costmodel.updates.compression import Compression, parse_compression
from executor.comm.collectives import ProcessGroup
from executor.comm.tensor_parallel import local
from executor.model.transformer import CausalLM
from executor.parallel.factors import Missed, seeds, sides_of, sum_factored
from executor.parallel.narrow import sum_in_eight_bits

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LAYER = re.compile(r"model\.layers\.[0-9]+(?=\.)")
Load = Callable[[Mapping[str, torch.Tensor]], None]


def units(model: CausalLM) -> dict[str, dict[str, torch.nn.Parameter]]:
    """What is trained of each layer, and of each end of the model; of both together where they are tied."""
    result: dict[str, dict[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer = _LAYER.match(name)
        end = "embedding" if name.startswith("model.embed") and not model.spec.tie_word_embeddings else "head"
        result.setdefault(layer[0] if layer else end, {})[name] = parameter
    return result


@dataclass(slots=True, kw_only=True)
class Compressor:
    """How replicas sum gradients, and what one of them keeps by unit; `begins` is told before each step's."""

    how: Compression
    kept: dict[str, Missed] = field(default_factory=dict)
    begins: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, text: str) -> Compressor:
        """For a job's compression in its own words."""
        return cls(how=parse_compression(text))

    def messages(
        self, unit: str, gradients: Mapping[str, torch.Tensor], seed: int, replicas: int
    ) -> Iterator[torch.Tensor]:
        """Sum a unit's gradients in place; yields messages that are summed in place meanwhile.

        Of one in eight bits the sum is what `sum_in_eight_bits` gives.
        """
        if self.how.factors:
            kept = self.kept.setdefault(unit, Missed())
            rank = self.how.rank
            return sum_factored(gradients, kept, rank=rank, seed=seed, replicas=replicas)
        return _cast(gradients, self.how.kind, replicas)

    def sum(self, models: Sequence[CausalLM], group: ProcessGroup) -> None:
        """Sum every gradient over the replicas in place."""
        self.begins()
        replicas = dist.get_world_size(group)
        named = [unit for model in models for unit in units(model).items()]
        for (unit, parameters), seed in zip(named, seeds(), strict=False):
            gradients = {n: local(p.grad) for n, p in parameters.items() if p.grad is not None}
            if not gradients:
                continue
            if replicas == 1:
                self._give_back(unit, gradients)
                continue
            for message in self.messages(unit, gradients, seed, replicas):
                if self.how.kind == "int8":
                    sum_in_eight_bits(message, group)
                else:
                    dist.all_reduce(message, group=group)

    def _give_back(self, unit: str, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add what was missed while there were several replicas to the gradients of the one that is left."""
        kept = self.kept.pop(unit, None)
        if kept is None or kept.error is None:
            return
        parts = kept.error.split([gradient.numel() for gradient in gradients.values()])
        for gradient, part in zip(gradients.values(), parts, strict=True):
            gradient.add_(part.view_as(gradient))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaErrors:
    """What one of a run's replicas keeps, as checkpoints have it: errors by its number, factors without.

    `models` are its parts of the model, `group` are the replicas.
    """

    compressor: Compressor
    models: Sequence[CausalLM]
    group: ProcessGroup

    def sum(self) -> None:
        """Sum every gradient over the replicas in place."""
        self.compressor.sum(self.models, self.group)

    def state(self) -> dict[str, torch.Tensor]:
        """What is to be saved, by name."""
        result: dict[str, torch.Tensor] = {}
        for unit, kept in self.compressor.kept.items():
            if kept.error is not None:
                result[_missed(dist.get_rank(self.group), unit)] = kept.error
            if kept.factors is not None:
                result[_factors(unit)] = kept.factors
        return result

    def restore(self, sizes: Mapping[str, int], load: Load) -> str:
        """Take up what was saved; returns a line for the user where that is not what this replica kept.

        On another number of replicas each begins with the mean of all errors. That mean is what sums have
        held back of the gradients so far, so none of them is lost, and none counted twice.

        Args:
            sizes: Values of each tensor that was saved, by name.
            load: Reads tensors by name in place; every rank must call it.
        """
        how, kept = self.compressor.how, self.compressor.kept
        kept.clear()
        if not how.factors:
            return ""
        parts = {
            unit: {name: local(parameter) for name, parameter in parameters.items()}
            for model in self.models
            for unit, parameters in units(model).items()
        }
        empty = {
            unit: torch.cat([part.new_zeros(part.numel(), dtype=torch.float32) for part in named.values()])
            for unit, named in parts.items()
        }
        saved = _replicas_of(sizes)
        fits = all(sizes.get(_missed(0, unit)) == error.numel() for unit, error in empty.items())
        if not saved or not fits:
            return "what factors of gradients missed is not in the checkpoint: it begins at zero"
        replicas, mine = dist.get_world_size(self.group), dist.get_rank(self.group)
        read = {unit: torch.empty_like(error) for unit, error in empty.items()}
        for replica in (mine,) if saved == replicas else range(saved):
            load({_missed(replica, unit): error for unit, error in read.items()})
            for unit, error in empty.items():
                error.add_(read[unit])
        if saved != replicas:
            for error in empty.values():
                error.div_(saved)
        kept |= {unit: Missed(error=error) for unit, error in empty.items()}
        for unit, named in parts.items():  # those of another rank are drawn anew
            sides = sides_of({name: part.shape for name, part in named.items()}, how.rank).values()
            size = sum(m * r for _, m, r in sides)
            if size and sizes.get(_factors(unit)) == size:
                kept[unit].factors = empty[unit].new_empty(size)
        load({_factors(unit): missed.factors for unit, missed in kept.items() if missed.factors is not None})
        if saved == replicas:
            return ""
        return f"what factors of gradients missed on {saved} replicas is averaged for {replicas}"


def _missed(replica: int, unit: str) -> str:
    """Name under which a replica's errors of a unit are saved."""
    return f"missed.{replica}.{unit}"


def _factors(unit: str) -> str:
    """Name under which the factors of a unit are saved."""
    return f"factors.{unit}"


def _replicas_of(sizes: Mapping[str, int]) -> int:
    """How many replicas saved errors."""
    numbers = {int(name.split(".")[1]) for name in sizes if name.startswith("missed.")}
    return len(numbers)


def _cast(gradients: Mapping[str, torch.Tensor], kind: str, replicas: int) -> Iterator[torch.Tensor]:
    """Sum gradients as one message of narrower values."""
    parts = list(gradients.values())
    if kind == "int8":
        message = torch.cat([part.flatten() for part in parts])
    else:
        message = torch.cat([(part.flatten() * replicas).to(FORMATS[kind]) for part in parts]).div_(replicas)
    yield message
    for part, value in zip(parts, message.split([part.numel() for part in parts]), strict=True):
        part.copy_(value.view_as(part))
