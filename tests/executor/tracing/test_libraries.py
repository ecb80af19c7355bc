"""Models of installed libraries by name, with random weights and without a network."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import meshplan
from app.cli import run
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import ModelSpec
from costmodel.ops.module_spec import spec_of_module
from executor.tracing.process import traced_by_process
from tests.cli import commands

LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "bfloat16",
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_type_of_transformers_has_the_published_parameters() -> None:
    """BERT-base: 109,482,240 with its pooler (the configuration class has its sizes)."""
    assert traced_by_process("transformers:bert", "").parameters == 109_482_240


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, ModelSpec]:
    """Llama-3.1-8B traced with its loss, and as the catalog describes its config.json."""
    file = tmp_path_factory.mktemp("llama") / "config.json"
    file.write_text(json.dumps(LLAMA_8B), encoding="utf-8")
    return spec_of_module(traced_by_process(f"transformers:{file}", "1x4096:long")), meshplan.model(str(file))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("stack", ["torchtitan", "megatron-core", "pytorch", "trl"])
@pytest.mark.parametrize("gpu", ["b200-sxm", "h100-sxm"])
def test_a_traced_llama_costs_what_the_described_one_does(
    llamas: tuple[ModelSpec, ModelSpec], gpu: str, stack: str, recompute: str
) -> None:
    """Step and peak within 3 % on eight GPUs, kept or recomputed, where kernels are fused and where not."""
    traced, described = llamas
    assert traced.module is not None
    assert traced.module.parameters == parameter_count(described)
    pins = {
        "layout.dp": 8,
        "layout.zero_stage": 2,
        "layout.recompute": recompute,
        "layout.microbatch_size": 1,
    }
    words = {"gpus": 8, "gpu": gpu, "batch": 64, "stack": stack, "engine": "any", "set": pins}
    first = meshplan.estimate(traced, seq=1, **words).estimate
    second = meshplan.estimate(described, seq=4096, **words).estimate
    assert first.step_time_s == pytest.approx(second.step_time_s, rel=0.03)
    assert first.peak_memory_bytes == pytest.approx(second.peak_memory_bytes, rel=0.03)


def test_a_traced_llama_has_the_plan_of_the_described_one(llamas: tuple[ModelSpec, ModelSpec]) -> None:
    """The search takes the same layout where neither may split a sample, and memory does not decide."""
    traced, described = llamas
    pins = {"layout.tp": 1, "layout.cp": 1}
    words = {"gpus": 16, "gpu": "b300-sxm", "batch": 64, "stack": "torchtitan", "engine": "any", "set": pins}
    first, second = (meshplan.plan(one, seq=seq, **words) for one, seq in ((traced, 1), (described, 4096)))
    assert (first.layout.pp, first.layout.dp, first.layout.zero_stage, first.layout.microbatch_size) == (
        second.layout.pp, second.layout.dp, second.layout.zero_stage, second.layout.microbatch_size,
    )  # fmt: skip
    assert first.estimate.step_time_s == pytest.approx(second.estimate.step_time_s, rel=0.03)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("transformers:no-such-model", "has no configuration of"),
        ("diffusers:unet/config.json", "diffusers is not installed"),
        ("transformers:wav2vec2", "add --input"),
    ],
)
def test_what_is_not_here_is_refused_in_three_lines(model: str, says: str) -> None:
    """An unknown name, a library that is missing, inputs that nobody can say."""
    if model.startswith("diffusers"):
        try:
            import diffusers  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("diffusers is installed")
    answered = commands.plan("--model", model, "--gpus", "4")
    assert answered.returncode == 2
    lines = answered.stderr.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
    assert says in "\n".join(lines)


def test_tokens_given_as_numbers_are_said_to_be_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """A lookup by numbers names the way to write tokens."""
    assert run(["--model", "transformers:bert", "--gpus", "4", "--input", "8x128"]) == 2
    assert "--input 8x128:long" in capsys.readouterr().err
