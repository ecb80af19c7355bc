"""Attention within packed documents: each computes what it would alone, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.cli import run
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from executor.model.attention.documents import Documents, document_lengths
from executor.model.transformer import CausalLM, build_model
from executor.parallel.weights import initialize
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.conftest import TINY, make_plan
from tests.executor.parallel.test_parity import DENSE, GEMMA, GPT_OSS, MLA, TOLERANCE, layout
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import losses, run_here, settings_in

END = 7


def built(spec: ModelSpec) -> CausalLM:
    model = build_model(spec)
    initialize(model, None, seed=3, device=torch.device("cpu"))
    return model


@pytest.mark.parametrize("spec", [DENSE, MLA, GPT_OSS, GEMMA], ids=lambda spec: spec.name)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_document_has_the_logits_and_gradients_it_has_alone(spec: ModelSpec, recompute: bool) -> None:
    """Two sequences of unlike documents; rotary attention sees distances, so positions may go on."""
    model = built(spec)
    for layer in model.model.layers.values():
        layer.recompute = recompute
    documents: Documents = ((5, 1, 10), (16,))
    tokens = torch.randint(0, spec.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    towards = torch.randn(2, 16, spec.vocab_size, generator=torch.Generator().manual_seed(1))
    packed = model(tokens, documents)
    (packed * towards).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, lengths in enumerate(documents):
        start = 0
        for length in lengths:
            part = slice(start, start + length)
            alone = model(tokens[row : row + 1, part])
            torch.testing.assert_close(packed[row : row + 1, part], alone, rtol=1e-4, atol=1e-5)
            (alone * towards[row : row + 1, part]).sum().backward()
            start += length
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4)


def test_lengths_are_those_of_a_walk_over_the_tokens() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens = rng.integers(0, 3, rng.integers(1, 20))
        walked, length = [], 0
        for token in tokens:
            length += 1
            if token == 0:
                walked.append(length)
                length = 0
        assert document_lengths(tokens, 0) == tuple(walked + [length] * (length > 0))


LAYOUTS = {
    "tp2-pp2": layout(tp=2, pp=2),
    "pp2": layout(pp=2),
    "cp2-ring": layout(cp=2),
    "cp2-ulysses": layout(cp=2, cp_kind="ulysses"),
    "dp2-zero3-recomputed": layout(dp=2, zero_stage=3, recompute="full"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens among which every fifth or so ends a document."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, TINY.vocab_size, 2000)
    tokens[rng.random(2000) < 0.2] = END
    path = tmp_path_factory.mktemp("data") / "tokens.npy"
    np.save(path, tokens)
    return path


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one process."""
    return _losses(ParallelLayout(), tmp_path_factory.mktemp("whole"), data)


def _losses(case: ParallelLayout, folder: Path, data: Path, end: int | None = END) -> dict[int, float]:
    plan = make_plan(case, spec=replace(TINY, num_layers=2))
    run_here(settings_in(folder, steps=3, data=str(data), document_end=end), plan)
    return losses(folder)


@pytest.mark.parametrize("name", cases_of_run(LAYOUTS, ("tp2-pp2", "cp2-ulysses")))
def test_every_layout_stops_at_the_same_places(
    name: str, data: Path, whole: dict[int, float], tmp_path: Path
) -> None:
    assert _losses(LAYOUTS[name], tmp_path, data) == pytest.approx(whole, rel=TOLERANCE)


def test_attention_that_goes_on_has_other_losses(data: Path, whole: dict[int, float], tmp_path: Path) -> None:
    across = _losses(ParallelLayout(), tmp_path, data, end=None)
    assert all(abs(across[step] - whole[step]) > 10 * TOLERANCE * whole[step] for step in whole)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--document-end", "999999"], "vocab_size is"), (["--document-end", "3", "--compile"], "--compile")],
)
def test_what_cannot_be_done_is_refused(
    words: list[str],
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = estimated_plan_of(ParallelLayout())
    assert run([*run_words(tmp_path, plan, tmp_path / "run"), "--steps", "1", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert [one.split(":")[0] for one in errors.splitlines()][-3:] == ["error", "cause", "help"]
