"""The rank that a GPU plays computes with drawn values: here on a CPU, where only that can be seen."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from executor.model.transformer import build_model
from executor.parallel.weights import initialize
from executor.torch_internals.quiet import quiet_known_warnings
from executor.validation.fake_rank import RankTask, fake_group
from executor.validation.layer_times import LayerTimes
from executor.validation.one_rank import KERNELS, drawn_rank, longest_kernels, measure_rank
from tests.executor.conftest import TINY


@pytest.mark.parametrize(
    "layout", [ParallelLayout(dp=4, zero_stage=3), ParallelLayout(tp=2, sequence_parallel=True)]
)
def test_weights_tokens_and_gradients_are_no_zeros(layout: ParallelLayout) -> None:
    """Matrices are N(0, 0.02²) as in training, rows of tokens differ, and every matrix has a gradient."""
    task = RankTask(
        spec=TINY, layout=layout, sequence_length=16, num_microbatches=2, layers_of_stage=(4,), recompute_of_stage=(0,),
        stage=0, precision="fp32",
    )  # fmt: skip
    with fake_group(layout.num_gpus, 0), warnings.catch_warnings():
        quiet_known_warnings()
        rank = drawn_rank(task, torch.device("cpu"))
        embedded = list[torch.Tensor]()
        stage = rank.pipeline.stages[0].module
        stage.model.embed_tokens.register_forward_hook(lambda _m, _i, rows: embedded.append(rows.detach()))
        rank.run_microbatches()
        for name, parameter in stage.named_parameters():
            part = getattr(parameter, "_local_tensor", parameter)
            grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
            if part.ndim == 2:
                assert float(part.std()) == pytest.approx(0.02, rel=0.25), name
                assert float(grad.abs().max()) > 0, name
        assert len(embedded) == 2
        assert all(float(rows.std(dim=-2).min()) > 0 for rows in embedded)


MOE = replace(
    TINY, num_experts=4, num_experts_per_token=2, moe_intermediate_size=32, num_dense_layers=1, num_layers=3
)

EVERY = 10**6


@pytest.mark.clock
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (TINY, ParallelLayout(dp=4, zero_stage=3)),
        (TINY, ParallelLayout(dp=2, zero_stage=1, recompute="full")),
        (TINY, ParallelLayout(tp=2, sequence_parallel=True)),
        (MOE, ParallelLayout(dp=2, ep=2)),
    ],
)
def test_a_rank_is_measured_by_its_layers(spec: ModelSpec, layout: ParallelLayout) -> None:
    """The whole way of a GPU's rank on a CPU: layers lie within the chunks that hold them, and have both passes."""
    task = RankTask(
        spec=spec,
        layout=layout,
        sequence_length=16,
        num_microbatches=2,
        layers_of_stage=(spec.num_layers,),
        recompute_of_stage=(spec.num_layers * (layout.recompute == "full"),),
        stage=0,
        precision="fp32",
    )
    found = measure_rank(task, torch.device("cpu"), most_kernels=EVERY)
    watched = spec.num_layers - spec.num_dense_layers
    assert 0 < watched * found.layer_forward_s <= 2 * found.forward_s
    assert 0 < watched * found.layer_backward_s <= 2 * found.backward_s
    assert (found.gpu, found.peak_bytes) == ("cpu", 0.0)
    names, seconds = zip(*found.kernels, strict=True)
    assert "aten::mm" in names  # somewhere: a loaded machine interrupts any of them for longer than it takes
    assert list(seconds) == sorted(seconds, reverse=True)
    assert min(seconds[:KERNELS]) > 0


def test_what_takes_longest_is_named_and_no_more() -> None:
    """As many as were asked for, a large product before small sums."""
    large, small = torch.ones(2048, 2048), torch.ones(4)

    def run() -> None:
        small.add(small).sum()
        large.mm(large)

    ((name, seconds),) = longest_kernels(run, torch.device("cpu"), 1)
    assert (name, seconds > 0) == ("aten::mm", True)


class Clocked(LayerTimes):
    """Counts its readings in place of a clock."""

    def _now(self) -> float:
        self.read = getattr(self, "read", -1) + 1
        return float(self.read)


def test_passes_are_those_of_each_layer() -> None:
    """Forward before backward, last layer first, each end directly after its beginning."""
    model = build_model(TINY)
    initialize(model, None, seed=0, device=torch.device("cpu"))
    times = Clocked(torch.device("cpu"))
    with times.watching(model):
        model(torch.arange(8).view(1, 8)).sum().backward()
    assert times.forward == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0), (6.0, 7.0)]
    starts_and_ends = [time for span in times.backward for time in span]
    assert starts_and_ends[0] == 8.0
    assert len(times.backward) == 4
    assert all(end > start for start, end in times.backward)
