"""What the tools themselves stop at: two words that contradict are illegal, and either alone is not."""

from __future__ import annotations

import json

import pytest

from planner.audit.findings import findings_of
from planner.audit.job import audited_job
from planner.audit.read import read_texts
from planner.questions.flags import Flags

STEPS = "iteration {step}/ 90 | elapsed time per iteration (ms): 900.0 | global batch size: 64 |\n"
RAN = "".join(STEPS.format(step=step) for step in (1, 2, 3))


def stopped_by(texts: dict[str, str]) -> set[str]:
    """Rules by which files are illegal."""
    reading = read_texts(texts)
    found = findings_of(reading, audited_job(reading, Flags(gpu="a100-sxm-80gb")), None)
    return {finding.rule for finding in found if finding.kind == "illegal"}


TRAINER = (
    "deepspeed --num_gpus 4 tune.py --deepspeed zero.json --model_name_or_path mistralai/Mistral-7B-v0.1 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 True --output_dir o {more}\n"
)


@pytest.mark.parametrize(
    ("counts", "more", "stops"),
    [
        ({"train_batch_size": 64}, "", False),
        ({"train_batch_size": 128}, "", True),
        ({"train_batch_size": 128}, "--auto_find_batch_size True", False),
        ({"train_batch_size": "auto"}, "", False),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}, "", False),
        ({"train_micro_batch_size_per_gpu": 4}, "", True),
        ({"gradient_accumulation_steps": 1}, "", True),
    ],
)
def test_a_batch_of_deepspeed_is_that_of_the_trainer(
    counts: dict[str, object], more: str, stops: bool
) -> None:
    """``HfTrainerDeepSpeedConfig``: each is its number, or ``auto``."""
    config = json.dumps({**counts, "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})
    texts = {"run.sh": TRAINER.format(more=more), "zero.json": config}
    assert ("batch-of-deepspeed" in stopped_by(texts)) is stops


AXOLOTL = (
    "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"
    "gradient_accumulation_steps: 1\ngradient_checkpointing: true\nlora_r: 8\nlora_target_linear: true\n"
)


@pytest.mark.parametrize(
    ("words", "stops"),
    [
        ("adapter: qlora\nload_in_4bit: true", False),
        ("adapter: qlora\nload_in_4bit: true\nload_in_8bit: false", False),
        ("adapter: qlora", False),
        ("adapter: qlora\nload_in_4bit: false", True),
        ("adapter: qlora\nload_in_4bit: true\nload_in_8bit: true", True),
        ("adapter: lora\nload_in_8bit: true", False),
        ("adapter: lora\nload_in_4bit: false", False),
        ("adapter:\nload_in_8bit: true", True),
        ("load_in_8bit: false\nload_in_4bit: false", False),
    ],
)
def test_axolotl_loads_what_its_adapter_is_of(words: str, stops: bool) -> None:
    """``validate_qlora`` and ``validate_adapter`` of its schemas."""
    assert ("quantized-adapter" in stopped_by({"tune.yml": AXOLOTL + words})) is stops


PLACED = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{first}
{second}
Trainer(model=model, args=args, train_dataset=data).train()
"""
ARGUMENTS = 'args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, deepspeed="zero.json")'
MODEL = 'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-13b-hf"{more})'


@pytest.mark.parametrize(
    ("more", "stage", "arguments_first", "stops"),
    [
        (', device_map="auto"', 3, True, True),
        (', device_map="auto"', 2, True, False),
        (', device_map="auto"', 3, False, False),
        (", device_map=None", 3, True, False),
        (", device_map=place()", 3, True, False),
        ("", 3, True, False),
    ],
)
def test_a_model_is_placed_by_hand_or_by_zero_3(
    more: str, stage: int, arguments_first: bool, stops: bool
) -> None:
    """Arguments that are made before the model tell ``from_pretrained`` of the stage."""
    lines = (ARGUMENTS, MODEL.format(more=more))
    first, second = lines if arguments_first else lines[::-1]
    texts = {
        "tune.py": PLACED.format(first=first, second=second),
        "zero.json": json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": "auto"}}),
    }
    assert ("device-map" in stopped_by(texts)) is stops


PIPELINE = (
    "deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size {pp} "
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 --deepspeed --deepspeed_config zero.json --zero-stage {stage} {more}\n"
)


@pytest.mark.parametrize(
    ("pp", "stage", "more", "log", "stops"),
    [
        (4, 2, "", "", True), (4, 3, "", "", True), (4, 1, "", "", False), (1, 2, "", "", False),
        (4, 2, "--no-pipeline-parallel", "", False), (4, 2, "", RAN, False),
    ],
)  # fmt: skip
def test_deepspeeds_pipeline_shares_neither_gradients_nor_weights(
    pp: int, stage: int, more: str, log: str, stops: bool
) -> None:
    """``PipelineEngine`` asserts it; a log with steps is of a job that was told otherwise."""
    texts = {"run.sh": PIPELINE.format(pp=pp, stage=stage, more=more), **({"run.log": log} if log else {})}
    assert ("zero-with-pipeline" in stopped_by(texts)) is stops
