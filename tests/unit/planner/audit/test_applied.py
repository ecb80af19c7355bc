"""Advice that is followed: every proposed change, written into the words of its script, is legal there."""

import re
import tomllib
from dataclasses import replace

import pytest
import tomlkit
import yaml

from planner.audit.applied import applied
from planner.audit.audit import Audit
from planner.audit.changes import Change
from planner.audit.job import audited_job
from planner.audit.legal import is_illegal
from planner.audit.read import read_texts
from planner.questions.flags import Flags
from tests.counts import cases_of_run
from tests.unit.planner.audit.shared_audits import audit_without_advice, whole_audit

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
SCRIPTS_OF_RUN = cases_of_run(SCRIPTS, ["even stages", "chunks"])
"""`test_advice.py` follows advice to scripts like the others."""
DEEPSPEED = (
    "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 "
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 2 --global-batch-size 64 --fp16 --deepspeed --zero-stage 1 --vocab-size 50304"
)
TRAINER = (
    "deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 8 --bf16 true --gradient_checkpointing true --deepspeed ds.json --max_seq_length 4096"
)
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
NEMO = """trainer: {num_nodes: 4, devices: 8, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  activation: fast-swiglu
  sequence_parallel: false
  optim: {name: distributed_fused_adam}
"""
FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: full
deepspeed: ds_z3.json
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
gradient_checkpointing: true
bf16: true
"""
FILES = {"job.toml": TITAN, "nemo.yaml": NEMO, "factory.yaml": FACTORY}
FLAGS = Flags(gpu="h100-sxm")


def script(name: str) -> str:
    nodes, layers, more = SCRIPTS[name]
    head = HEAD.format(nodes=nodes) + SIZES.format(layers=layers)
    return f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{head}{more}\n"


def audit(text: str) -> Audit:
    return whole_audit({"run.sh": text}, FLAGS)


def edited(text: str, change: Change) -> str:
    """A script as a user edits it: by its text, not by what was read of it."""
    for word in (*change.remove, *(word.split(" ")[0] for word in change.set)):
        text = re.sub(rf"(?m)^export {re.escape(word)}=.*\n", "", text)
        text = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)(?: +(?!--)[^\s\\]+)*", "", text)
    return f"{text.rstrip()} {' '.join(change.set)}\n"


@pytest.mark.parametrize("name", SCRIPTS_OF_RUN)
def test_a_script_with_a_proposed_change_is_legal(name):
    text = script(name)
    found = audit(text)
    assert found.changes
    for change in found.changes:
        after = audit_without_advice({"run.sh": edited(text, change)}, FLAGS)
        assert not is_illegal(after.findings), (change.set, change.remove, after.findings)


@pytest.mark.parametrize("name", SCRIPTS_OF_RUN)
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


def edited_file(name: str, text: str, change: Change) -> str:
    """A file as a user edits it: its fields by their paths."""
    words = tomllib.loads(text) if name.endswith(".toml") else yaml.safe_load(text)
    for word in change.set:
        path, _, value = word.partition(" = " if name.endswith(".toml") else ": ")
        read = tomllib.loads(f"value = {value}")["value"] if name.endswith(".toml") else yaml.safe_load(value)
        *sections, last = path.split(".")
        place = words
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = read
    return tomlkit.dumps(words) if name.endswith(".toml") else yaml.safe_dump(words)


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_a_proposed_change_is_legal_and_is_the_job_that_the_change_says(name):
    flags = replace(FLAGS, gpus="32", model=None if name == "nemo.yaml" else "llama-3.1-8b")
    reading = read_texts({name: FILES[name]})
    found = whole_audit({name: FILES[name]}, flags)
    told = [change for change in found.changes if change.set]
    assert told or name == "factory.yaml"
    for change in told:
        texts = {name: edited_file(name, FILES[name], change)}
        by_words = audited_job(applied(reading, change), flags).layout
        assert by_words is not None
        assert by_words == audited_job(read_texts(texts), flags).layout
        assert not is_illegal(audit_without_advice(texts, flags).findings)
