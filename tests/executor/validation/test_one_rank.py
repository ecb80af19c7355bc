"""The rank that a GPU plays computes with drawn values: here on a CPU, where only that can be seen."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor import torch_internals
from executor.validation.fake_rank import RankTask, fake_group
from executor.validation.one_rank import drawn_rank
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
        torch_internals.quiet_known_warnings()
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
