"""What a person reads of an audit before scrolling: five lines, and the exit code beside them.

Files are made up in the forms of public reports; what is right of each stands in its test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.commands.audit.answer import fails
from app.errors import FAILED_AUDIT
from app.reports.answer import render
from app.reports.audit.report import audit_answer, audit_document
from app.reports.audit.summary import MOST_SENTENCES, summary_of
from planner.audit.audit import Audit, audited, calibration_of
from planner.audit.changes import Change, running_of
from planner.audit.contract_reading import profile_reading_of
from planner.audit.given import given_by
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.audit.spelling import spelled_words
from planner.questions.flags import Flags
from tests.unit.planner.audit.shared_audits import audit_without_advice

TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
TITAN_LOG = "[rank0]: step: {step}  loss:  9.4  memory: 26.47GiB(33.47%)  tps: 1,786  mfu: 10.46%\n"
MEGATRON = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers {layers} --hidden-size 4096 \\
  --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --untie-embeddings-and-output-weights \\
  --seq-length 2048 --micro-batch-size 1 --global-batch-size 128 --bf16 --vocab-size 32000 {more}
"""
RAN = "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
MEGATRON_LOG = " iteration {step}/ 1000 | elapsed time per iteration (ms): {ms} | global batch size: 128 |\n"


def audit(texts: dict[str, str], **flags: str) -> Audit:
    """The audit of texts with flags."""
    reading, asked = read_texts(texts), Flags(**flags)
    return audited(reading, asked, calibration_of(reading, asked))


def first_lines(found: Audit) -> str:
    """The first five lines as a terminal of 110 columns shows them, in one, and the exit code after them."""
    lines = render(audit_answer(found), "table", width=110).splitlines()[:5]
    return " ".join(" ".join((*lines, f"exit {FAILED_AUDIT if fails(found, None) else 0}")).split())


def megatron(*, nodes: int = 2, layers: int = 32, more: str = RAN) -> str:
    return MEGATRON.format(nodes=nodes, layers=layers, more=more)


def titan_log() -> str:
    return "".join(TITAN_LOG.format(step=step) for step in (10, 20, 30))


@pytest.mark.usefixtures("searched_in_nightly")
def test_the_headline_names_the_job() -> None:
    """Engine, model, GPUs and layout: who reads no further knows whether it was read right."""
    lines = first_lines(audit({"run.sh": megatron()}, gpu="h100-sxm"))
    assert "a job of Megatron-LM, 32 layers of 4096" in lines
    assert "on 16 × h100-sxm, dp 16 · ZeRO-1 · recompute layers" in lines


def test_a_slow_step_that_no_flag_explains_names_the_link_that_would() -> None:
    """8B on four nodes at 1,786 tokens/s a GPU: 4.59 s, 3.3 × the flags' (torchtitan#708); NICs of 140 Gbit/s a node."""
    found = audit({"titan.toml": TITAN, "run.log": titan_log()}, gpu="h100-sxm", gpus="32")
    lines = first_lines(found)
    assert "measured 4.59 s is 3.33 ×" in lines
    assert "none of your flags does" in lines
    assert found.residual is not None
    assert found.residual.link is not None
    assert found.residual.link.bytes_per_s * 8 / 1e9 == pytest.approx(140, rel=0.1)
    assert "4.59 s measured, 4.55 times the best" in lines
    assert lines.endswith("exit 0")


@pytest.mark.usefixtures("searched_in_nightly")
def test_the_rate_of_a_link_is_the_one_at_which_the_job_takes_so_long() -> None:
    """Solved backwards: with it said on the command line the prediction is the measurement."""
    texts = {
        "run.sh": megatron(),
        "run.log": "".join(MEGATRON_LOG.format(step=n, ms=9_000) for n in range(3)),
    }
    found = audit(texts, gpu="h100-sxm")
    assert found.residual is not None
    link = found.residual.link
    assert link is not None
    assert link.of == "node"
    setting = link.flag.removeprefix("--set ")
    there = audited(
        read_texts(texts),
        Flags(gpu="h100-sxm", settings=(setting,)),
        calibration_of(read_texts(texts), Flags(gpu="h100-sxm")),
    )
    assert there.predicted is not None
    assert there.predicted.step_time_s == pytest.approx(9.0, rel=0.02)


@pytest.mark.usefixtures("searched_in_nightly")
def test_of_one_node_the_link_among_its_gpus_is_named() -> None:
    """No NIC is in the way of a job of one node."""
    slow = "".join(MEGATRON_LOG.format(step=n, ms=60_000) for n in range(3))
    found = audit({"run.sh": megatron(nodes=1), "run.log": slow}, gpu="h100-sxm")
    assert found.residual is not None
    link = found.residual.link
    assert link is None or link.of == "GPU"


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_job_that_does_not_fit_is_told_its_smallest_change() -> None:
    """States of 7B kept whole on GPUs of 40 GB, whatever the length (Megatron-LM#606); few words fix it."""
    lines = first_lines(audit({"run.sh": megatron(nodes=1, more="")}, gpu="a100-sxm-40gb"))
    assert "does not fit" in lines
    assert "predicted of 40 GiB" in lines
    assert " takes " in lines
    assert lines.endswith(f"exit {FAILED_AUDIT}")


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_job_that_its_engine_stops_at_is_illegal_in_the_first_sentence() -> None:
    """46 layers over four stages (ms-swift#5737)."""
    lines = first_lines(
        audit({"run.sh": megatron(layers=46, more=f"--pipeline-model-parallel-size 4 {RAN}")}, gpu="h100-sxm")
    )
    assert "illegal: 46 layers do not divide by pp 4" in lines
    assert lines.endswith(f"exit {FAILED_AUDIT}")


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("variable", ["NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING"])
def test_a_fault_of_the_environment_stands_before_what_is_well(variable: str) -> None:
    """70 times slower with it (LlamaFactory#3499): it comes before the word that the job fits."""
    lines = first_lines(audit({"run.sh": f"export {variable}=1\n{megatron()}"}, gpu="h100-sxm"))
    assert f"slow: {variable} is 1" in lines
    assert f"unset {variable}" in lines
    assert lines.index("slow:") < lines.index("fits")


def test_what_is_missing_is_asked_for_in_the_first_sentence() -> None:
    """A file without a model."""
    lines = first_lines(audit({"titan.toml": TITAN.replace('"llama3"', '"mine"').replace("8B", "x")}))
    assert "not priced yet: give --model" in lines


@pytest.mark.usefixtures("searched_in_nightly")
def test_gpus_that_no_file_counts_are_taken_and_said_first() -> None:
    """8 is the first power of two on which 8B of FSDP surely fits with this recomputation: 49.4 GiB of 79.6."""
    found = audit({"titan.toml": TITAN})
    assert found.predicted is not None
    assert found.fits
    assert first_lines(found).partition("·")[2].count("no file counts the GPUs: 8 are taken") == 1
    assert "--gpus N prices yours" in first_lines(found)
    half = audit({"titan.toml": TITAN}, gpus="4")
    assert half.predicted is not None
    assert half.fits is None, "half as many do not surely hold it"


@pytest.mark.usefixtures("searched_in_nightly")
def test_gpus_that_were_taken_make_no_job_too_large() -> None:
    """405B that nothing shards fits no number of GPUs: that is not settled, as no file says how many there are."""
    text = (
        "torchrun --nnodes $N --nproc_per_node 8 pretrain_gpt.py --num-layers 126 --hidden-size 16384 "
        "--num-attention-heads 128 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
        "--global-batch-size 4096 --bf16 --vocab-size 128256 --tensor-model-parallel-size 8"
    )
    found = audit({"run.sh": text}, gpu="h100-sxm")
    assert found.memory is not None
    assert found.memory.word == "not settled"
    assert not fails(found, None)


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_count_that_was_taken_divides_batch_degrees_and_experts() -> None:
    """A batch of 4 leaves dp 4 at most, and 4 experts a stage of 4 ranks."""
    text = (
        "torchrun --nnodes $N pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 4 --bf16 "
        "--vocab-size 32000 --num-experts 8 --expert-model-parallel-size 4 --pipeline-model-parallel-size 2"
    )
    found = audit({"run.sh": text}, gpu="h100-sxm")
    assert found.job.layout is not None
    assert (found.job.layout.dp, found.job.layout.pp) == (4, 2)
    assert not [finding for finding in found.findings if finding.kind == "illegal"]


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_length_that_no_file_states_is_that_of_a_plan_or_of_the_model() -> None:
    """The user's own program behind DeepSpeed: 8,192 tokens, and no more than the 4,096 positions of Llama 2."""
    text = (
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    )
    found = audit({"ds.json": text}, model="llama-3.1-8b")
    assert found.job.request is not None
    assert found.job.request.job.sequence_length == 8192
    assert "8,192 tokens are taken" in first_lines(found)
    short = audit({"ds.json": text}, model="llama-2-7b")
    assert short.job.request is not None
    assert short.job.request.job.sequence_length == 4096


def test_nothing_is_taken_beside_a_log_with_steps() -> None:
    """What was measured is of one number of GPUs, which nobody may guess."""
    log = "".join(TITAN_LOG.format(step=step) for step in range(1, 30))
    found = audit({"titan.toml": TITAN, "titan.log": log})
    assert found.predicted is None
    assert "give --gpus" in first_lines(found)


def test_a_model_is_known_by_the_name_of_a_file_that_has_all_of_it() -> None:
    """And by no name that leaves its release or its family to be guessed."""
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
    found = audit({"sft_llama3.1_8b.yaml": text})
    assert found.job.request is not None
    assert found.job.request.model.name == "llama-3.1-8b"
    assert any("by the name of sft_llama3.1_8b" in doubt for doubt in found.doubts)
    for name in ("sft_8b.yaml", "llama_8b.yaml", "ds_z3_7b.yaml"):
        assert "--model" in audit({name: text}).job.missing


def test_the_document_has_the_sentences_too() -> None:
    """What a person reads first a program reads first."""
    found = audit({"run.sh": megatron()}, gpu="h100-sxm")
    summary = audit_document(found)["summary"]
    assert 0 < len(summary) <= MOST_SENTENCES
    assert summary[0].startswith("fits: ")


OLMO = """\
from olmo_core.config import DType
from olmo_core.internal.experiment import build_config, main
from olmo_core.train.train_module import TransformerActivationCheckpointingMode as _

{constants}

def build_model_config(common):
    return TransformerConfig.olmo2_32B(vocab_size=common.tokenizer.padded_vocab_size())

def build_train_module_config(common):
    return TransformerTrainModuleConfig(
        rank_microbatch_size={microbatch},
        max_sequence_length=common.max_sequence_length,
        compile_model=True,
        optim=AdamWConfig(lr=6e-4, compile=False),
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16, reduce_dtype=DType.float32, num_replicas={replicas}),
        ac_config={recompute},
    )

def build_trainer_config(common):
    return TrainerConfig(save_folder="/x").with_callback("profiler", ProfilerCallback(enabled=False))

if __name__ == "__main__":
    main(config_builder=partial(build_config, {length}global_batch_size={batch}, model_config_builder=build_model_config))
"""
FULL = "TransformerActivationCheckpointingConfig({how}TransformerActivationCheckpointingMode.full)"


def olmo(**parts: str) -> str:
    """A script of OLMo-core: everything is a keyword argument of some function of it."""
    usual = {
        "constants": "LENGTH = 4096", "microbatch": "1 * 4096", "replicas": "8", "length": "",
        "batch": "2048 * LENGTH", "recompute": FULL.format(how=""),
    }  # fmt: skip
    return OLMO.format(**{**usual, **parts})


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("parts", "microbatch", "length"),
    [
        ({}, 1, 4096),
        ({"microbatch": "2 * common.max_sequence_length"}, 2, 4096),
        ({"recompute": FULL.format(how="mode="), "replicas": "64 // 8"}, 1, 4096),
        (
            {
                "constants": "LENGTH = 8192",
                "length": "max_sequence_length=LENGTH, ",
                "microbatch": "common.max_sequence_length",
            },
            1,
            8192,
        ),
    ],
)
def test_keyword_arguments_of_olmo_core_are_a_job(
    parts: dict[str, str], microbatch: int, length: int
) -> None:
    """32B over eight replicas of 16 GPUs, batches in tokens; a length that nobody states is `build_config`'s 4,096."""
    found = audit({"olmo.py": olmo(**parts)}, gpus="128", gpu="h100-sxm")
    layout, request = found.job.layout, found.job.request
    assert layout is not None
    assert request is not None
    assert (layout.dp, layout.zero_stage, layout.shard_degree) == (128, 3, 16)
    assert (layout.microbatch_size, layout.recompute) == (microbatch, "full")
    assert (request.job.sequence_length, request.job.global_batch_size) == (length, 2048)
    assert request.model.name == "olmo-2-32b"
    lines = first_lines(found)
    assert "a job of OLMo-core, olmo-2-32b on 128 × h100-sxm" in lines
    assert f"shards over 16, 2,048 sequences of {length:,} tokens" in lines


def test_what_olmo_core_recomputes_of_modules_is_not_settled() -> None:
    """Nothing is recomputed without a word; of chosen modules nobody here knows how much."""
    chosen = FULL.format(how="mode=").replace(".full", ".selected_modules")
    jobs = [
        audit({"olmo.py": olmo(recompute=text)}, gpus="128", gpu="h100-sxm").job for text in ("None", chosen)
    ]
    assert [job.layout.recompute for job in jobs if job.layout is not None] == ["none", "none"]
    assert ["layout.recompute" in job.open_fields for job in jobs] == [False, True]


AUTOMODEL = """\
step_scheduler: {global_batch_size: 64, local_batch_size: 2}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
distributed: {STRATEGY, tp_size: 1, PIPELINE, ep_size: EP, activation_checkpointing: true}
packed_sequence: {packed_sequence_size: 4096}
"""


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("strategy", ["strategy: fsdp2", "_target_: nemo_automodel.fsdp2.FSDP2Manager"])
def test_a_file_of_automodel_is_read_as_its_own(strategy: str) -> None:
    """Its ``local_batch_size`` is not torchtitan's; it is priced like that engine, and never surely out of memory."""
    text = AUTOMODEL.replace("STRATEGY", strategy).replace("PIPELINE", "pp_size: 1").replace("EP", "8")
    found = audit({"m.yaml": text}, gpus="8", gpu="h100-sxm")
    layout = found.job.layout
    assert layout is not None
    assert (layout.ep, layout.dp, layout.zero_stage, layout.microbatch_size) == (8, 8, 3, 2)
    assert layout.recompute == "full"
    assert "NeMo AutoModel is priced as torchtitan" in found.job.assumed
    assert found.fits is not False
    lines = first_lines(found)
    assert "a job of NeMo AutoModel, qwen3-30b-a3b on 8 × h100-sxm" in lines
    assert lines.endswith("exit 0")


def test_a_stage_of_automodel_holds_a_part_of_its_batch() -> None:
    """``pp_microbatch_size`` is what goes through a pipeline at once."""
    pipeline = "pp_size: 2, pipeline: {pp_microbatch_size: 1}"
    text = AUTOMODEL.replace("STRATEGY", "strategy: fsdp2").replace("PIPELINE", pipeline).replace("EP", "1")
    layout = audit({"m.yaml": text}, gpus="8", gpu="h100-sxm").job.layout
    assert layout is not None
    assert (layout.pp, layout.dp, layout.microbatch_size) == (2, 4, 1)


@pytest.mark.usefixtures("searched_in_nightly")
def test_an_adapter_of_automodel_is_read() -> None:
    """``peft`` is a table whose target is the adapter's class."""
    peft = (
        "peft: {_target_: nemo_automodel._peft.lora.PeftConfig, match_all_linear: true, dim: 16, alpha: 32}\n"
    )
    text = (
        AUTOMODEL.replace("STRATEGY", "strategy: fsdp2").replace("PIPELINE", "pp_size: 1").replace("EP", "1")
    )
    request = audit({"m.yaml": text + peft}, gpus="8", gpu="h100-sxm").job.request
    assert request is not None
    assert request.job.adapter is not None
    assert request.job.adapter.words == "lora:r=16,targets=attention+mlp,alpha=32"


AXOLOTL = """\
base_model: Qwen/Qwen2.5-7B-Instruct
sequence_len: {length}
micro_batch_size: 1
gradient_accumulation_steps: 1
optimizer: {optimizer}
bf16: {half}
flash_attention: true
gradient_checkpointing: {checkpointing}
"""


def axolotl(**parts: object) -> str:
    usual = {"length": 4096, "optimizer": "adamw_torch", "half": "auto", "checkpointing": "true"}
    return AXOLOTL.format(**{**usual, **parts})


def test_what_a_file_says_of_kernels_hides_no_change() -> None:
    """FlashAttention of an Axolotl file: Accelerate is told no kernel, and the layout can change all the same."""
    found = audit({"x.yaml": axolotl(length=4096, checkpointing="false")}, gpus="1", gpu="h100-sxm")
    words = [word for change in found.changes for word in change.set]
    assert "gradient_checkpointing: true" in words
    assert "gradient_checkpointing: true takes" in first_lines(found)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("adamw_torch_fused", "adamw"),
        ("paged_adamw_8bit", "adamw-8bit"),
        ("adamw_bnb_8bit", "adamw-8bit"),
        ("adafactor", "adafactor"),
    ],
)
def test_the_optimizer_of_a_trainers_file_is_read(word: str, name: str) -> None:
    """Moments of eight bits are a sixth of AdamW's states; a paged optimizer keeps as much."""
    job = audit({"x.yaml": axolotl(optimizer=word, half="false")}, gpus="8", gpu="h100-sxm").job
    assert job.request is not None
    assert job.request.job.optimizer == name


def test_an_optimizer_that_nobody_knows_is_said_to_be_adamw() -> None:
    found = audit({"x.yaml": axolotl(optimizer="q_apollo")}, gpus="8", gpu="h100-sxm")
    assert any("q_apollo is priced as AdamW" in doubt for doubt in found.doubts)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("half", ["auto", "true", "false"])
def test_weights_of_sixteen_bits_are_updated_as_they_are(half: str) -> None:
    """Axolotl loads a model in ``bf16``; torch's AdamW over it keeps 8 bytes a parameter, gradients included."""
    found = audit({"x.yaml": axolotl(half=half)}, gpus="1", gpu="h100-sxm")
    assert found.job.request is not None
    assert found.predicted is not None
    assert found.job.request.job.optimizer == ("adamw" if half == "false" else "adamw-pure-bf16")
    gib = found.predicted.peak_memory_bytes / 2**30
    assert gib > 100 if half == "false" else 55 < gib < 80
    assert (found.fits is False) is (half == "false")


@pytest.mark.usefixtures("searched_in_nightly")
def test_weights_that_are_sharded_have_a_wider_copy() -> None:
    """DeepSpeed's bf16 optimizer and FSDP keep one; so does LLaMA-Factory without ``pure_bf16``."""
    zero = {"x.yaml": axolotl() + "deepspeed: z3.json\n", "z3.json": '{"zero_optimization": {"stage": 3}}'}
    factory = "model_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\n"
    factory += "per_device_train_batch_size: 1\n"
    jobs = [
        audit(texts, gpus="8", gpu="h100-sxm").job.request
        for texts in (zero, {"f.yaml": factory}, {"f.yaml": factory + "pure_bf16: true\n"})
    ]
    assert [one.job.optimizer for one in jobs if one is not None] == ["adamw", "adamw", "adamw-pure-bf16"]


BOX = """\
name = "one box"
fabric = "ethernet"
[[nodes]]
gpu = "rtx-4090"
count = 1
gpus_per_node = 8
scaleup = "pcie"
scaleup_bandwidth_bytes_per_s = "24 GB/s"
host_bandwidth_bytes_per_s = "24 GB/s"
nics_per_node = 1
nic_bandwidth_bytes_per_s = "10 Gbit/s"
"""


def test_an_offload_on_a_machine_of_unknown_memory_is_priced(tmp_path: Path) -> None:
    """How fast a host updates decides no memory: 8B with all on the host took 13 GB a card (LlamaFactory#5977)."""
    box = tmp_path / "box.toml"
    box.write_text(BOX, encoding="utf-8")
    factory = "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nfinetuning_type: full\n"
    factory += "deepspeed: off.json\ncutoff_len: 1024\nper_device_train_batch_size: 1\nfp16: true\n"
    zero = (
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, '
        '"offload_param": {"device": "cpu"}}, "fp16": {"enabled": "auto"}}'
    )
    found = audit({"f.yaml": factory, "off.json": zero}, cluster=str(box))
    assert found.predicted is not None
    assert found.predicted.peak_memory_bytes == pytest.approx(13e9, rel=0.1)
    assert any("host memory" in doubt for doubt in found.doubts)
    assert found.fits is not False


SWIFT = """\
NPROC_PER_NODE=8 NNODES={nodes} megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size {tp} \\
  --expert_model_parallel_size 8 --micro_batch_size 1 --global_batch_size 64 --sequence_parallel true \\
  --max_length {length} --recompute_granularity full --recompute_method uniform --recompute_num_layers 1
"""


def test_changes_of_ms_swift_are_in_its_own_spelling_and_words() -> None:
    """Its flags are fields of a dataclass: underscores, no ``cp_comm_type``, no Megatron-FSDP."""
    found = audit({"s.sh": SWIFT.format(nodes=2, tp=2, length=32768)}, gpu="h100-sxm")
    words = [word for change in found.changes for word in (*change.set, *change.remove)]
    assert words
    assert not [word for word in words if "-" in word.split(" ")[0].lstrip("-")]
    assert not [word for word in words if "cp_comm_type" in word or "fsdp" in word]


def test_ms_swift_sends_tokens_to_their_experts_alone() -> None:
    """``moe_token_dispatcher_type`` is alltoall in its swift/megatron/argument/megatron_args.py."""
    reading = read_texts({"s.sh": SWIFT.format(nodes=2, tp=2, length=8192)})
    job = audited_job(reading, Flags(gpu="h100-sxm"))
    assert job.request is not None
    parsed = profile_reading_of(reading, job.request)
    assert parsed is not None
    assert {**parsed.assumed, **parsed.stated}["stack.gathers_tokens"] is False


def test_a_word_that_a_launcher_lacks_and_its_engine_takes_without_it_is_left_out() -> None:
    """Context parallelism of ms-swift goes over point-to-point sends, which is Megatron-LM's default."""
    reading = read_texts({"s.sh": SWIFT.format(nodes=2, tp=2, length=32768)})
    cp = {"--context-parallel-size": 2, "--cp-comm-type": ["p2p"]}
    assert spelled_words(reading, cp, ()) == ("--context_parallel_size 2",)
    assert spelled_words(reading, {**cp, "--cp-comm-type": ["a2a"]}, ()) == ()


WRAPPERS = {
    "accelerate launch --num_processes 8 -m axolotl.cli.train x.yaml": 8,
    "accelerate launch --num_processes 8 --mixed_precision bf16 -m axolotl.cli.train x.yaml": 8,
    "torchrun --nproc_per_node=8 --nnodes=2 -m axolotl.cli.train x.yaml": 16,
    "python -m torch.distributed.launch --nproc_per_node 4 train.py x.yaml": 4,
    "deepspeed --include localhost:0,1,2 train.py --config x.yaml": 3,
    "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun axolotl train x.yaml": 32,
    "export CUDA_VISIBLE_DEVICES=0,1\naxolotl train x.yaml": 2,
    "CUDA_VISIBLE_DEVICES=0,1,2,3 axolotl train x.yaml": 4,
    "NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train x.yaml": 8,
    "export CUDA_VISIBLE_DEVICES=3\npython train.py x.yaml": 1,
}


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gpus_that_stand_in_the_wrapping_script_count(wrapper: str) -> None:
    """The script hands the job to a file and says no more than on how many GPUs."""
    found = audit({"run.sh": f"#!/bin/bash\n{wrapper}\n", "x.yaml": axolotl()}, gpu="h100-sxm")
    assert found.reading.family.name == "Axolotl"
    assert found.job.request is not None
    assert found.job.request.cluster.num_gpus == WRAPPERS[wrapper]
    assert f"on {WRAPPERS[wrapper]} × h100-sxm" in first_lines(found)


def test_gpus_that_only_a_run_knows_are_taken_and_said() -> None:
    """As many as ``nvidia-smi`` lists."""
    text = "N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node=$N -m axolotl.cli.train x.yaml\n"
    lines = first_lines(audit({"run.sh": text, "x.yaml": axolotl()}, gpu="h100-sxm"))
    assert "no file counts the GPUs: 8 are taken" in lines


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("name", "offload"),
    [("zero3", None), ("zero3_offload", "parameters"), ("zero2_offload", "optimizer:1"), ("zero2", None)],
)
def test_a_preset_of_deepspeed_says_what_it_offloads(name: str, offload: str | None) -> None:
    """ms-swift names presets instead of files."""
    text = (
        "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --train_type full --max_length 2048 "
        f"--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --deepspeed {name}\n"
    )
    request = audit({"s.sh": text}, gpu="a100-sxm-80gb").job.request
    assert request is not None
    assert (request.job.offload and request.job.offload.words) == offload


@pytest.mark.usefixtures("searched_in_nightly")
def test_the_interface_of_sockets_is_named() -> None:
    """Without InfiniBand nodes exchange over it; one that leaves no host is a fault by itself."""
    ib, interface = "export NCCL_IB_DISABLE=1\n", "export NCCL_SOCKET_IFNAME={}\n"
    slow = first_lines(audit({"run.sh": ib + interface.format("eth0") + megatron()}, gpu="h100-sxm"))
    assert "not InfiniBand or RoCE, over eth0" in slow
    lost = first_lines(audit({"run.sh": interface.format("docker0") + megatron()}, gpu="h100-sxm"))
    assert "slow: NCCL_SOCKET_IFNAME is docker0" in lost
    fine = first_lines(audit({"run.sh": interface.format("eth0") + megatron()}, gpu="h100-sxm"))
    assert "NCCL_SOCKET_IFNAME" not in fine


@pytest.mark.usefixtures("searched_in_nightly")
def test_more_tensor_ranks_than_key_value_heads_are_priced() -> None:
    """Megatron-Core gathers heads for the ranks that share them; 27B over tp 8 made 128k tokens a step in 88 s."""
    text = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3.5-27B --tuner_type lora --lora_rank 8 --lora_alpha 16 "
        "--target_modules all-linear --tensor_model_parallel_size 8 --micro_batch_size 1 --global_batch_size 8 "
        "--recompute_granularity full --recompute_method uniform --recompute_num_layers 2 --max_length 131072 "
        "--sequence_parallel true --optimizer_cpu_offload true --use_precision_aware_optimizer true\n"
    )
    found = audit({"s.sh": text}, gpu="h200-sxm")
    assert found.predicted is not None
    assert found.predicted.lower_s <= 88 <= found.predicted.upper_s
    assert found.job.request is not None
    assert found.job.request.model.num_key_value_heads == 4
    assert "fits:" in first_lines(found)
    lone = audit({"s.sh": text.replace("size 8", "size 4", 1).replace("NODE=8", "NODE=4")}, gpu="h200-sxm")
    assert lone.job.request is not None
    assert lone.job.request.model.num_key_value_heads == 4


PROGRAMS = {
    "peft": (
        (
            'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=bnb)\n'
            "bnb = BitsAndBytesConfig(load_in_4bit=True)\n"
            'peft_config = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear")\n'
        ),
        "qlora:r=32,targets=attention+mlp,base=nf4,alpha=64",
    ),
    "unsloth": (
        (
            "model, tokenizer = FastLanguageModel.from_pretrained(\n"
            '    model_name="unsloth/Meta-Llama-3.1-8B", load_in_4bit=True)\n'
            'model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "up_proj"], lora_alpha=16)\n'
        ),
        "qlora:r=16,targets=attention+mlp,base=nf4,alpha=16",
    ),
    "whole": (
        (
            'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)\n'
            "config = SomeConfig(depth=3)\n"
        ),
        None,
    ),
}


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_over_the_trainer_is_read(name: str) -> None:
    """The model and the adapter are arguments of functions, not settings."""
    head, adapter = PROGRAMS[name]
    args = (
        'args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, gradient_accumulation_steps=8,\n'
        "    gradient_checkpointing=True, bf16=True)\n"
    )
    found = audit({"train.py": head + args}, gpus="8", gpu="h100-sxm", sequence_length="2048")
    request = found.job.request
    assert request is not None, found.job.missing
    assert request.model.name == "llama-3.1-8b"
    assert (request.job.adapter and request.job.adapter.words) == adapter


@pytest.mark.parametrize(
    ("value", "how"), [('"unsloth"', "stated"), ("True", "stated"), ("False", "default")]
)
def test_checkpoints_of_unsloths_model_are_stated(value: str, how: str) -> None:
    """What ``get_peft_model`` says is no default of the class of arguments."""
    text = (
        "from unsloth import FastLanguageModel\n"
        f"model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing={value})\n"
        "args = SFTConfig(per_device_train_batch_size=2, max_seq_length=2048)\n"
    )
    assert read_texts({"train.py": text}).facts.by_field["layout.recompute"].how == how


@pytest.mark.usefixtures("searched_in_nightly")
def test_unsloth_is_not_surely_out_of_memory() -> None:
    """Its kernels keep less than the Trainer's, and nothing here prices them."""
    text = "from unsloth import FastLanguageModel\n" + PROGRAMS["unsloth"][0]
    args = "args = SFTConfig(per_device_train_batch_size=16, bf16=True, max_seq_length=8192)\n"
    found = audit({"train.py": text + args}, gpus="1", gpu="l4")
    assert found.reading.family.name == "Unsloth"
    assert found.job.layout is not None
    assert found.job.layout.recompute == "full"
    assert found.memory is not None
    assert (found.memory.word, found.fits) == ("not settled", None)


def test_a_program_that_splits_over_data_alone_is_offered_no_other_axis() -> None:
    """LLaMA-Factory has no word for tensor parallelism: what it cannot be told is no better plan."""
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\ncutoff_len: 8192\nbf16: true\n"
    text += "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\ndeepspeed: z3.json\n"
    zero = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
    found = audit({"f.yaml": text, "z3.json": zero}, gpus="8", gpu="h200-sxm")
    assert found.best is not None
    assert (found.best.layout.tp, found.best.layout.pp, found.best.layout.cp) == (1, 1, 1)


TUNE = """\
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}}
model:
  _component_: torchtune.models.llama3_1.{model}
{adapter}batch_size: 2
gradient_accumulation_steps: 4
optimizer: {{_component_: {optimizer}, lr: 2e-5}}
dtype: bf16
enable_activation_checkpointing: true
"""
LORA = "  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']\n  apply_lora_to_mlp: true\n  lora_rank: 64\n  lora_alpha: 128\n"


def test_a_recipe_of_torchtune_is_read() -> None:
    """FSDP2 over weights of ``dtype``, which its optimizers update as they are."""
    text = TUNE.format(model="llama3_1_8b", adapter="", optimizer="torch.optim.AdamW")
    run = "tune run --nproc_per_node 2 full_finetune_distributed --config t.yaml\n"
    found = audit({"run.sh": run, "t.yaml": text}, gpu="a100-sxm-80gb")
    request, layout = found.job.request, found.job.layout
    assert request is not None
    assert layout is not None
    assert (request.model.name, request.job.sequence_length) == ("llama-3.1-8b", 4096)
    assert request.job.optimizer == "adamw-pure-bf16"
    assert (layout.dp, layout.zero_stage, layout.microbatch_size, layout.recompute) == (2, 3, 2, "full")
    assert request.job.global_batch_size == 16
    assert found.fits is not False


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("model", "kind"), [("lora_llama3_1_8b", "lora"), ("qlora_llama3_1_8b", "qlora")])
def test_an_adapter_of_torchtune_is_the_function_that_builds_it(model: str, kind: str) -> None:
    text = TUNE.format(model=model, adapter=LORA, optimizer="torch.optim.AdamW")
    request = audit({"t.yaml": text}, gpus="1", gpu="rtx-4090").job.request
    assert request is not None
    assert request.job.adapter is not None
    assert request.job.adapter.words.startswith(f"{kind}:r=64,targets=attention+mlp")


ALONE = {
    "torchtune": (
        "lora.yaml",
        """
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_rank: 8
  lora_attn_modules: [q_proj, v_proj]
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 2048
batch_size: 2
dtype: bf16
""",
    ),
    "DeepSpeed": (
        "zero.json",
        """{"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
            "zero_optimization": {"stage": 3}}""",
    ),
    "Accelerate": (
        "fsdp.yaml",
        """
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 1
num_processes: 1
""",
    ),
}


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("engine", ALONE)
def test_sharding_over_one_gpu_is_priced_as_none(engine: str) -> None:
    """FSDP and ZeRO over one GPU run, and share nothing: the job has a price, and its file is read as it is."""
    name, text = ALONE[engine]
    found = audit({name: text}, model="llama-3.2-1b", sequence_length="2048", gpus="1")
    assert "unpriced" not in first_lines(found)
    assert "a step takes" in first_lines(found)
    assert found.job.layout is not None
    assert found.job.layout.zero_stage == 0
    assert found.reading.facts.value("layout.zero_stage") == 3


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("family", "flavor", "path", "model"),
    [
        ("deepseek_v3", "16B", "", "deepseek-v2-lite"),
        ("deepseek_v3", "16B", "./assets/hf/deepseek-moe-16b-base", "deepseek-v2-lite"),
        ("deepseek_v3", "236B", "", "deepseek-v2"),
        ("deepseek_v3", "671B", "./assets/hf/DeepSeek-V3.1-Base", "deepseek-v3"),
        ("llama3", "8B", "./assets/hf/Llama-3.1-8B", "llama-3-8b"),
        ("llama4", "17bx16e", "", "llama-4-scout"),
    ],
)
def test_a_flavor_of_torchtitan_is_the_model_of_its_shape(
    family: str, flavor: str, path: str, model: str
) -> None:
    """The sizes that torchtitan/models/deepseek_v3/__init__.py gives its flavors: 16B has latent attention."""
    text = TITAN.replace('"llama3"', f'"{family}"').replace('"8B"', f'"{flavor}"\nhf_assets_path = "{path}"')
    found = audit({"train.toml": text}, gpus="64")
    assert found.job.request is not None
    assert found.job.request.model.name == model


def test_a_vision_variant_of_torchtitan_is_no_model_of_text() -> None:
    """One that is known by its name is that one; of others no model of text is taken."""
    text = TITAN.replace('"llama3"', '"qwen3_vl"')
    assert audit({"train.toml": text}, gpus="8").job.request.model.name == "qwen3-vl-8b"
    text = TITAN.replace('"llama3"', '"llama3_vl"')
    assert "give --model" in first_lines(audit({"train.toml": text}, gpus="8"))


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("gpus", ["1", "8"])
def test_states_that_deepspeed_shards_have_a_price(gpus: str) -> None:
    """ZeRO-1 is DeepSpeed's; that FSDP2 of Accelerate has no such stage says nothing of it."""
    text = ALONE["DeepSpeed"][1].replace('"stage": 3', '"stage": 1').replace('"train_batch_size": 2, ', "")
    found = audit({"zero.json": text}, model="llama-3.2-1b", sequence_length="2048", gpus=gpus)
    assert "FSDP2" not in first_lines(found)
    assert "a step takes" in first_lines(found)


@pytest.mark.parametrize(
    ("more", "stage"),
    [
        ("", 3), ("  fsdp_sharding_strategy: FULL_SHARD\n", 3), ("  fsdp_sharding_strategy: SHARD_GRAD_OP\n", 2),
        ("  fsdp_sharding_strategy: 3\n", 0), ("  fsdp_reshard_after_forward: false\n  fsdp_version: 2\n", 2),
    ],
)  # fmt: skip
def test_fsdp_of_accelerate_shards_parameters_unless_its_file_says_otherwise(more: str, stage: int) -> None:
    """FullyShardedDataParallelPlugin: FULL_SHARD of the first version, resharding of the second, by default."""
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
        f"fsdp_config:\n  fsdp_offload_params: false\n{more}"
    )
    found = audit({"fsdp.yaml": text}, model="llama-3.1-8b", sequence_length="2048")
    assert found.job.layout is not None
    assert found.job.layout.zero_stage == stage


@pytest.mark.usefixtures("searched_in_nightly")
def test_levanter_recomputes_unless_its_file_says_otherwise() -> None:
    """src/levanter/models/llama.py: gradient_checkpointing is true."""
    text = (
        "model:\n  type: llama\n  seq_len: 2048\n  hidden_dim: 4096\n  intermediate_dim: 11008\n"
        "  num_layers: 32\n  num_heads: 32\n{}trainer:\n  train_batch_size: 256\n  fsdp_axis: embed\n"
    )
    for more, recompute in (("", "full"), ("  gradient_checkpointing: false\n", "none")):
        found = audit({"llama.yaml": text.format(more)}, gpus="32")
        assert found.job.layout is not None
        assert found.job.layout.recompute == recompute


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        (
            "deepspeed --module openrlhf.cli.train_sft --pretrain org/model --max_len 4096 --zero_stage 2",
            "OpenRLHF",
        ),
        ("litgpt finetune_full meta-llama/Llama-3.1-8B --devices 8 --train.micro_batch_size 2", "LitGPT"),
    ],
)
def test_a_command_of_a_trainer_names_its_engine(command: str, engine: str) -> None:
    """It is no job of another engine that some of its words are like."""
    assert f"a job of {engine}" in first_lines(audit({"train.sh": f"{command}\n"}, gpus="8"))


@pytest.mark.parametrize(("option", "share"), [("2", 0.5), ("4", 0.25), ("0", 1.0)])
def test_torchtitan_recomputes_every_so_many_layers(option, share):
    """``_layer_sac_count % ac_freq == 0`` (torchtitan/distributed/activation_checkpoint.py); 0 is every layer."""
    reading = read_texts({"a.toml": TITAN.replace('"op"', f'"{option}"')})
    asked = Flags(gpus="8")
    reading = given_by(reading, asked)
    running = running_of(reading, audited_job(reading, asked), calibration_of(reading, asked))
    assert running.layout.recompute == "full"
    assert running.split.recompute_of_stage == (32 * share,)


def test_an_option_that_releases_of_torchtitan_default_differently_is_told():
    untold = read_texts({"a.toml": TITAN.replace('selective_ac_option = "op"\n', "")})
    assert any("every second layer" in doubt for doubt in untold.doubts)
    assert not any("every second layer" in doubt for doubt in read_texts({"a.toml": TITAN}).doubts)


@pytest.mark.parametrize(
    ("sharding", "stated", "dp_of_256"),
    [
        ("shard_degree=32", None, 256),
        ("shard_degree=32, num_replicas=4", 128, None),
        ("num_replicas=4", None, 256),
    ],
)
def test_a_shard_degree_of_hsdp_counts_no_gpus(
    sharding: str, stated: int | None, dp_of_256: int | None
) -> None:
    """The GPUs are copies times the degree: without the copies they are nobody's word."""
    reading = read_texts({"olmo.py": olmo().replace("num_replicas=8", sharding)})
    assert reading.facts.count("cluster.num_gpus") == stated
    if dp_of_256 is not None:
        facts = given_by(reading, Flags(gpus="256")).facts
        degree = 32 if "shard_degree" in sharding else 64
        assert (facts.count("layout.dp"), facts.count("layout.shard_degree")) == (dp_of_256, degree)


UNCOUNTED = "megatron sft --bf16 true --micro_batch_size 1"


@pytest.mark.parametrize(
    ("words", "gpus", "illegal"),
    [
        ("--model Qwen/Qwen3-30B-A3B --expert_model_parallel_size 8", 16, set()),  # a batch of 16 unsaid
        ("--model Qwen/Qwen3-0.6B --global_batch_size 4", 4, set()),
        ("--model Qwen/Qwen3-30B-A3B --global_batch_size 3 --expert_model_parallel_size 2", 32, set()),
        ("--model Qwen/Qwen3-0.6B --tensor_model_parallel_size 3", 24, {"heads", "kv-heads"}),
    ],
)
def test_no_job_is_illegal_by_a_count_of_ours(words: str, gpus: int, illegal: set[str]) -> None:
    """Presumed GPUs divide the batch of the files or of their engine; what no count mends stays illegal."""
    found = audit_without_advice({"run.sh": f"{UNCOUNTED} {words}"}, Flags(gpu="h100-sxm"))
    assert found.reading.facts.count("cluster.num_gpus") == gpus
    assert {finding.rule for finding in found.findings if finding.kind == "illegal"} == illegal


def change(gained: float, *words: str, whole: bool = False) -> Change:
    """A change that gains so many seconds."""
    return Change(
        set=words, fields=(), step_time_s=1.0, seconds_gained=gained, peak_memory_bytes=1e9,
        memory_change_bytes=0.0, out_of_memory_chance=0.0, tied=False, whole=whole,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((change(1.0, "--all-of-it", whole=True), change(0.9, "--one")), "predicted: --all-of-it"),
        ((change(1.0, "-" * 130, whole=True), change(0.1, "--other"), change(0.9, "--one")),
         "most of it is --one (-900 ms)"),
        ((change(1.0, "-" * 130, whole=True), change(0.1, "--one")), "first --one (-100 ms)"),
    ],
)  # fmt: skip
def test_a_long_way_to_the_best_begins_with_the_change_that_gains_most(
    changes: tuple[Change, ...], says: str
) -> None:
    """The best of a second less: what cannot be written in a line is begun."""
    found = audit({"titan.toml": TITAN}, gpu="h100-sxm", gpus="32")
    assert found.best is not None
    assert found.predicted is not None
    best = replace(found.predicted, step_time_s=found.predicted.step_time_s - 1.0)
    job = replace(found, best=replace(found.best, estimate=best), changes=changes)
    assert says in " ".join(summary_of(job)).replace("\u00a0", " ")
