"""Advice that is followed: every proposed change, written into the words of its script, is legal there."""

import re

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.applied import applied
from planner.audit.audit import Audit, audited
from planner.audit.changes import Change
from planner.audit.job import audited_job
from planner.audit.legal import is_illegal
from planner.audit.read import read_texts
from planner.questions.flags import Flags

HEAD = "torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py"
SIZES = """ --num-layers {layers} --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --vocab-size 32000 --swiglu --untie-embeddings-and-output-weights \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 """
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
SPLIT = "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
UNEVEN = "--pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 2 "
SCRIPTS = {
    "uneven stages": (4, 61, SPLIT + UNEVEN + FULL),
    "split tensors": (1, 32, SPLIT.replace("size 2", "size 8") + FULL),
    "even stages": (2, 32, SPLIT + "--pipeline-model-parallel-size 4 " + FULL),
    "chunks": (
        2,
        32,
        SPLIT + "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 " + FULL,
    ),
    "nothing sharded": (1, 32, "--tensor-model-parallel-size 4 "),
}
DEEPSPEED = (
    "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 "
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 2 --global-batch-size 64 --fp16 --deepspeed --zero-stage 1 --vocab-size 50304"
)
TRAINER = (
    "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 8 --bf16 true --gradient_checkpointing true --deepspeed ds.json --max_seq_length 4096"
)
FLAGS = Flags(gpu="h100-sxm")


def script(name: str) -> str:
    nodes, layers, more = SCRIPTS[name]
    head = HEAD.format(nodes=nodes) + SIZES.format(layers=layers)
    return f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{head}{more}\n"


def audit(text: str) -> Audit:
    return audited(read_texts({"run.sh": text}), FLAGS, load_calibration())


def edited(text: str, change: Change) -> str:
    """A script as a user edits it: by its text, not by what was read of it."""
    for word in (*change.remove, *(word.split(" ")[0] for word in change.set)):
        text = re.sub(rf"(?m)^export {re.escape(word)}=.*\n", "", text)
        text = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)(?: +(?!--)[^\s\\]+)*", "", text)
    return f"{text.rstrip()} {' '.join(change.set)}\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_with_a_proposed_change_is_legal(name):
    text = script(name)
    found = audit(text)
    assert found.changes
    for change in found.changes:
        after = audit(edited(text, change))
        assert not is_illegal(after.findings), (change.set, change.remove, after.findings)


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_applied_to_what_was_read_are_those_of_the_edited_script(name):
    text = script(name)
    found = audit(text)
    reading = read_texts({"run.sh": text})
    for change in found.changes:
        by_words = audited_job(applied(reading, change), FLAGS).layout
        assert by_words == audited_job(read_texts({"run.sh": edited(text, change)}), FLAGS).layout


@pytest.mark.parametrize("name", ["uneven stages", "chunks"])
def test_words_of_stages_go_with_the_pipeline(name):
    """Megatron's `get_num_layers_to_build` makes the first stage's layers alone, whatever the number of stages."""
    text = script(name)
    single = [c for c in audit(text).changes if "--pipeline-model-parallel-size 1" in c.set]
    assert single
    for change in single:
        after = edited(text, change)
        assert not re.search(r"pipeline-num-layers|virtual-pipeline|pipeline-model-parallel-layout", after)


@pytest.mark.parametrize("text", [DEEPSPEED, TRAINER, *map(script, SCRIPTS)])
def test_no_word_that_the_file_lacks_is_told_to_go(text):
    for change in audit(text).changes:
        assert all(word in text for word in change.remove)


def test_stages_of_another_launcher_are_told_in_its_words_or_not_at_all():
    words = [word for text in (DEEPSPEED, TRAINER) for change in audit(text).changes for word in change.set]
    assert not any("distributed-optimizer" in word or "fsdp" in word for word in words)
    assert all("zero" not in word or word.startswith("--zero-stage") for word in words)
