"""Advice of an audit, followed in a copy of its file: the engine's parser takes it, and it gains what was promised.

Copies are edited as text or as data, never by what was read of them, and audited anew.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from planner.audit.audit import Audit
from planner.audit.changes import Change
from planner.audit.read import read_texts
from planner.audit.spelling import _styled, spelled_name, spelled_words
from planner.parsers.client import answers, interpreter
from planner.questions.flags import Flags
from tests.counts import cases_of_run
from tests.unit.planner.audit.shared_audits import audit_without_advice, whole_audit
from tests.unit.planner.audit.test_applied import FILES, edited_file

FLAGS = Flags(gpu="h100-sxm")
HEAD = "torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py"
DENSE = """ --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
 --ffn-hidden-size 14336 --swiglu --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --bf16 \
 --untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 128"""
EXPERTS = """ --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 6144 --swiglu --seq-length 4096 \
 --max-position-embeddings 4096 --vocab-size 32000 --bf16 --num-experts 16 --moe-router-topk 2 --moe-grouped-gemm \
 --moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 1024 --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 \
 --expert-model-parallel-size 8"""
FULL = " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
MEGATRON = {
    "nothing": (2, DENSE),
    "tensors": (2, f"{DENSE} --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"),
    "tensors without sequences": (2, f"{DENSE} --tensor-model-parallel-size 8 --use-distributed-optimizer"),
    "recomputed": (2, f"{DENSE} --tensor-model-parallel-size 2 --use-distributed-optimizer{FULL}"),
    "stages": (2, f"{DENSE} --pipeline-model-parallel-size 4 --use-distributed-optimizer"),
    "chunks": (4, f"{DENSE} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4{FULL}"),
    "context": (4, f"{DENSE} --context-parallel-size 2 --tensor-model-parallel-size 4 --sequence-parallel{FULL}"),
    "overlapped": (4, f"{DENSE} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    "experts": (2, f"{EXPERTS} --use-distributed-optimizer"),
    "experts and tensors": (
        4,
        f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer{FULL}",
    ),
}  # fmt: skip
OLD = {
    "of 2020": "python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4 pretrain_gpt2.py --model-parallel-size 8 "
    "--num-layers 48 --hidden-size 4096 --num-attention-heads 32 --batch-size 8 --seq-length 1024 "
    "--max-position-embeddings 1024 --fp16 --checkpoint-activations",
    "of 2021": "python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 8 "
    "--pipeline-model-parallel-size 2 --num-layers 48 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 4 "
    "--global-batch-size 128 --seq-length 2048 --max-position-embeddings 2048 --fp16 --checkpoint-activations --DDP-impl local",
}
LATER = ("sequence-parallel", "distributed-optimizer", "overlap", "recompute", "context", "tp-comm", "fsdp")
MANIFEST = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  trainer:
    numNodes: {nodes}
    numProcPerNode: 8
    command:
      - bash
      - -c
      - torchrun pretrain_gpt.py {words}
"""


def edited(text: str, change: Change) -> str:
    """A command as a user edits it."""
    for word in (*change.remove, *(word.split(" ")[0] for word in change.set)):
        text = re.sub(rf"(?m)^export {re.escape(word)}=.*\n", "", text)
        text = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)(?: +(?!--)[^\s\\]+)*", "", text)
    return f"{text.rstrip()} {' '.join(change.set)}\n"


def script(name: str) -> str:
    nodes, more = MEGATRON[name]
    return f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{HEAD.format(nodes=nodes)}{more}\n"


def followed(found: Audit) -> Iterator[Change]:
    """Changes that can be written."""
    return (change for change in found.changes if change.set or change.remove)


def assert_delivered(after: Audit, change: Change) -> None:
    """Time and memory within a hundredth of what was promised."""
    assert after.predicted is not None, (change.set, change.remove, after.findings, after.job.missing)
    assert after.predicted.step_time_s == pytest.approx(change.step_time_s, rel=0.01), change
    assert after.predicted.peak_memory_bytes == pytest.approx(change.peak_memory_bytes, rel=0.01), change


LIKE_OTHERS = ("recomputed", "experts")
"""Scripts of the nightly run: each of their words stands in one that the suite follows."""


@pytest.mark.parametrize("name", cases_of_run(MEGATRON, LIKE_OTHERS))
def test_a_script_that_follows_advice_gains_what_was_promised(name: str) -> None:
    """Each change alone, and all of it."""
    text = script(name)
    found = whole_audit({"run.sh": text}, FLAGS)
    for change in followed(found):
        assert_delivered(audit_without_advice({"run.sh": edited(text, change)}, FLAGS), change)


@pytest.mark.parametrize("name", FILES)
def test_a_configuration_that_follows_advice_gains_what_was_promised(name: str) -> None:
    """TOML of torchtitan, YAML of NeMo and of LLaMA-Factory."""
    flags = Flags(gpu="h100-sxm", gpus="32", model=None if name == "nemo.yaml" else "llama-3.1-8b")
    for change in followed(whole_audit({name: FILES[name]}, flags)):
        assert_delivered(audit_without_advice({name: edited_file(name, FILES[name], change)}, flags), change)


@pytest.mark.parametrize(
    "name", cases_of_run(MEGATRON, [*MEGATRON.keys() - {"nothing", "stages", "experts and tensors"}])
)
def test_a_manifest_is_told_flags_of_its_command(name: str) -> None:
    """Not keys of its YAML."""
    nodes, more = MEGATRON[name]
    words = " ".join(more.split())
    found = whole_audit({"job.yaml": MANIFEST.format(nodes=nodes, words=words)}, FLAGS)
    for change in followed(found):
        assert all(word.startswith("--") for word in (*change.set, *change.remove)), change
        after = MANIFEST.format(nodes=nodes, words=edited(words, change).strip())
        assert_delivered(audit_without_advice({"job.yaml": after}, FLAGS), change)


BRIDGE = (
    "srun python scripts/performance/run_script.py --model_family_name llama --model_recipe_name llama3_70b "
    "--compute_dtype bf16 --gpu h100 --num_gpus 64 --tensor_model_parallel_size 4 --pipeline_model_parallel_size 8 "
    "--virtual_pipeline_model_parallel_size 5 --micro_batch_size 1 --global_batch_size 128"
)


def test_a_script_of_recipes_is_told_its_own_flags_and_fields_of_the_recipe() -> None:
    """What its parser does not know is an override without dashes (scripts/performance/run_script.py)."""
    found = whole_audit({"run.sh": BRIDGE}, FLAGS)
    whole = [change for change in found.changes if change.whole]
    assert whole
    for change in followed(found):
        names = {re.split(r"[ =]", word)[0] for word in (*change.set, *change.remove)}
        assert {name for name in names if name.startswith("--")} <= {w for w in BRIDGE.split() if "--" in w}
        assert all("." in name for name in names if not name.startswith("--"))


NEMO = (
    "torchrun --nproc_per_node=8 --nnodes=16 megatron_gpt_pretraining.py model.tensor_model_parallel_size=8 "
    "model.pipeline_model_parallel_size=4 model.num_layers=80 model.hidden_size=8192 model.num_attention_heads=64 "
    "model.encoder_seq_length=4096 model.micro_batch_size=1 model.global_batch_size=512 trainer.precision=bf16"
)
VERL = "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_batch_size=32 engine.tp=2"
TITAN = "torchrun --nproc_per_node=8 -m torchtitan.train --parallelism.tensor_parallel_degree=8 --training.seq_len 8192"
BOTH = (
    "python scripts/performance/run_script.py --tensor_model_parallel_size 4 model.sequence_parallel=True "
    "model.moe_router_dtype=fp32"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NEMO, "model.tensor_model_parallel_size=4"),
        (NEMO, "model.virtual_pipeline_model_parallel_size=2"),
        (VERL, "engine.tp=4"),
        (TITAN, "--parallelism.tensor_parallel_degree 4"),
        (BOTH, "--tensor_model_parallel_size 4"),
        (BOTH, "model.sequence_parallel=true"),
    ],
)
def test_a_command_is_told_a_word_as_it_has_its_like(text: str, told: str) -> None:
    """Hydra stops at a flag, and a parser of flags at ``key=value``."""
    assert _styled(read_texts({"run.sh": text}), re.sub(r"^-*([\w.]+)[= ]", r"\1 ", told)) == told


def test_hydra_is_told_no_key_that_its_base_file_lacks() -> None:
    """NeMo 1 has Megatron-Core's name for stages of a rank (megatron_gpt_config.yaml)."""
    reading = read_texts({"run.sh": NEMO})
    words = {"--num-virtual-stages-per-pipeline-rank": 5, "--recompute-granularity": "full"}
    assert spelled_words(reading, words, ()) == ("model.virtual_pipeline_model_parallel_size=5",)
    assert spelled_name(reading, "virtual_stages").endswith("virtual_pipeline_model_parallel_size")


def test_a_batch_that_is_stated_by_its_parts_is_kept() -> None:
    """Fewer sequences at once are told with more steps to accumulate."""
    text = (
        "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --max_length 2048 --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 4 --gradient_checkpointing --bf16 --use_peft --lora_r 32 --num_processes 4"
    )
    changes = [*followed(whole_audit({"run.sh": text}, FLAGS))]
    assert changes
    for change in changes:
        words = dict(word.split(" ") for word in change.set)
        size = int(words.get("--per_device_train_batch_size", 4))
        assert size * int(words.get("--gradient_accumulation_steps", 4)) == 16
        assert_delivered(audit_without_advice({"run.sh": edited(text, change)}, FLAGS), change)


def test_no_dispatcher_is_advised_that_gains_nothing() -> None:
    """Megatron-LM gathers tokens without a word; where a rank has all experts, no other way is faster."""
    words = EXPERTS.replace(" --moe-token-dispatcher-type alltoall", "")
    text = f"{HEAD.format(nodes=2)}{words} --use-distributed-optimizer"
    found = whole_audit({"run.sh": text}, FLAGS)
    whole = [change for change in found.changes if change.whole]
    assert whole
    assert not any("dispatcher" in word for change in whole for word in change.set)
    assert_delivered(audit_without_advice({"run.sh": edited(text, whole[0])}, FLAGS), whole[0])


@pytest.mark.parametrize("age", OLD)
def test_an_old_release_is_told_no_later_word(age: str) -> None:
    """Its argument parser stops at those: sequence parallelism came in 2022, overlap in 2023."""
    found = whole_audit({"run.sh": OLD[age]}, FLAGS)
    assert found.predicted is not None
    for change in followed(found):
        assert not [word for word in change.set if any(later in word for later in LATER)], change
        assert_delivered(audit_without_advice({"run.sh": edited(OLD[age], change)}, FLAGS), change)


DEEPSPEED = (
    '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}'
)
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 2
num_processes: 16
parallelism_config:
  parallelism_config_dp_replicate_size: 16
"""


@pytest.mark.parametrize(("name", "text"), [("ds.json", DEEPSPEED), ("accelerate.yml", ACCELERATE)])
def test_a_launchers_file_is_told_no_word_of_the_users_program(name: str, text: str) -> None:
    """Neither DeepSpeed's configuration nor Accelerate's has tables of a program or of a trainer."""
    flags = Flags(gpu="h100-sxm", gpus="16", model="llama-3.1-8b", sequence_length="4096")
    found = whole_audit({name: text}, flags)
    assert found.predicted is not None
    words = [word for change in followed(found) for word in (*change.set, *change.remove)]
    assert not [word for word in words if word.startswith(("program.", "trainer."))]


def test_no_list_of_lists_stands_behind_a_flag() -> None:
    """Stages by names of modules are data of a file: no command line of torchtitan takes them."""
    text = (
        "torchrun --nproc_per_node 8 --nnodes 4 -m torchtitan.train --model.name llama3 --model.flavor 8B "
        "--training.local_batch_size 2 --training.seq_len 8192 --parallelism.data_parallel_shard_degree -1 "
        "--activation_checkpoint.mode full\n"
    )
    found = whole_audit({"run.sh": text}, FLAGS)
    assert list(followed(found))
    for change in followed(found):
        assert not [word for word in change.set if "[" in word], change
        assert_delivered(audit_without_advice({"run.sh": edited(text, change)}, FLAGS), change)


def with_keys(text: str, change: Change) -> str:
    """JSON or YAML with the keys of a change."""
    data = yaml.safe_load(text)
    for word in change.set:
        path, _, value = word.partition(": ")
        *tables, last = path.split(".")
        place = data
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = yaml.safe_load(value)
    return json.dumps(data)


SHARDED = ACCELERATE.replace("MULTI_GPU", "FSDP").replace("dp_replicate", "dp_shard")
LAUNCHED = {
    "deepspeed": (
        DEEPSPEED,
        DEEPSPEED.replace("2}", "1}"),
        DEEPSPEED.replace("2}", '3, "overlap_comm": false}'),
        DEEPSPEED.replace(": 4}", ': 16, "gradient_accumulation_steps": 2}'),
        DEEPSPEED.replace("bf16", "fp16"),
    ),
    "accelerate": (
        ACCELERATE,
        SHARDED + "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n",
        SHARDED + "fsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", LAUNCHED)
def test_engines_parser_takes_every_change_of_a_launchers_file(engine: str) -> None:
    """DeepSpeedConfig, and the loader and plugins of Accelerate."""
    python = interpreter(engine)
    if python is None:
        pytest.skip(f"{engine} is not in the environment of MESHPLAN_PARSERS")
    flags = Flags(gpu="h100-sxm", gpus="16", model="llama-3.1-8b", sequence_length="2048")
    name = "ds.json" if engine == "deepspeed" else "accelerate.yml"
    cases = []
    for text in LAUNCHED[engine]:
        for change in (None, *followed(whole_audit({name: text}, flags))):
            after = json.dumps(yaml.safe_load(text)) if change is None else with_keys(text, change)
            files = (
                {"ds.json": after}
                if engine == "deepspeed"
                else {"accelerate.json": after, "training_args.json": ARGUMENTS}
            )
            cases.append({
                "files": files, "gpus": 16, "capability": "9.0", "gpu": "NVIDIA H100", "environment": {}, "model": {},
            })  # fmt: skip
            if change is not None:
                assert_delivered(audit_without_advice({name: after}, flags), change)
    refused = [answer["error"] for answer in answers(engine, cases, python) if "error" in answer]
    assert not refused
    assert len(cases) > len(LAUNCHED[engine])


ARGUMENTS = json.dumps({
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": True, "gradient_checkpointing": False,
    "max_length": 2048,
})  # fmt: skip


def test_engines_parser_takes_every_change_of_a_megatron_script() -> None:
    """Its own parser and validate_args, of every script with each of its changes."""
    python = interpreter("megatron")
    if python is None:
        pytest.skip("megatron-core is not in the environment of MESHPLAN_PARSERS")
    cases, told = [], []
    for name in MEGATRON:
        text = script(name)
        for change in (None, *followed(whole_audit({"run.sh": text}, FLAGS))):
            after = text if change is None else edited(text, change)
            words = shlex.split(after.replace("\\\n", " ").partition("pretrain_gpt.py")[2])
            export = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if "CUDA_DEVICE_MAX" in after else ""
            array = " ".join(map(shlex.quote, words))
            cases.append({
                "files": {"job.sh": f"{export}MEGATRON_ARGS=({array})\n"}, "gpus": 8 * MEGATRON[name][0],
                "capability": "9.0", "gpu": "NVIDIA H100", "environment": {}, "model": {},
            })  # fmt: skip
            told.append((name, change and change.set, change and change.remove))
    refused = [
        (which, answer["error"])
        for which, answer in zip(told, answers("megatron", cases, python), strict=True)
        if "error" in answer
    ]
    assert not refused
    assert len(told) > 2 * len(MEGATRON)
