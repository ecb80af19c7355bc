"""Adapters of the executor: what PEFT computes beside the same weights, and the same under every layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from costmodel.case import Workload

pytest.importorskip("torch")

import torch

from costmodel.campaign.checkpoint import checkpoint_bytes
from costmodel.job import TrainingJob
from costmodel.stack import stack
from costmodel.updates.adapters import Adapter, parse_adapter
from executor.model.low_rank import add_adapter, is_added
from executor.model.transformer import build_model
from executor.parallel import weights
from executor.parallel.weights import initialize
from executor.validation.reference import batch_of, outcome_difference, run_layout, run_reference
from tests.counts import cases_of_run
from tests.executor.parallel.test_parity import CASES, DENSE, SETTINGS, TOLERANCE, shallow
from topology.base.errors import InputError

CPU = torch.device("cpu")
LORA = parse_adapter("lora:r=4,alpha=8")
LAYOUTS = (
    "tp2-without-sequence-parallel", "tp4", "dp3-zero3", "cp2-ring", "zb-h1-tp2", "dualpipev", "recompute-full",
    "tp2-pp2-dp2",
)  # fmt: skip


@pytest.fixture
def random_second_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what usually starts at zero, so that the first matrices have gradients in the first step."""
    monkeypatch.setattr(weights, "starts_at_zero", lambda _: False)


@pytest.mark.usefixtures("random_second_matrices")
@pytest.mark.parametrize("name", cases_of_run(LAYOUTS, ["tp2-pp2-dp2", "tp4", "zb-h1-tp2", "recompute-full"]))
def test_every_layout_trains_what_one_process_trains(name: str) -> None:
    """Losses of three steps, and the gradients of all matrices of the adapter and of nothing else."""
    case = dataclasses.replace(shallow(CASES[name]), adapter=LORA, steps=3)
    truth, found = run_reference(case, SETTINGS), run_layout(case, SETTINGS)
    assert set(truth.gradients) == {gradient for gradient in truth.gradients if is_added(gradient)}
    assert set(found.gradients) == set(truth.gradients)
    assert min(float(gradient.norm()) for gradient in truth.gradients.values()) > 0
    difference = outcome_difference(truth, found)
    assert difference.loss < TOLERANCE
    assert difference.gradient < TOLERANCE, difference.worst


@pytest.mark.usefixtures("random_second_matrices")
def test_latent_attention_is_adapted_over_tensor_parallel_ranks() -> None:
    """Low-rank projections of MLA, split and whole ones."""
    case = dataclasses.replace(
        shallow(CASES["mla-tp2"]), adapter=parse_adapter("lora:r=2,targets=attention"), steps=2
    )
    difference = outcome_difference(run_reference(case, SETTINGS), run_layout(case, SETTINGS))
    assert difference.loss < TOLERANCE
    assert difference.gradient < TOLERANCE, difference.worst


@pytest.mark.parametrize(
    ("words", "parameters"),
    [
        ("lora:r=4", 4 * 4 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 64))),
        ("lora:r=8,targets=attention", 4 * 8 * ((32 + 32) + 2 * (32 + 16) + (32 + 32))),
    ],
)
def test_only_the_matrices_beside_the_targets_are_trained(words: str, parameters: int) -> None:
    """r·(inputs + outputs) of every projection of the target blocks, counted by hand; a model begins as it was."""
    adapter = parse_adapter(words)
    plain, adapted = build_model(DENSE), add_adapter(build_model(DENSE), adapter)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == parameters
    for model in (plain, adapted):
        initialize(model, None, seed=0, device=CPU)
    tokens = torch.arange(32).view(2, 16) % DENSE.vocab_size
    assert torch.equal(plain(tokens), adapted(tokens))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_peft_computes_the_same() -> None:
    """A Llama of transformers under PEFT: losses and every gradient of three steps, fp32."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    case = dataclasses.replace(CASES["single"], adapter=LORA, steps=1)
    ours = add_adapter(build_model(DENSE), LORA)
    initialize(ours, None, seed=1, device=CPU)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.endswith("lora_B.weight"):
                parameter.normal_(0, 0.1, generator=generator)
    config = transformers.LlamaConfig(
        vocab_size=DENSE.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        rms_norm_eps=DENSE.norm_epsilon, rope_theta=DENSE.rotary.theta, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config)
    asked = peft.LoraConfig(
        r=LORA.rank, lora_alpha=8, lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    theirs = peft.get_peft_model(theirs, asked)
    named = dict(theirs.named_parameters())
    pairs = {name: named[_peft_name(name, named)] for name, _ in ours.named_parameters()}
    assert len(pairs) == len(named)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            pairs[name].copy_(parameter)
    optimizers = [
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
        for model in (ours, theirs)
    ]
    for step in range(3):
        tokens, targets = batch_of(case, step)
        losses = [
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            for logits in (ours(tokens), theirs(tokens).logits)
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
        for name, parameter in ours.named_parameters():
            assert (parameter.grad is None) == (pairs[name].grad is None), name
            if parameter.grad is not None:
                gap = (parameter.grad - pairs[name].grad).norm() / pairs[name].grad.norm()
                assert float(gap) < TOLERANCE, name
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("words", ["lora:r=4", "lora:r=8,targets=attention", "dora:r=4,targets=mlp"])
def test_a_checkpoint_counts_what_peft_saves(words: str, tmp_path: Path) -> None:
    """Every number of PEFT's file of adapters, and nothing else; the file is those and their names."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    from safetensors.torch import load_file

    adapter = parse_adapter(words)
    named = {
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    config = transformers.LlamaConfig(
        vocab_size=DENSE.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    asked = peft.LoraConfig(
        r=adapter.rank,
        use_dora=adapter.kind == "dora",
        target_modules=[name for target in adapter.targets for name in named[target]],
    )
    theirs = peft.get_peft_model(transformers.LlamaForCausalLM(config), asked)
    theirs.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    job = TrainingJob(sequence_length=16, global_batch_size=4, adapter=adapter)
    ours = checkpoint_bytes(Workload(model=DENSE, job=job, stack=stack("pytorch")))
    assert ours == 14 * sum(tensor.numel() for tensor in stored.values())


def _peft_name(name: str, named: dict[str, torch.nn.Parameter]) -> str:
    """The name of a parameter under PEFT: adapters are called default, what they stand beside base_layer."""
    for theirs in (
        f"base_model.model.{name}",
        f"base_model.model.{name}".replace(".weight", ".base_layer.weight"),
        f"base_model.model.{name}".replace(".weight", ".default.weight"),
    ):
        if theirs in named:
            return theirs
    raise AssertionError(name)


@pytest.mark.parametrize("words", ["lora:r=4,alpha=0", "lora:r=4,alpha=x", "lora:r=4,alpha=inf"])
def test_factors_that_are_none_are_refused(words: str) -> None:
    """Three lines; without a word the factor is one."""
    with pytest.raises(InputError):
        parse_adapter(words)
    assert Adapter(rank=4).alpha_or_rank == 4
    assert parse_adapter(LORA.words) == LORA
