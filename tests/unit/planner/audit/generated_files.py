"""Launch files of many engines, made of random layouts and switches in each engine's words, and edits of them.

Forms are those of the engines' documentation; what a file states is drawn from what its engine runs.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tomlkit
import yaml

from planner.audit.changes import Change
from planner.questions.flags import Flags

MODELS = {
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b", "Qwen/Qwen2.5-7B": "qwen2.5-7b", "mistralai/Mistral-7B-v0.1": "mistral-7b-v0.1",
}  # fmt: skip
GPU = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A file by its name, and what is asked beside it."""

    name: str
    text: str
    flags: Flags


def _file(name: str, text: str, gpus: int | None = None, **more: str) -> Case:
    return Case(name=name, text=text, flags=Flags(gpu=GPU, gpus=None if gpus is None else str(gpus), **more))


def _yes(r: random.Random) -> bool:
    return r.random() < 0.5


def _truth(value: bool) -> str:
    return str(value).lower()


# ── Megatron and what wears its words ───────────────────────────────────────────────────────────────────────


def _degrees(
    r: random.Random, gpus: int, tensors: tuple[int, ...], stages: tuple[int, ...]
) -> tuple[int, int, int]:
    """tp, pp and dp of so many GPUs."""
    tp = r.choice(tensors)
    pp = r.choice([pp for pp in stages if gpus % (tp * pp) == 0])
    return tp, pp, gpus // (tp * pp)


def _recompute(r: random.Random) -> str:
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    return r.choice(["", "--recompute-granularity selective", full, "--recompute-activations"])


def megatron(r: random.Random) -> Case:
    nodes = r.choice((1, 2, 4))
    tp, pp, dp = _degrees(r, 8 * nodes, (1, 2, 4, 8), (1, 2, 4))
    size = r.choice((1, 2))
    words = [
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention",
        "--num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --bf16",
        "--seq-length 4096 --max-position-embeddings 4096",
        f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp}",
        f"--micro-batch-size {size} --global-batch-size {dp * size * 8 * pp}",
        "--sequence-parallel" if tp > 1 and _yes(r) else "",
        "--use-distributed-optimizer" if _yes(r) else "",
        "--overlap-grad-reduce" if _yes(r) else "",
        "--num-layers-per-virtual-pipeline-stage 4" if pp > 1 and _yes(r) else "",
        _recompute(r),
    ]
    head = f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py"
    lines = " \\\n  ".join([head, *filter(None, words)])
    return _file("run.sh", f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{lines}\n")


def megatron_experts(r: random.Random) -> Case:
    nodes, tp, ep = r.choice((1, 2)), r.choice((1, 2)), r.choice((2, 4, 8))
    words = [
        "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 6144 --swiglu --vocab-size 32000",
        "--seq-length 4096 --max-position-embeddings 4096 --bf16 --disable-bias-linear --num-experts 16 --moe-router-topk 2",
        "--moe-grouped-gemm --moe-ffn-hidden-size 1024 --micro-batch-size 1 --use-distributed-optimizer",
        f"--global-batch-size {8 * nodes * 8} --expert-model-parallel-size {ep} --tensor-model-parallel-size {tp}",
        "--sequence-parallel" if tp > 1 else "",
        "--moe-token-dispatcher-type alltoall" if _yes(r) else "",
        _recompute(r),
    ]
    head = f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py"
    lines = " \\\n  ".join([head, *filter(None, words)])
    return _file("run.sh", f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{lines}\n")


def bridge(r: random.Random) -> Case:
    gpus = r.choice((16, 32))
    tp, pp, dp = _degrees(r, gpus, (2, 4, 8), (1, 2, 4))
    text = (
        "srun python scripts/performance/run_script.py --model_family_name llama --model_recipe_name llama3_8b "
        f"--compute_dtype bf16 --gpu h100 --num_gpus {gpus} --tensor_model_parallel_size {tp} "
        f"--pipeline_model_parallel_size {pp} --context_parallel_size 1 --micro_batch_size 1 "
        f"--global_batch_size {dp * 16} model.sequence_parallel=true model.seq_length=8192\n"
    )
    return _file("run.sh", text)


def nemo(r: random.Random) -> Case:
    nodes, tp = r.choice((1, 2, 4)), r.choice((2, 4, 8))
    model = {
        "micro_batch_size": r.choice((1, 2)), "global_batch_size": 128, "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": 1, "encoder_seq_length": 4096, "num_layers": 32, "hidden_size": 4096,
        "ffn_hidden_size": 11008, "num_attention_heads": 32, "activation": "fast-swiglu", "sequence_parallel": _yes(r),
        "optim": {"name": "distributed_fused_adam"},
    }  # fmt: skip
    trainer = {"num_nodes": nodes, "devices": 8, "precision": "bf16"}
    return _file("nemo.yaml", yaml.safe_dump({"trainer": trainer, "model": model}))


def swift_megatron(r: random.Random) -> Case:
    nodes, tp = r.choice((1, 2)), r.choice((1, 2, 4))
    full = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    text = (
        f"NPROC_PER_NODE=8 NNODES={nodes} megatron sft --model Qwen/Qwen2.5-7B --dataset x --train_type full "
        f"--tensor_model_parallel_size {tp} --micro_batch_size {r.choice((1, 2))} --global_batch_size 64 "
        f"--max_length 4096 --sequence_parallel {_truth(tp > 1)} {r.choice(('', full))}\n"
    )
    return _file("run.sh", text)


def primus(r: random.Random) -> Case:
    overrides = {
        "micro_batch_size": r.choice((1, 2)), "global_batch_size": 128, "seq_length": 8192,
        "tensor_model_parallel_size": r.choice((1, 2, 4)), "pipeline_model_parallel_size": r.choice((1, 2)),
        "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    }  # fmt: skip
    part = {"framework": "megatron", "model": "llama3.1_8B.yaml", "overrides": overrides}
    return _file("primus.yaml", yaml.safe_dump({"modules": {"pre_trainer": part}}), 16)


# ── torchtitan ──────────────────────────────────────────────────────────────────────────────────────────────


def torchtitan_file(r: random.Random) -> Case:
    gpus, tp = r.choice((8, 16, 32)), r.choice((1, 2, 4, 8))
    data = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": r.choice((1, 2)), "seq_len": r.choice((4096, 8192))},
        "parallelism": {
            "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "tensor_parallel_degree": tp,
        },
        "activation_checkpoint": {"mode": r.choice(("none", "selective", "full")), "selective_ac_option": "op"},
        "compile": {"enable": _yes(r)},
    }  # fmt: skip
    return _file("job.toml", tomlkit.dumps(data), gpus)


def torchtitan_flags(r: random.Random) -> Case:
    mode = r.choice(("none", "full"))
    text = (
        f"torchrun --nproc_per_node 8 --nnodes {r.choice((1, 2))} -m torchtitan.train --model.name llama3 --model.flavor 8B "
        f"--training.local_batch_size {r.choice((1, 2))} --training.seq_len 8192 --parallelism.data_parallel_shard_degree -1 "
        f"--parallelism.tensor_parallel_degree {r.choice((1, 2, 8))} --activation_checkpoint.mode {mode}\n"
    )
    return _file("run.sh", text)


# ── DeepSpeed, Accelerate, the Trainer and what stands on it ────────────────────────────────────────────────


def deepspeed(r: random.Random) -> Case:
    data = {
        "zero_optimization": {"stage": r.choice((1, 2, 3))}, r.choice(("bf16", "fp16")): {"enabled": True},
        "train_micro_batch_size_per_gpu": r.choice((1, 4)), "gradient_accumulation_steps": r.choice((1, 4)),
    }  # fmt: skip
    more = {"model": "llama-3.1-8b", "sequence_length": "2048"}
    return _file("ds.json", json.dumps(data), r.choice((8, 16)), **more)


def accelerate(r: random.Random) -> Case:
    gpus, sharded = r.choice((8, 16)), _yes(r)
    data = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP" if sharded else "MULTI_GPU",
        "mixed_precision": "bf16", "num_machines": gpus // 8, "num_processes": gpus,
        "parallelism_config": {f"parallelism_config_dp_{'shard' if sharded else 'replicate'}_size": gpus},
    }  # fmt: skip
    if sharded:
        data["fsdp_config"] = {
            "fsdp_version": 2, "fsdp_reshard_after_forward": _yes(r), "fsdp_activation_checkpointing": _yes(r),
        }  # fmt: skip
    more = {"model": "llama-3.1-8b", "sequence_length": "2048"}
    return _file("accelerate.yml", yaml.safe_dump(data), gpus, **more)


def trainer_flags(r: random.Random) -> Case:
    sharding = r.choice(
        ("full_shard auto_wrap", "shard_grad_op auto_wrap", "full_shard", "hybrid_shard auto_wrap")
    )
    text = (
        f"torchrun --nproc_per_node 8 --nnodes {r.choice((1, 2))} run_clm.py --model_name_or_path {r.choice([*MODELS])} "
        f"--block_size 2048 --per_device_train_batch_size {r.choice((1, 2, 4))} --bf16 true "
        f"--gradient_accumulation_steps {r.choice((2, 4))} --gradient_checkpointing {_truth(_yes(r))} "
        f"--fsdp {shlex.quote(sharding)}\n"
    )
    return _file("run.sh", text)


def trl(r: random.Random) -> Case:
    text = (
        "from trl import SFTConfig, SFTTrainer\n"
        f"args = SFTConfig(output_dir='o', max_length=2048, per_device_train_batch_size={r.choice((1, 2, 4))}, "
        f"gradient_accumulation_steps={r.choice((2, 4))}, gradient_checkpointing={_yes(r)}, bf16=True, "
        f"fsdp='{r.choice(('full_shard', 'shard_grad_op'))} auto_wrap')\n"
        f"trainer = SFTTrainer(model='{r.choice([*MODELS])}', args=args)\ntrainer.train()\n"
    )
    return _file("train.py", text, 8)


def llama_factory(r: random.Random) -> Case:
    data = {
        "model_name_or_path": r.choice([*MODELS]), "stage": "sft", "finetuning_type": "full", "cutoff_len": 2048,
        "per_device_train_batch_size": r.choice((1, 2, 4)), "gradient_accumulation_steps": r.choice((2, 4)), "bf16": True,
        "fsdp": r.choice(("full_shard auto_wrap", "shard_grad_op auto_wrap")), "disable_gradient_checkpointing": _yes(r),
        "enable_liger_kernel": _yes(r),
    }  # fmt: skip
    return _file("lf.yaml", yaml.safe_dump(data), 8)


def axolotl(r: random.Random) -> Case:
    data = {
        "base_model": r.choice([*MODELS]), "sequence_len": 4096, "micro_batch_size": r.choice((1, 2)),
        "gradient_accumulation_steps": r.choice((2, 4)), "optimizer": "adamw_torch", "bf16": True, "flash_attention": True,
        "gradient_checkpointing": _yes(r), "fsdp_version": 2,
        "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": _yes(r)},
    }  # fmt: skip
    return _file("axolotl.yaml", yaml.safe_dump(data), 8)


def torchtune_file(r: random.Random) -> Case:
    data = {
        "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 4096},
        "optimizer": {"_component_": "torch.optim.AdamW"}, "batch_size": r.choice((1, 2)), "dtype": "bf16",
        "gradient_accumulation_steps": r.choice((1, 2, 4)), "enable_activation_checkpointing": _yes(r), "compile": _yes(r),
    }  # fmt: skip
    if _yes(r):
        data["fsdp_reshard_after_forward"] = _yes(r)
    return _file("8B_full.yaml", yaml.safe_dump(data), 8)


def torchtune_command(r: random.Random) -> Case:
    text = (
        "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/8B_full tokenizer.max_seq_len=4096 "
        f"batch_size={r.choice((1, 2))} gradient_accumulation_steps={r.choice((1, 4))} "
        f"enable_activation_checkpointing={_yes(r)} compile={_yes(r)}\n"
    )
    return _file("run.sh", text)


def lightning(r: random.Random) -> Case:
    sharding = r.choice(("FULL_SHARD", "SHARD_GRAD_OP"))
    strategy = r.choice(
        (f"FSDPStrategy(sharding_strategy='{sharding}')", f"DeepSpeedStrategy(stage={r.choice((2, 3))})")
    )
    text = (
        "import lightning as L\nfrom lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy\n"
        "from torch.utils.data import DataLoader\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained('{r.choice([*MODELS])}')\n"
        "ds = raw.map(lambda x: tok(x['text'], truncation=True, max_length=2048))\n"
        f"loader = DataLoader(ds, batch_size={r.choice((1, 2, 4))})\n"
        f"trainer = L.Trainer(devices=8, num_nodes=1, precision='bf16-mixed', strategy={strategy}, "
        f"accumulate_grad_batches={r.choice((2, 4))})\n"
    )
    return _file("train.py", text)


def unsloth(r: random.Random) -> Case:
    text = (
        "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
        "model, tokenizer = FastLanguageModel.from_pretrained(model_name='unsloth/Qwen2.5-7B', max_seq_length=2048)\n"
        "model = FastLanguageModel.get_peft_model(model, r=16, target_modules=['q_proj', 'k_proj', 'v_proj', 'o_proj'], "
        "use_gradient_checkpointing='unsloth')\n"
        f"trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size={r.choice((1, 2, 8))}, "
        f"gradient_accumulation_steps={r.choice((2, 4))}, output_dir='o'))\n"
    )
    return _file("tune.py", text)


def foundry(r: random.Random) -> Case:
    data = {
        "max_seq_len": 4096, "model": {"name": "hf_causal_lm", "pretrained_model_name_or_path": r.choice([*MODELS])},
        "global_train_batch_size": 128, "device_train_microbatch_size": r.choice((1, 2, 4)), "precision": "amp_bf16",
        "fsdp_config": {
            "sharding_strategy": r.choice(("FULL_SHARD", "SHARD_GRAD_OP")), "activation_checkpointing": _yes(r),
        },
    }  # fmt: skip
    return _file("foundry.yaml", yaml.safe_dump(data), 8)


# ── engines of other houses ─────────────────────────────────────────────────────────────────────────────────


def nanotron(r: random.Random) -> Case:
    tp, pp = r.choice((1, 2, 4)), r.choice((1, 2))
    sizes = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 4096,
    }  # fmt: skip
    data = {
        "model": {"dtype": "bfloat16", "model_config": sizes}, "optimizer": {"zero_stage": r.choice((0, 1))},
        "parallelism": {
            "dp": 16 // (tp * pp), "pp": pp, "pp_engine": "1f1b", "tp": tp, "tp_mode": "REDUCE_SCATTER",
            "recompute_layer": _yes(r),
        },
        "tokens": {"batch_accumulation_per_replica": 8, "micro_batch_size": r.choice((1, 2)), "sequence_length": 4096},
    }  # fmt: skip
    return _file("nanotron.yaml", yaml.safe_dump(data))


def maxtext(r: random.Random) -> Case:
    text = (
        "python3 -m MaxText.train src/MaxText/configs/base.yml run_name=x hardware=gpu model_name=llama3.1-8b "
        f"ici_fsdp_parallelism=8 dcn_data_parallelism=1 dcn_fsdp_parallelism={r.choice((1, 2))} ici_tensor_parallelism=1 "
        f"per_device_batch_size={r.choice((1, 2, 4))} max_target_length=4096 remat_policy={r.choice(('full', 'none'))} "
        "dtype=bfloat16\n"
    )
    return _file("run.sh", text)


def olmo(r: random.Random) -> Case:
    mode = f"ac_config=TransformerActivationCheckpointingConfig(mode=TransformerActivationCheckpointingMode.{r.choice(('full', 'none'))})"
    text = (
        "from olmo_core.train.train_module import TransformerTrainModuleConfig\nSEQUENCE_LENGTH = 4096\n"
        "def build_train_module_config(common):\n    return TransformerTrainModuleConfig(\n"
        f"        rank_microbatch_size={r.choice((1, 2))} * SEQUENCE_LENGTH, max_sequence_length=SEQUENCE_LENGTH, compile_model=True,\n"
        "        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp, param_dtype=DType.bfloat16),\n"
        f"        {mode},\n    )\n"
        "def build_model_config(common):\n    return TransformerConfig.olmo2_7B(vocab_size=100352)\n"
        "def build_data(common):\n    return NumpyDataLoaderConfig(global_batch_size=128 * SEQUENCE_LENGTH, seed=1)\n"
    )
    return _file("olmo.py", text, 16)


def openrlhf(r: random.Random) -> Case:
    text = (
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --max_len 4096 "
        f"--train_batch_size 128 --micro_train_batch_size {r.choice((1, 2, 4))} --zero_stage {r.choice((2, 3))} --bf16 "
        f"{r.choice(('--gradient_checkpointing', ''))}\n"
    )
    return _file("run.sh", text)


def verl_sft(r: random.Random) -> Case:
    text = (
        "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=128 "
        f"data.micro_batch_size_per_gpu={r.choice((1, 2, 4))} data.max_length=2048 model.partial_pretrain=Qwen/Qwen2.5-7B "
        f"model.enable_gradient_checkpointing={_yes(r)}\n"
    )
    return _file("run.sh", text)


def automodel(r: random.Random) -> Case:
    data = {
        "step_scheduler": {"global_batch_size": 64, "local_batch_size": r.choice((1, 2, 4))},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B",
        },
        "distributed": {
            "_target_": "nemo_automodel.components.distributed.fsdp2.FSDP2Manager", "tp_size": r.choice((1, 2)), "cp_size": 1,
            "activation_checkpointing": _yes(r),
        },
        "packed_sequence": {"packed_sequence_size": 4096},
    }  # fmt: skip
    return _file("automodel.yaml", yaml.safe_dump(data), 8)


def litgpt(r: random.Random) -> Case:
    data = {
        "checkpoint_dir": "checkpoints/meta-llama/Llama-3.1-8B", "precision": "bf16-true", "devices": 8,
        "train": {
            "global_batch_size": 64, "micro_batch_size": r.choice((1, 2, 4)), "lr_warmup_steps": 50, "max_seq_length": 2048,
        },
    }  # fmt: skip
    return _file("litgpt.yaml", yaml.safe_dump(data))


def megatron_deepspeed(r: random.Random) -> Case:
    text = (
        "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --pipeline-model-parallel-size 1 --num-layers 32 "
        f"--tensor-model-parallel-size {r.choice((2, 4, 8))} --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
        f"--max-position-embeddings 2048 --micro-batch-size {r.choice((1, 2))} --global-batch-size 64 --fp16 --deepspeed "
        f"--zero-stage {r.choice((0, 1))} --vocab-size 50304 {r.choice(('', '--checkpoint-activations'))}\n"
    )
    return _file("run.sh", text)


GENERATORS: Mapping[str, Callable[[random.Random], Case]] = {
    generate.__name__: generate
    for generate in (
        megatron, megatron_experts, bridge, nemo, swift_megatron, primus, megatron_deepspeed, torchtitan_file, torchtitan_flags,
        deepspeed, accelerate, trainer_flags, trl, llama_factory, axolotl, torchtune_file, torchtune_command, lightning, unsloth,
        foundry, nanotron, maxtext, olmo, openrlhf, verl_sft, automodel, litgpt,
    )
}  # fmt: skip


# ── edits, of the text of a file or of its data ─────────────────────────────────────────────────────────────


def with_change(case: Case, change: Change) -> str:
    """The text of a file as a user edits it, who knows its form and nothing of what was read of it."""
    ending = case.name.rpartition(".")[2]
    if ending in ("yaml", "yml", "json"):
        return _with_keys(yaml.safe_load(case.text), change, ": ", yaml.safe_load, json.dumps)
    if ending == "toml":
        return _with_keys(tomllib.loads(case.text), change, " = ", _toml_value, tomlkit.dumps)
    return (_with_arguments if ending == "py" else _with_flags)(case.text, change)


def _toml_value(text: str) -> object:
    return tomllib.loads(f"value = {text}")["value"]


def _with_keys(
    data: dict[str, object],
    change: Change,
    mark: str,
    load: Callable[[str], object],
    dump: Callable[[dict[str, object]], str],
) -> str:
    """Keys of tables set and taken away."""
    for word in (*change.set, *change.remove):
        path, _, value = word.partition(mark)
        *tables, last = path.split(".")
        place = data
        for table in tables:
            place = place.setdefault(table, {})  # type: ignore[assignment]  # a table of tables
        if word in change.set:
            place[last] = load(value)
        else:
            del place[last]
    return dump(data)


def _with_flags(text: str, change: Change) -> str:
    """Flags and overrides of a command, the last lines of which it is."""
    for word in (*change.remove, *(re.split(r"[ =]", word)[0] for word in change.set)):
        text = re.sub(rf"(?m)^export {re.escape(word)}=.*\n", "", text)
        flag = rf"(?<!\S){re.escape(word)}(?![^\s=])(?:=\S*|(?: +(?!--|\S+=)(?:'[^']*'|[^\s\\]+))*)"
        text = re.sub(flag, "", text)
    text = re.sub(r"\\\n\s*(?=\\\n|$)", "", text)
    return f"{text.rstrip()} {' '.join(change.set)}\n"


def _with_arguments(text: str, change: Change) -> str:
    """Keyword arguments of calls: in the place of those that stand there, else beside the batch of a device."""
    for word in change.set:
        name, _, value = word.partition("=")
        there = re.compile(rf"\b{re.escape(name)}=(?:'[^']*'|\"[^\"]*\"|[\w.]+(?: \* \w+)?)")
        if there.search(text):
            text = there.sub(f"{name}={value}", text, count=1)
        else:
            text = text.replace(
                "per_device_train_batch_size=", f"{name}={value}, per_device_train_batch_size=", 1
            )
    return text
