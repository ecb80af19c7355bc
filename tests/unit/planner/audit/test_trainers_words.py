"""Changes in words that trainers which are not installed here take: published tables of keys, and their forms."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.memory.stage import MemoryBreakdown
from planner.audit.applied import applied
from planner.audit.audit import Audit, audited, estimate_of
from planner.audit.changes import Change
from planner.audit.job import audited_job
from planner.audit.published import PUBLISHED
from planner.audit.read import read_texts
from planner.audit.spelling import spelled_change
from planner.audit.verdict import EVEN
from planner.questions.flags import Flags

KEYS = {
    # LLaMA-Factory 0.9 (src/llamafactory/hparams/model_args.py) and the TrainingArguments of transformers 4 that it takes
    "LLaMA-Factory": {
        "disable_gradient_checkpointing", "flash_attn", "enable_liger_kernel", "per_device_train_batch_size",
        "gradient_accumulation_steps", "deepspeed", "fsdp", "bf16", "fp16", "pure_bf16", "optim", "packing",
    },
    # Axolotl 0.12 (src/axolotl/utils/schemas/config.py, fsdp.py)
    "Axolotl": {
        "gradient_checkpointing", "micro_batch_size", "gradient_accumulation_steps", "flash_attention", "optimizer", "bf16",
        "fsdp_config.reshard_after_forward", "reshard_after_forward", "dp_shard_size", "dp_replicate_size",
        "tensor_parallel_size", "context_parallel_size", "torch_compile", "liger_fused_linear_cross_entropy",
    },
    # TRL 1 (trl/trainer/sft_config.py) and the TrainingArguments of transformers that it extends
    "HF Trainer": {
        "gradient_checkpointing", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "optim",
        "torch_compile", "use_liger_kernel", "deepspeed", "fsdp", "activation_offloading",
    },
}  # fmt: skip
FILES = {
    "LLaMA-Factory": (("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 2048\nper_device_train_batch_size: 2\n"
                      "gradient_accumulation_steps: 2\nbf16: true\ndisable_gradient_checkpointing: {off}\ndeepspeed: ds_z3_config.json\n"), "lf.yaml"),
    "Axolotl": (("base_model: HuggingFaceTB/SmolLM2-1.7B\nsequence_len: 8192\nmicro_batch_size: 2\ngradient_accumulation_steps: 1\n"
                "optimizer: adamw_torch\nbf16: true\nflash_attention: true\ngradient_checkpointing: {on}\n"), "a.yaml"),
    "HF Trainer": (("from trl import SFTConfig, SFTTrainer\nfrom peft import LoraConfig\ntrainer = SFTTrainer(model='Qwen/Qwen3-8B', args=SFTConfig(max_length=4096, "
                   "per_device_train_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing={On}), peft_config=LoraConfig(r=64, target_modules='all-linear'))\n"), "t.py"),
}  # fmt: skip
TUNE = "tune run --nproc_per_node 4 lora_finetune_distributed --config qwen2_5/32B_lora batch_size=1\n"


def _audit(text: str, name: str, gpus: str | None = "8") -> Audit:
    return audited(read_texts({name: text}), Flags(gpu="h100-sxm", gpus=gpus), load_calibration())


def _keys_of_torchtune() -> set[str]:
    """Every key of the configurations of torchtune 0.6.1."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return {row["key"] for row in csv.DictReader(file) if row["engine"] == "torchtune"}


@pytest.mark.parametrize(
    ("engine", "checkpointed"), [("LLaMA-Factory", True), ("Axolotl", False), ("HF Trainer", False)]
)
def test_every_change_is_a_key_that_its_trainer_takes(engine: str, checkpointed: bool) -> None:
    text, name = FILES[engine]
    filled = text.format(on=str(checkpointed).lower(), off=str(not checkpointed).lower(), On=checkpointed)
    audit = _audit(filled, name)
    assert audit.reading.family.name == engine
    words = [word for change in audit.changes for word in (*change.set, *change.remove)]
    keys = {re.split(r"[:= ]", word, maxsplit=1)[0] for word in words}
    assert keys
    assert keys <= KEYS[engine]
    if Path(name).suffix == ".py":
        assert all(re.fullmatch(r"\w+=(?:True|False|-?\d+|'\w+')", word) for word in words)


def test_a_command_of_torchtune_is_told_by_keys_and_values() -> None:
    """torchtune/config/_utils.py of 0.6.1 stops at an override without an equals sign."""
    audit = _audit(TUNE, "run.sh", gpus=None)
    words = [word for change in audit.changes for word in (*change.set, *change.remove)]
    assert words
    assert all(re.fullmatch(r"[\w.]+=\S+", word) for word in words)
    assert {word.partition("=")[0] for word in words} <= _keys_of_torchtune()


@pytest.mark.parametrize(("stated", "recompute"), [("", "full"), (", gradient_checkpointing=False", "none")])
def test_trl_checkpoints_where_nothing_is_said(stated: str, recompute: str) -> None:
    """trl/trainer/sft_config.py: gradient_checkpointing defaults to True, not to the Trainer's False."""
    text = f"from trl import SFTConfig\nargs = SFTConfig(per_device_train_batch_size=2, max_length=2048{stated})\n"
    facts = read_texts({"t.py": text}).facts
    assert facts.value("layout.recompute") == recompute
    assert facts.count("job.sequence_length") == 2048


def test_gpt_neox_is_not_megatron_lm() -> None:
    """Its file has a key for pipelines that no other has; its degrees and DeepSpeed's stage are read."""
    text = (
        '{"pipe_parallel_size": 2, "model_parallel_size": 4, "num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, '
        '"seq_length": 2048, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, '
        '"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}'
    )
    reading = read_texts({"neox.json": text})
    assert reading.family.name == "GPT-NeoX"
    facts = reading.facts
    assert [facts.count(f"layout.{name}") for name in ("tp", "pp", "microbatch_size")] == [4, 2, 4]
    assert facts.value("layout.zero_stage") == 1


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [("HYBRID_SHARD", 3), ("4", 3), ("HYBRID_SHARD_ZERO2", 2), ("_HYBRID_SHARD_ZERO2", 2), ("5", 2)],
)
def test_a_hybrid_strategy_keeps_a_copy_on_each_node(strategy: str, stage: int) -> None:
    """Hybrid strategies share a copy among the ranks of a node: torch/distributed/fsdp/api.py, by accelerate's numbers."""
    text = (
        f"accelerate launch --num_machines 4 --num_processes 32 --use_fsdp --fsdp_sharding_strategy {strategy} "
        "train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1"
    )
    facts = read_texts({"run.sh": text}).facts
    assert (facts.count("layout.shard_degree"), facts.value("layout.zero_stage")) == (8, stage)


def test_arguments_of_the_trainer_have_their_own_batch() -> None:
    """The Trainer's `TrainingArguments` take eight samples a device where nothing is said."""
    text = "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --gradient_accumulation_steps 4 --num_processes 4"
    facts = read_texts({"run.sh": text}).facts
    assert facts.count("layout.microbatch_size") == 8
    assert facts.count("job.global_batch_size") == 128


OF_LLAMA = "--model_name_or_path meta-llama/Llama-3.1-8B --gradient_checkpointing --max_length 2048 --bf16"


@pytest.mark.parametrize(
    ("program", "batch"),
    [
        ("train.py", None),  # what its parser has is not known: DeepSpeed-Chat's has 16, qlora.py's 1
        ("train.py --save_strategy epoch", 8),  # a word of TrainingArguments alone
        ("examples/pytorch/language-modeling/run_clm.py", 8),
        ("run_clm_no_trainer.py", None),
        ("trl/scripts/dpo.py", 8),
        ("mine/sft.py", None),
    ],
)
def test_a_batch_is_the_trainers_only_where_its_arguments_show(program: str, batch: int | None) -> None:
    """A launcher's words, and those that any program may take, tell nothing of `TrainingArguments`."""
    text = f"accelerate launch --num_processes 8 {program} {OF_LLAMA}"
    reading = read_texts({"run.sh": text})
    assert reading.facts.count("layout.microbatch_size") == batch
    gaps = {gap.field for gap in audited_job(reading, Flags(gpu="h100-sxm")).unsettled}
    assert ("layout.microbatch_size" in gaps) == (batch is None)


UNSLOTH = """from unsloth import FastLanguageModel
from trl import {kind}, AnyTrainer
model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Meta-Llama-3.1-8B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16)
trainer = AnyTrainer(model=model, args={kind}(max_steps=60, optim="adamw_8bit", {words}))
"""


@pytest.mark.parametrize(
    ("kind", "words", "parts"),
    [
        ("SFTConfig", "", (4, 2)),
        ("DPOConfig", "gradient_accumulation_steps=1", (4, 1)),
        ("SFTConfig", "per_device_train_batch_size=1", (1, 2)),
        ("TrainingArguments", "gradient_accumulation_steps=4", (8, 4)),  # the Trainer's class stays as it is
        ("GRPOConfig", "", (None, None)),  # rounded to the answers of a prompt
    ],
)
def test_unsloth_has_a_batch_of_its_own(kind: str, words: str, parts: tuple[int | None, int | None]) -> None:
    """Classes that Unsloth makes of TRL's take 4 samples and accumulate 2 (unsloth/models/rl.py)."""
    facts = read_texts({"train.py": UNSLOTH.format(kind=kind, words=words)}).facts
    assert (facts.count("layout.microbatch_size"), facts.count("said.accumulation")) == parts


@pytest.mark.parametrize(
    ("words", "optimizer"),
    [("", "adamw-8bit"), (", optim='adamw_torch'", "adamw"), (", optim='lion_32bit'", "lion")],
)
def test_unsloth_has_an_optimizer_of_its_own(words: str, optimizer: str) -> None:
    """Its classes have optim adamw_8bit (unsloth/models/rl.py)."""
    text = (
        "from unsloth import FastModel\nfrom trl import SFTConfig, SFTTrainer\n"
        "model, tokenizer = FastModel.from_pretrained(model_name='unsloth/Qwen2.5-7B', max_seq_length=2048, "
        f"full_finetuning=True)\ntrainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1{words}))\n"
    )
    assert read_texts({"train.py": text}).facts.value("job.optimizer") == optimizer


LLAMA = "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\n"
COMMAND = (
    "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 2048 --bf16 true "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 "
)
LAUNCHED_BY = "accelerate launch --config_file fsdp.yaml " + COMMAND.partition("8 ")[2]
FSDP = "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 1\nmixed_precision: bf16\nfsdp_config:\n  fsdp_{}\n"
CLASSES = (
    "import lightning as L\nfrom torch.utils.data import DataLoader\nfrom transformers import AutoModelForCausalLM\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B', max_length=2048)\nloader = DataLoader(ds, batch_size=1)\n"
    "trainer = L.Trainer(devices=8, strategy={}, accumulate_grad_batches=4)\n"
)
TUNED = "tokenizer:\n  max_seq_len: 4096\nmodel:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n"
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\n"
)
STAGES = {
    "a command": ({"run.sh": f"{COMMAND} --fsdp 'full_shard auto_wrap'\n"}, 2, "--fsdp 'shard_grad_op auto_wrap'"),
    "copies": ({"run.sh": f"{COMMAND} --fsdp hybrid_shard\n"}, 2, "--fsdp hybrid_shard_zero2"),
    "a launcher's flag": (
        {"run.sh": f"accelerate launch --fsdp_sharding_strategy 1 {COMMAND}\n"}, 2, "--fsdp_sharding_strategy 2",
    ),
    "a launcher's file": (
        {"run.sh": LAUNCHED_BY, "fsdp.yaml": FSDP.format("sharding_strategy: FULL_SHARD")}, 2,
        "fsdp_config.fsdp_sharding_strategy: SHARD_GRAD_OP",
    ),
    "its second version": (
        {"run.sh": LAUNCHED_BY, "fsdp.yaml": FSDP.format("reshard_after_forward: false\n  fsdp_version: 2")}, 3,
        "fsdp_config.fsdp_reshard_after_forward: true",
    ),
    "LLaMA-Factory": ({"lf.yaml": f"{LLAMA}fsdp: full_shard auto_wrap\n"}, 2, "fsdp: shard_grad_op auto_wrap"),
    "Axolotl": (
        {"a.yaml": f"{AXOLOTL}fsdp_version: 2\nfsdp_config:\n  offload_params: false\n"}, 2,
        "fsdp_config.reshard_after_forward: false",
    ),
    "Axolotl of 2024": ({"a.yaml": f"{AXOLOTL}fsdp: [full_shard, auto_wrap]\n"}, 2, 'fsdp: ["shard_grad_op", "auto_wrap"]'),
    "torchtune": ({"t.yaml": TUNED}, 2, "fsdp_reshard_after_forward: false"),
    "Lightning": ({"t.py": CLASSES.format("FSDPStrategy(sharding_strategy='FULL_SHARD')")}, 2, "sharding_strategy='SHARD_GRAD_OP'"),
    "Lightning over DeepSpeed": ({"t.py": CLASSES.format("DeepSpeedStrategy(stage=3)")}, 2, "stage=2"),
    "Lightning without a word": ({"t.py": CLASSES.format("'ddp'")}, 3, ""),
    "a command without a word": ({"run.sh": COMMAND}, 3, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_what_fsdp_shards_is_told_in_the_words_of_its_files(name: str) -> None:
    """Strategies and resharding of torch, Accelerate and torchtune; applied, they are the stage that is meant."""
    texts, stage, word = STAGES[name]
    reading = read_texts(texts)
    before = reading.facts.value("layout.zero_stage")
    assert before != stage
    assert spelled_change(reading, (("zero_stage", stage),)) == ((word,) if word else ())
    if word:
        change = Change(
            set=(word,), remove=(), fields=(), step_time_s=1, seconds_gained=0, peak_memory_bytes=1,
            memory_change_bytes=0, out_of_memory_chance=0, tied=False,
        )  # fmt: skip
        assert applied(reading, change).facts.value("layout.zero_stage") == stage


LEAN = (
    "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer:\n  max_seq_len: 1024\n"
    "batch_size: 1\ndtype: bf16\nenable_activation_checkpointing: true\n{more}"
)
PAGED = "optimizer:\n  _component_: bitsandbytes.optim.PagedAdamW8bit\n"
CHUNKED = "loss:\n  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss\n"


def _memory(more: str) -> MemoryBreakdown:
    """What one GPU holds of a whole fine-tuning by torchtune."""
    reading = read_texts({"own.yaml": LEAN.format(more=more)})
    predicted = estimate_of(
        reading, audited_job(reading, Flags(gpu="h100-sxm", gpus="1")), load_calibration()
    )
    assert predicted is not None
    (stage,) = predicted.memory_by_stage
    return stage


def test_what_torchtune_frees_is_not_in_its_memory() -> None:
    """Of bf16 weights, gradients and paged moments: the weights, and the gradient of one unit.

    An optimizer beside offloaded activations is still that of the file, over weights in bf16; logits of
    1,024 tokens over 128,256 entries exist an eighth at a time.
    """
    usual, paged = _memory(""), _memory(PAGED)
    assert paged.optimizer_bytes == 0 < usual.optimizer_bytes
    assert _memory(f"{PAGED}enable_activation_offloading: true\n").optimizer_bytes == 0
    lean = _memory(f"{PAGED}optimizer_in_bwd: true\n")
    assert lean.gradients_bytes == pytest.approx(2 * 128_256 * 4096)
    assert lean.gradients_bytes < paged.gradients_bytes / 10
    chunks = _memory(f"{PAGED}{CHUNKED}optimizer_in_bwd: true\n")
    assert chunks.activations_bytes < lean.activations_bytes / 2


def test_moments_that_page_are_said() -> None:
    job = audited_job(read_texts({"own.yaml": LEAN.format(more=PAGED)}), Flags(gpu="h100-sxm", gpus="1"))
    assert any("PagedAdamW8bit" in text and "full GPU" in text for text in job.assumed)


OFFLOADING = (
    "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\nfrom transformers import TrainingArguments\n"
    "model, tok = FastLanguageModel.from_pretrained('unsloth/Meta-Llama-3.1-8B-bnb-4bit', max_seq_length=4096, load_in_4bit=True)\n"
    "model = FastLanguageModel.get_peft_model(model, r=8, use_gradient_checkpointing={way})\n"
    "SFTTrainer(model=model, args=TrainingArguments(per_device_train_batch_size={size}, fp16=True)).train()\n"
)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("way", "offload"), [("'unsloth'", "activations"), ("True", None)])
def test_unsloth_keeps_its_checkpoints_on_the_host_and_no_logits(way: str, offload: str | None) -> None:
    audit = audited(
        read_texts({"u.py": OFFLOADING.format(way=way, size=1)}), Flags(gpu="t4"), load_calibration()
    )
    request = audit.job.request
    assert request is not None
    assert request.switches["loss"] == "fused_linear"
    assert (request.job.offload and request.job.offload.words) == offload
    assert audit.memory is not None
    assert audit.memory.word == "fits"


@pytest.mark.usefixtures("searched_in_nightly")
def test_what_is_priced_as_another_engine_never_sooner_runs_out() -> None:
    """A tool whose memory nobody measured may take less than the engine that it is likened to."""
    words = []
    for size in (2, 4, 8, 16, 32):
        files = {"u.py": OFFLOADING.format(way="True", size=size)}
        memory = audited(read_texts(files), Flags(gpu="t4"), load_calibration()).memory
        assert memory is not None
        assert memory.chance <= EVEN or memory.word == "not settled"
        words.append(memory.word)
    assert words[-1] == "not settled"


def test_hpz_is_no_degree_of_sharding() -> None:
    """ZeRO++ keeps a second copy of the weights in a node; optimizer and gradients are of all ranks."""
    script = (
        "deepspeed --num_nodes 4 --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 True "
        "--deepspeed ds.json --per_device_train_batch_size 1 --model_max_length 2048 --output_dir out\n"
    )
    states = []
    for more in ("", ', "zero_hpz_partition_size": 8', ', "zero_hpz_partition_size": 1'):
        files = {
            "run.sh": script,
            "ds.json": f'{{"bf16": {{"enabled": true}}, "zero_optimization": {{"stage": 3{more}}}}}',
        }
        reading = read_texts(files)
        job = audited_job(reading, Flags(gpu="h100-sxm"))
        predicted = estimate_of(reading, job, load_calibration())
        assert predicted is not None
        (stage,) = predicted.memory_by_stage
        states.append((stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes))
    plain, second, one = states
    assert one == plain
    assert second[1:] == plain[1:]
    assert second[0] - plain[0] == pytest.approx(2 * 8.03e9 / 8, rel=0.01)


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("named", "word"), [("lomo", "not settled"), ("adamw_torch", "does not fit")])
def test_an_optimizer_that_is_priced_as_another_condemns_no_job(named: str, word: str) -> None:
    """LOMO keeps neither moments nor gradients: AdamW's state is no proof against it."""
    text = (
        "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='meta-llama/Llama-3.1-8B', "
        f"args=SFTConfig(max_length=1024, per_device_train_batch_size=1, bf16=True, optim='{named}')).train()\n"
    )
    memory = _audit(text, "t.py", gpus="1").memory
    assert memory is not None
    assert memory.word == word
