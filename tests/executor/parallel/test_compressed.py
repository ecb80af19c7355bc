"""Replicas that sum gradients in sixteen bits do what torch's communication hooks of DDP do, to the last bit."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.model.transformer import build_model
from executor.parallel.compressed import Compressor
from executor.parallel.weights import initialize
from executor.training.optimizer import learning_rate
from executor.validation.expected_counts import compare_counts
from executor.validation.fake_rank import RankTask
from executor.validation.reference import ReferenceJob, _update_of, batch_of, run_layout
from tests.counts import cases_of_run
from tests.executor.conftest import TINY
from tests.executor.parallel.test_parity import SETTINGS

HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
TIED = replace(TINY, tie_word_embeddings=True)


def case_of(kind: str | None, *, tied: bool = False, ranks: int = 2) -> ReferenceJob:
    """Two microbatches a rank, three steps."""
    layout = ParallelLayout(dp=ranks, zero_stage=0)
    return ReferenceJob(
        spec=TIED if tied else TINY, layout=layout, num_microbatches=2, steps=3, compression=kind
    )


def _by_ddp(rank: int, case: ReferenceJob) -> tuple[list[float], dict[str, object]]:
    """The same training by torch's own DDP with its hook: losses of this rank's share, gradients of the first step."""
    model = build_model(case.spec)
    initialize(model, None, seed=case.seed, device=torch.device("cpu"))
    wrapped = DistributedDataParallel(model)
    hook = HOOKS[case.compression or ""]
    wrapped.register_comm_hook(
        None, lambda _, bucket: hook(None, bucket)
    )  # gloo sums bf16 too, torch asks for NCCL
    update = _update_of(model, case, SETTINGS)
    losses, gradients = list[float](), dict[str, object]()
    for step in range(case.steps):
        tokens, targets = (part.chunk(case.layout.dp)[rank] for part in batch_of(case, step))
        model.zero_grad()
        share = 0.0
        for place in range(case.num_microbatches):
            last = place == case.num_microbatches - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                logits = wrapped(tokens[place : place + 1])
                loss = functional.cross_entropy(logits[0], targets[place], reduction="sum") / tokens.numel()
                loss.backward()
            share += float(loss.detach()) / case.layout.dp
        losses.append(share)
        gradients = gradients or {name: p.grad.clone().numpy() for name, p in model.named_parameters()}
        update(learning_rate(SETTINGS, step))
    return losses, gradients


class _Given(torch.nn.Module):
    """A model whose gradients are what it is given."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        """A loss whose gradient of each parameter is that one."""
        return torch.stack([(p * gradients[name]).sum() for name, p in self.model.named_parameters()]).sum()


def _summed(rank: int, kind: str, tied: bool) -> dict[str, bool]:
    """Whether the sums of given gradients, over many decades, are those of DDP's hook to the last bit."""
    model = build_model(TIED if tied else TINY)
    initialize(model, None, seed=0, device=torch.device("cpu"))
    wrapped, hook = DistributedDataParallel(_Given(model)), HOOKS[kind]
    wrapped.register_comm_hook(None, lambda _, bucket: hook(None, bucket))
    generator = torch.Generator().manual_seed(rank)
    given = {
        name: torch.randn(p.shape, generator=generator)
        * 10 ** torch.empty(p.shape).uniform_(-7, 1, generator=generator)
        for name, p in model.named_parameters()
    }
    wrapped(given).backward()
    theirs = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = given[name] / dist.get_world_size()  # our losses are shares of one mean
    Compressor.of(kind).sum([model], dist.group.WORLD)
    return {name: torch.equal(p.grad, theirs[name]) for name, p in model.named_parameters()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", HOOKS)
def test_sums_are_those_of_torchs_hook(kind: str, tied: bool) -> None:
    """To the last bit, also of what the format holds as a subnormal number, or not at all."""
    for equal in run_ranks(_summed, 2, kind, tied):
        assert [name for name, same in equal.items() if not same] == []


@pytest.mark.parametrize("kind", cases_of_run(HOOKS, ["fp16"]))
def test_training_is_that_of_ddp(kind: str) -> None:
    """Losses of three steps, and nearly all gradients to the last bit: what is summed differs by fp32's rounding."""
    case = case_of(kind)
    (losses, gradients), (others, _) = run_ranks(_by_ddp, 2, case)
    found, whole = run_layout(case, SETTINGS), run_layout(case_of(None), SETTINGS)
    assert found.losses == pytest.approx([sum(pair) for pair in zip(losses, others, strict=True)], rel=1e-6)
    assert found.gradients.keys() == gradients.keys()
    same = torch.cat([(found.gradients[n] == torch.as_tensor(g)).flatten() for n, g in gradients.items()])
    narrow = torch.cat([(found.gradients[n] == whole.gradients[n]).flatten() for n in gradients])
    assert float(same.float().mean()) > 0.99
    assert float(narrow.float().mean()) < 0.5


@pytest.mark.parametrize("kind", cases_of_run(HOOKS, ["bf16"]))
def test_four_replicas_differ_in_the_order_of_sums_alone(kind: str) -> None:
    """Two bits of the largest gradient of a matrix, as rings that start elsewhere add in another order."""
    case, last = case_of(kind, ranks=4), {"fp16": 2.0**-11, "bf16": 2.0**-8}
    found, gradients = run_layout(case, SETTINGS), run_ranks(_by_ddp, 4, case)[0][1]
    for name, gradient in gradients.items():
        true = torch.as_tensor(gradient)
        assert float((found.gradients[name] - true).abs().max()) <= 4 * last[kind] * float(
            true.abs().max()
        ), name


@pytest.mark.parametrize("kind", [*HOOKS, None])
@pytest.mark.parametrize("spec", [TINY, TIED], ids=["own head", "tied"])
def test_what_is_sent_is_what_the_cost_model_says(kind: str | None, spec: object) -> None:
    """A message a unit, of two bytes a gradient."""
    task = RankTask(
        spec=spec, layout=ParallelLayout(dp=4, zero_stage=0), sequence_length=16, num_microbatches=2,
        layers_of_stage=(4,), recompute_of_stage=(0,), stage=0, precision="bf16", compression=kind,
    )  # fmt: skip
    terms = compare_counts(task)
    assert [term for term in terms if not term.equal] == []
    (sent,) = [term for term in terms if term.name.endswith("all_reduce message bytes")]
    (messages,) = [term for term in terms if term.name.endswith("all_reduce messages")]
    parameters = sum(term.measured for term in terms if term.name.endswith(" parameters"))
    assert sent.measured == parameters * (2 if kind else 4)
    assert messages.measured == (5 if spec is TIED else 6)
