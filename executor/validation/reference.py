"""What one process computes: the truth that every layout is compared with, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.updates.adapters import Adapter
from executor.bench.local_ranks import run_ranks
from executor.comm.mesh import build_meshes
from executor.comm.tensor_parallel import token_losses
from executor.model.low_rank import add_adapter
from executor.model.moe import balance_routers
from executor.model.products.formats import EightBits, multiply_in
from executor.model.transformer import CausalLM, build_model
from executor.parallel.compressed import Compressor, units
from executor.parallel.factors import seeds
from executor.parallel.narrow import added, sum_rounded
from executor.parallel.pipeline import build_pipeline, run_step
from executor.parallel.weights import assemble, initialize, parts
from executor.training.batches import mean_loss, my_microbatches
from executor.training.gradients import finish_gradients
from executor.training.muon import blended, is_matrix, newton_schulz, sharded_optimizer, step_of
from executor.training.optimizer import OptimizerSettings, learning_rate

CPU = torch.device("cpu")
FLOOR = (
    1e-4  # of the whole gradient: softmax makes some gradients vanish (a key bias shifts all scores alike)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceJob:
    """A small training job to compare layouts on."""

    spec: ModelSpec
    layout: ParallelLayout
    sequence_length: int = 16
    num_microbatches: int = 4
    layers_of_stage: tuple[int, ...] | None = None
    recompute_of_stage: tuple[int, ...] | None = None
    steps: int = 1
    seed: int = 0
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    eight_bits: EightBits | None = None
    overlaps: bool = False
    compression: str | None = None

    @property
    def global_batch_size(self) -> int:
        """Sequences of a step."""
        return self.num_microbatches * self.layout.microbatch_size * self.layout.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Losses of every step and gradients of the first."""

    losses: tuple[float, ...]
    gradients: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Largest relative differences of two outcomes; `worst` names the gradient that differs most.

    `together` is that of all gradients as one vector.
    """

    loss: float
    gradient: float
    worst: str
    together: float


def batch_of(case: ReferenceJob, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of a step, (global batch, S) each, the same for every layout."""
    generator = torch.Generator().manual_seed(1000 + step)
    shape = (case.global_batch_size, case.sequence_length + 1)
    drawn = torch.randint(0, case.spec.vocab_size, shape, generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def run_reference(case: ReferenceJob, settings: OptimizerSettings) -> Outcome:
    """Train the whole model in this process."""
    model = build_model(case.spec)
    if case.adapter is not None:
        add_adapter(model, case.adapter)
    if case.eight_bits is not None:
        multiply_in(model.model.layers, case.eight_bits)
    initialize(model, None, seed=case.seed, device=CPU)
    balance_routers(
        model,
        case.spec,
        coefficient=None,
        sequence_length=case.sequence_length,
        global_batch_size=case.global_batch_size,
    )
    compressors = (
        [] if case.compression is None else [Compressor.of(case.compression) for _ in range(case.layout.dp)]
    )
    update = _update_of(model, case, settings)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(case.steps):
        tokens, targets = batch_of(case, step)
        model.zero_grad()
        if compressors:
            loss = _summed_compressed(model, case, compressors, tokens, targets)
        else:
            loss = token_losses(model(tokens), targets, None, case.spec.vocab_size).mean()
            loss.backward()
        gradients = gradients or {
            n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
        losses.append(loss.item())
        update(learning_rate(settings, step))
    return Outcome(losses=tuple(losses), gradients=gradients)


def _summed_compressed(
    model: CausalLM,
    case: ReferenceJob,
    compressors: Sequence[Compressor],
    tokens: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Leave the sum of what replicas send, each one's part of the batch after the other; gives the loss."""
    losses, sent = [], list[dict[str, torch.Tensor]]()
    for mine, wanted in zip(tokens.chunk(case.layout.dp), targets.chunk(case.layout.dp), strict=True):
        model.zero_grad()
        loss = token_losses(model(mine), wanted, None, case.spec.vocab_size).sum() / tokens.numel()
        loss.backward()
        losses.append(loss.detach())
        sent.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    replicas = len(compressors)
    for (unit, parameters), seed in zip(units(model).items(), seeds(), strict=False):
        of_unit = [{name: each[name] for name in parameters if name in each} for each in sent]
        pairs = zip(compressors, of_unit, strict=True)
        for messages in zip(
            *(each.messages(unit, mine, seed, replicas) for each, mine in pairs), strict=True
        ):
            total = sum_rounded(messages) if compressors[0].how.kind == "int8" else added(messages)
            for message in messages:
                message.copy_(total)
    for name, parameter in model.named_parameters():
        parameter.grad = sent[0].get(name)
    return torch.stack(losses).sum()


def _update_of(model: CausalLM, case: ReferenceJob, settings: OptimizerSettings) -> Callable[[float], None]:
    """What updates the whole model at a learning rate."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = {
        parameter: torch.zeros_like(parameter)
        for name, parameter in named.items()
        if case.optimizer == "muon" and is_matrix(name, parameter.dim())
    }
    rest = [parameter for parameter in named.values() if parameter not in matrices]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW([g for g in groups if g["params"]], betas=settings.betas, eps=settings.epsilon)

    def update(rate: float) -> None:
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        with torch.no_grad():
            for matrix, momentum in matrices.items():
                if matrix.grad is not None:
                    direction = newton_schulz(blended(matrix.grad, momentum), settings.products)
                    matrix.mul_(1 - rate * settings.weight_decay)
                    matrix.sub_(direction, alpha=step_of(matrix.shape, rate))

    return update


def run_layout(
    case: ReferenceJob,
    settings: OptimizerSettings,
    timeout_s: float = 120.0,
    alive: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train the same model on forked ranks of this machine under the case's layout."""
    ranks = run_ranks(_rank, case.layout.num_gpus, case, settings, timeout_s=timeout_s, alive=alive)
    losses = tuple(sum(rank[0][step] for rank in ranks) / case.layout.tp for step in range(case.steps))
    return Outcome(losses=losses, gradients=assemble([part for rank in ranks for part in rank[1]]))


def _rank(
    _rank: int, case: ReferenceJob, settings: OptimizerSettings
) -> tuple[list[float], list[dict[str, object]]]:
    """One rank's share: its losses, and its parts of the first step's gradients, per stage."""
    layout = case.layout
    meshes = build_meshes(layout, "cpu", experts=case.spec.is_moe)
    pipeline = build_pipeline(
        case.spec,
        layout,
        meshes,
        sequence_length=case.sequence_length,
        num_microbatches=case.num_microbatches,
        layers_of_stage=case.layers_of_stage,
        recompute_of_stage=case.recompute_of_stage,
        precision="fp32",
        eight_bits=case.eight_bits,
        overlaps=case.overlaps,
        adapter=case.adapter,
        compression=case.compression,
        device=CPU,
    )
    for stage in pipeline.stages:
        initialize(stage.module, meshes, seed=case.seed, device=CPU)
    optimizer = sharded_optimizer(case.optimizer, pipeline, settings)
    losses: list[float] = []
    gradients: list[dict[str, object]] = []
    for step in range(case.steps):
        tokens, targets = my_microbatches(pipeline, *batch_of(case, step))
        loss = run_step(
            pipeline, tokens, targets, mean_loss(pipeline, case.global_batch_size * case.sequence_length)
        )
        finish_gradients(pipeline)
        losses.append(loss.item())
        gradients = gradients or [dict(parts(s.module, meshes, gradients=True)) for s in pipeline.stages]
        optimizer.step(learning_rate(settings, step))
    return losses, gradients


def outcome_difference(reference: Outcome, outcome: Outcome) -> Difference:
    """Relative difference of losses, and of each gradient in Euclidean norm; NaN counts as infinite."""
    pairs = zip(outcome.losses, reference.losses, strict=True)
    loss = max(abs(mine - true) / abs(true) for mine, true in pairs)
    floor = FLOOR * float(torch.stack([true.norm() for true in reference.gradients.values()]).norm())
    gaps = {
        name: _gap(outcome.gradients.get(name), true, floor) for name, true in reference.gradients.items()
    }
    worst = max(gaps, key=lambda name: gaps[name])
    together = _gap(_joined(outcome, reference), _joined(reference, reference), 0.0)
    return Difference(loss=loss, gradient=gaps[worst], worst=worst, together=together)


def _joined(outcome: Outcome, reference: Outcome) -> torch.Tensor | None:
    """All gradients as one vector, by the names of another outcome; None where one is missing."""
    if not reference.gradients.keys() <= outcome.gradients.keys():
        return None
    return torch.cat([outcome.gradients[name].flatten() for name in reference.gradients])


def _gap(mine: torch.Tensor | None, true: torch.Tensor, floor: float) -> float:
    """‖mine − true‖ / max(‖true‖, floor), infinite when something is missing."""
    if mine is None or not bool(torch.isfinite(mine).all()):
        return float("inf")
    return float((mine - true).norm()) / max(float(true.norm()), floor)
