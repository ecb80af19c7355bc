"""Gradients sent as factors are torch's PowerSGD to the last bit; nothing is lost when replicas change in number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, with_layers
from costmodel.updates.compression import parse_compression
from executor.bench.local_ranks import run_ranks
from executor.model.transformer import CausalLM, build_model
from executor.parallel import compressed
from executor.parallel.compressed import Compressor, ReplicaErrors, units
from executor.parallel.factors import goes_as_factors, orthogonalize, seeds
from executor.parallel.narrow import added
from executor.parallel.weights import initialize
from executor.validation.expected_counts import compare_counts
from executor.validation.fake_rank import RankTask
from tests.counts import cases_of_run
from tests.executor.conftest import TINY

RANKS = (1, 2, 4)
STEPS = 4
TIED = replace(TINY, tie_word_embeddings=True)


def tiny() -> CausalLM:
    """A model with values."""
    built = build_model(TINY)
    initialize(built, None, seed=0, device=torch.device("cpu"))
    return built


def drawn(built: CausalLM, replica: int, step: int) -> dict[str, torch.Tensor]:
    """Gradients of a replica's own mean, whose sizes decay as those of a training do."""
    generator = torch.Generator().manual_seed(100 * step + replica)
    found = {}
    for name, parameter in built.named_parameters():
        found[name] = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            found[name] = (
                found[name]
                * 0.8 ** torch.arange(parameter.shape[1])
                @ torch.randn(parameter.shape[1], parameter.shape[1], generator=generator)
            )
    return found


@dataclass
class Bucket:
    """One unit as torch's hook sees it."""

    flat: torch.Tensor
    parts: list[torch.Tensor]
    number: int
    last: bool

    def buffer(self) -> torch.Tensor:
        """All gradients."""
        return self.flat

    def gradients(self) -> list[torch.Tensor]:
        """Each of them, a view."""
        return self.parts

    def index(self) -> int:
        """Its number."""
        return self.number

    def is_last(self) -> bool:
        """Whether the step ends with it."""
        return self.last


def _beside_the_hook(replica: int, rank: int) -> list[str]:
    """What differs from torch's hook: gradients of every step, and errors after it."""
    built, ours = tiny(), Compressor.of(f"powersgd:{rank}")
    theirs = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    theirs.iter = 2  # its first two steps are whole, as DDP sorts its buckets then
    wrong, named = [], units(built)
    missed = torch.zeros(TINY.vocab_size * TINY.hidden_size)
    for step in range(STEPS):
        given = drawn(built, replica, step)
        for name, parameter in built.named_parameters():
            parameter.grad = given[name] / dist.get_world_size()
        ours.sum([built], dist.group.WORLD)
        for number, (unit, parameters) in enumerate(named.items()):
            flat = torch.cat([given[name].flatten() for name in parameters])
            if unit == "embedding":  # which the hook would factor: only that its mean is whole
                if step == 0:
                    theirs.rng.randint(1_000_000_000)
                flat += missed
                mean = flat.clone()
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
                missed, flat = flat - mean, mean
            else:
                parts = list(flat.split([given[name].numel() for name in parameters]))
                shaped = [part.view_as(given[name]) for part, name in zip(parts, parameters, strict=True)]
                bucket = Bucket(flat=flat, parts=shaped, number=number, last=number == len(named) - 1)
                powerSGD_hook.powerSGD_hook(theirs, bucket).wait()
                if not torch.equal(theirs.error_dict[number], ours.kept[unit].error):
                    wrong.append(f"step {step}: errors of {unit}")
            found = torch.cat([parameters[name].grad.flatten() for name in parameters])
            if not torch.equal(found, flat):
                wrong.append(f"step {step}: {unit} by {float((found - flat).abs().max())}")
    return wrong


@pytest.mark.parametrize("rank", RANKS)
def test_sums_and_what_they_miss_are_those_of_torchs_hook(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit over four steps: matrices chosen, first and warm factors, both orthogonalizations, errors.

    Ranks load torch with one thread, as `tests/conftest.py` says why.
    """
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert run_ranks(_beside_the_hook, 2, rank) == [[], []]


def test_which_parameters_go_as_factors() -> None:
    """Those of which they are smaller by more than two, as the hook says; no embedding, and no vector."""
    for shape in ((64, 32), (32, 32), (16, 8), (2, 300), (8, 8)):
        for rank in RANKS:
            hook = powerSGD_hook._should_compress(*shape, min(*shape, rank), 2)[0]
            assert goes_as_factors("model.layers.0.a.weight", torch.Size(shape), rank) == hook
    assert not goes_as_factors("model.embed_tokens.weight", torch.Size((256, 64)), 1)
    assert not goes_as_factors("model.norm.weight", torch.Size((64,)), 1)


@pytest.mark.parametrize("columns", RANKS)
def test_factors_are_orthonormal(columns: int) -> None:
    """A column of zeros, as of a gradient that is zero, stays one where columns are taken one by one."""
    found = torch.randn(1, 16, columns, generator=torch.Generator().manual_seed(0))
    orthogonalize(found)
    assert torch.allclose(found[0].T @ found[0], torch.eye(columns), atol=1e-6)
    nothing = torch.zeros(1, 16, columns)
    orthogonalize(nothing)
    assert bool(torch.isfinite(nothing).all())


# ── another number of replicas ────────────────────────────────────────────────────────────────────────────


def summed(built: CausalLM, compressors: Sequence[Compressor], step: int) -> dict[str, torch.Tensor]:
    """One step of replicas that are all here; gives the sum that each of them gets."""
    replicas = len(compressors)
    own = [drawn(built, replica, step) for replica in range(replicas)]
    given = [{name: part / replicas for name, part in each.items()} for each in own]
    for (unit, parameters), seed in zip(units(built).items(), seeds(), strict=False):
        of_unit = [{name: each[name] for name in parameters} for each in given]
        pairs = zip(compressors, of_unit, strict=True)
        for messages in zip(*(c.messages(unit, mine, seed, replicas) for c, mine in pairs), strict=True):
            total = added(messages)
            for message in messages:
                message.copy_(total)
    return given[0]


def saved_of(compressors: Sequence[Compressor], monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """What these replicas save."""
    found: dict[str, torch.Tensor] = {}
    for replica, compressor in enumerate(compressors):
        monkeypatch.setattr(compressed.dist, "get_rank", lambda _group, replica=replica: replica)
        found |= ReplicaErrors(compressor=compressor, models=[], group=None).state()
    return {name: value.clone() for name, value in found.items()}


def restored(
    built: CausalLM,
    saved: Mapping[str, torch.Tensor],
    replicas: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[Compressor], set[str]]:
    """So many replicas that have read it, and what they are told."""
    found, told = [Compressor.of(text) for _ in range(replicas)], set()

    def load(state: Mapping[str, torch.Tensor]) -> None:
        for name, value in state.items():
            value.copy_(saved[name])

    monkeypatch.setattr(compressed.dist, "get_world_size", lambda _group: replicas)
    sizes = {name: value.numel() for name, value in saved.items()}
    for replica, compressor in enumerate(found):
        monkeypatch.setattr(compressed.dist, "get_rank", lambda _group, replica=replica: replica)
        told.add(ReplicaErrors(compressor=compressor, models=[built], group=None).restore(sizes, load))
    return found, told


@pytest.mark.parametrize("after", [1, 3, 4])
def test_no_gradient_is_lost_or_counted_twice(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was summed, and the mean of what is still missed, is the sum of all gradients: before and after."""
    built, before = tiny(), [Compressor.of("powersgd:2") for _ in range(4)]
    true = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in built.named_parameters()}
    done = {name: torch.zeros_like(part) for name, part in true.items()}

    def run(compressors: Sequence[Compressor], step: int) -> None:
        for name in true:
            parts = [drawn(built, replica, step)[name] for replica in range(len(compressors))]
            true[name] += torch.stack(parts).double().mean(0)
        if len(compressors) > 1:
            sums = summed(built, compressors, step)
        else:
            sums = drawn(built, 0, step)
            for name, parameter in built.named_parameters():
                parameter.grad = sums[name]
            compressors[0].sum([built], None)  # `dist` says one replica
        for name in done:
            done[name] += sums[name].double()

    for step in range(3):
        run(before, step)
    now, told = restored(built, saved_of(before, monkeypatch), after, "powersgd:2", monkeypatch)
    averaged = f"what factors of gradients missed on 4 replicas is averaged for {after}"
    assert told == {"" if after == 4 else averaged}
    for step in range(3, 5):
        run(now, step)
    largest = max(float(part.abs().max()) for part in true.values())
    for unit, parameters in units(built).items():
        errors = [one.kept[unit].error for one in now if unit in one.kept]
        missing = torch.stack(errors).double().mean(0) if errors else torch.zeros(1)
        parts = (
            missing.split([p.numel() for p in parameters.values()]) if errors else [missing] * len(parameters)
        )
        for name, part in zip(parameters, parts, strict=True):
            rest = part.view_as(true[name]) if errors else 0.0
            assert float((done[name] + rest - true[name]).abs().max()) <= 2e-6 * largest, name
    if after == 1:
        assert now[0].kept == {}


def test_the_same_replicas_go_on_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of each, and the factors that all share."""
    built, through = tiny(), [Compressor.of("powersgd:4") for _ in range(2)]
    for step in range(2):
        summed(built, through, step)
    again, told = restored(built, saved_of(through, monkeypatch), 2, "powersgd:4", monkeypatch)
    assert told == {""}
    expected, found = summed(built, through, 2), summed(built, again, 2)
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_what_is_not_in_a_checkpoint_begins_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is told; of another rank the errors stay, and factors are drawn anew; other ways keep nothing."""
    built, before = tiny(), [Compressor.of("powersgd:4") for _ in range(2)]
    summed(built, before, 0)
    saved = saved_of(before, monkeypatch)
    none, told = restored(built, {}, 2, "powersgd:4", monkeypatch)
    assert told == {"what factors of gradients missed is not in the checkpoint: it begins at zero"}
    assert none[0].kept == {}
    other, told = restored(built, saved, 2, "powersgd:1", monkeypatch)
    assert told == {""}
    kept = other[1].kept["model.layers.0"]
    assert torch.equal(kept.error, saved["missed.1.model.layers.0"])
    assert kept.factors is None
    for text in ("bf16", "int8"):
        narrow, told = restored(built, saved, 2, text, monkeypatch)
        assert (told, narrow[0].kept) == ({""}, {})


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────────

SPECS: dict[str, ModelSpec] = {
    "own head": TINY,
    "tied": TIED,
    "learned positions": replace(TINY, learned_positions=16),
    "qwen3-0.6b": with_layers(model("qwen3-0.6b"), 2, 0),
    "llama-3.1-8b": with_layers(model("llama-3.1-8b"), 2, 0),
}


SENT = [(name, kind) for name in SPECS for kind in ("powersgd:2", "powersgd:4", "powersgd:64", "int8")]
FEW = [("own head", "powersgd:2"), ("tied", "int8"), ("llama-3.1-8b", "powersgd:4"), ("tied", "powersgd:64")]


@pytest.mark.parametrize(("name", "kind"), cases_of_run(SENT, [each for each in SENT if each not in FEW]))
def test_what_is_sent_is_what_the_cost_model_says(name: str, kind: str) -> None:
    """Messages and bytes of every unit, and the products of matrices with their factors: 6·r FLOP a value."""
    task = RankTask(
        spec=SPECS[name], layout=ParallelLayout(dp=4, zero_stage=0), sequence_length=16, num_microbatches=2,
        layers_of_stage=(SPECS[name].num_layers,), recompute_of_stage=(0,), stage=0, compression=kind,
    )  # fmt: skip
    terms = compare_counts(task)
    assert [term for term in terms if not term.equal] == []
    sent = {term.name: term.measured for term in terms if "replicate" in term.name}
    parameters = sum(term.measured for term in terms if term.name.endswith(" parameters"))
    if kind == "int8":
        gathered = sent["step step replicate all_gather message bytes"]
        assert gathered == sent["step step replicate all_to_all message bytes"]
        assert gathered == pytest.approx(
            parameters * (1 + 4 / 256), rel=0.2 if SPECS[name].vocab_size < 999 else 1e-4
        )
    else:
        fewer = sent["step step replicate all_reduce message bytes"] < parameters * 4
        factored = "step step gemm flop" in {term.name for term in terms}
        narrow = SPECS[name].hidden_size < 2 * parse_compression(kind).rank  # no matrix is worth it
        assert (fewer, factored) == (not narrow, not narrow)
