"""Models of installed libraries by name, with random weights and without a network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodel.case import Workload

pytest.importorskip("torch")
pytest.importorskip("transformers")

import meshplan
from app.cli import run
from costmodel.job import TrainingJob
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.models.traced import TracedBlock, TracedOp
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.module_spec import spec_of_module
from costmodel.ops.op import Op, ShardShape
from costmodel.stack import stack
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


def joined(model: ModelSpec) -> ModelSpec:
    """Products that read the same columns' input side by side, as described models have queries, keys, values."""
    assert model.module is not None

    def of_block(block: TracedBlock) -> TracedBlock:
        ops: list[TracedOp] = []
        for op in block.ops:
            last = ops[-1] if ops else None
            if last and (op.kind, op.cut, op.m, op.k) == (last.kind, last.cut, last.m, last.k) and op.n:
                output = last.output_bytes + op.output_bytes
                ops[-1] = replace(last, n=last.n + op.n, flop=last.flop + op.flop, output_bytes=output)
            else:
                ops.append(op)
        return replace(block, ops=tuple(ops))

    return replace(model, module=replace(model.module, kinds=tuple(map(of_block, model.module.kinds))))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("stack", ["torchtitan", "megatron-core", "pytorch", "trl"])
def test_a_traced_llama_is_split_as_the_described_one_is(
    llamas: tuple[ModelSpec, ModelSpec], stack: str, tp: int, sequence_parallel: bool
) -> None:
    """Step and peak within 3 % on tensor ranks too, both kinds of GPU, kept or recomputed."""
    traced, described = llamas
    assert traced.module is not None
    assert (traced.module.units, traced.module.tokens, traced.module.classes) == (8, 4096, 128256)
    for gpu in ("b200-sxm", "h100-sxm"):
        for recompute in ("none", "full"):
            pins = {
                "layout.tp": tp, "layout.dp": 8 // tp, "layout.zero_stage": 2, "layout.recompute": recompute,
                "layout.microbatch_size": 1, "layout.sequence_parallel": sequence_parallel,
            }  # fmt: skip
            words = {"gpus": 8, "gpu": gpu, "batch": 64, "stack": stack, "engine": "any", "set": pins}
            first = meshplan.estimate(joined(traced), seq=1, **words).estimate
            second = meshplan.estimate(described, seq=4096, **words).estimate
            assert first.step_time_s == pytest.approx(second.step_time_s, rel=0.03)
            assert first.peak_memory_bytes == pytest.approx(second.peak_memory_bytes, rel=0.03)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_tensor_rank_of_a_traced_llama_has_what_one_of_the_described_one_has(
    llamas: tuple[ModelSpec, ModelSpec], sequence_parallel: bool
) -> None:
    """Parameters, FLOP and the bytes of every kind of message, each exactly."""
    traced, described = llamas
    job, priced = TrainingJob(sequence_length=4096, global_batch_size=8), stack("megatron-core")
    for tp in (2, 4, 8):
        ranks = {"tp": tp, "sequence_parallel": sequence_parallel}
        found, expected = (
            sums_of(
                ops_of_parts(
                    Workload(model=model, job=replace(job, sequence_length=length), stack=priced), shard
                ),
                model,
            )
            for model, length in ((traced, 1), (described, 4096))
            for shard in (ShardShape(sequence_length=length, **ranks),)
        )
        assert found == pytest.approx(expected, rel=1e-9)


def sums_of(parts: tuple[tuple[Op, ...], ...], model: ModelSpec) -> dict[str, float]:
    """Of all layers and ends: parameters, FLOP, and bytes of messages by collective and phase."""
    found: dict[str, float] = {}
    counts = [*(run.count for run in layer_runs(model)), 1, 1]
    for count, ops in zip(counts, parts, strict=True):
        for op in ops:
            kind = f"{op.collective} {op.phase} {op.cover.value}" if op.collective else "products"
            found[kind] = found.get(kind, 0.0) + count * float(op.collective_bytes or op.flop)
            found["parameters"] = found.get("parameters", 0.0) + count * float(op.parameters)
    return {kind: total for kind, total in found.items() if total}


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


def test_on_tensor_ranks_too_the_plan_is_that_of_the_described_one(
    llamas: tuple[ModelSpec, ModelSpec],
) -> None:
    """128 H100 for 32 sequences: four tensor ranks, two stages of nine chunks, the sequence split."""
    traced, described = llamas
    words = {"gpus": 128, "batch": 32, "stack": "megatron-core", "engine": "any", "set": {"layout.cp": 1}}
    first, second = (meshplan.plan(one, seq=seq, **words) for one, seq in ((traced, 1), (described, 4096)))
    assert (first.layout.tp, first.layout.pp, first.layout.sequence_parallel) == (4, 2, True)
    assert first.layout == second.layout
    assert first.estimate.step_time_s == pytest.approx(second.estimate.step_time_s, rel=0.03)
    assert first.estimate.peak_memory_bytes == pytest.approx(second.estimate.peak_memory_bytes, rel=0.03)


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
