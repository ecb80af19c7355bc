"""Launch files of many engines: whose they are, how they split a job, and what of them has no price.

Texts are made up in the forms of public files and issues; what is right of them is in their engines' own
sources, named beside each.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from app.reports.audit.report import audit_answer
from app.reports.audit.summary import summary_of
from costmodel.kernels.tables import load_calibration
from costmodel.memory.fit import fit_of
from planner.audit.audit import Audit, audited
from planner.audit.job import Job, audited_job
from planner.audit.read import Reading, read_texts
from planner.audit.spelling import spelled_change, spelled_words
from planner.audit.words import family_named
from planner.questions.flags import Flags

MEGATRON = """\
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention {groups} --swiglu --disable-bias-linear \\
  --untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \\
  --micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer {more}
"""
EXPERTS = "--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --expert-model-parallel-size 8"
GROUPS = "--num-query-groups 8"


def reading_of(text: str, name: str = "run.sh") -> Reading:
    return read_texts({name: text})


def job(text: str, name: str = "run.sh", **flags: str) -> Job:
    return audited_job(reading_of(text, name), Flags(**{"gpu": "h100-sxm", **flags}))


def audit(text: str, name: str = "run.sh", **flags: str) -> Audit:
    return audited(reading_of(text, name), Flags(**{"gpu": "h100-sxm", **flags}), load_calibration())


def kinds(found: Audit) -> dict[str, str]:
    return {finding.rule: finding.kind for finding in found.findings}


def megatron(*, nodes: int = 2, groups: str = GROUPS, more: str = "") -> str:
    return MEGATRON.format(nodes=nodes, groups=groups, more=more)


@pytest.mark.parametrize(("tp", "expert_tp"), [(1, 1), (2, 2), (4, 4)])
def test_an_expert_is_shared_by_tensor_ranks_where_megatron_is_told_nothing(tp, expert_tp):
    """Its default is None, which `ModelParallelConfig` takes as the tensor degree."""
    more = f"{EXPERTS.replace('size 8', 'size 4')} --tensor-model-parallel-size {tp} --sequence-parallel"
    assert job(megatron(more=more)).layout.expert_tp == expert_tp
    assert job(megatron(more=f"{more} --expert-tensor-parallel-size 1")).layout.expert_tp == 1


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_mixture_that_ran_on_80_gb_fits():
    """Eight experts of two tensor ranks each on 16 GPUs (NVIDIA/Megatron-LM#756 ran so at 5.47 s a step)."""
    more = f"{EXPERTS} --tensor-model-parallel-size 2 --sequence-parallel --overlap-grad-reduce --overlap-param-gather"
    found = audit(megatron(more=more))
    assert found.job.layout.expert_tp == 2
    assert found.predicted.peak_memory_bytes / 2**30 == pytest.approx(75.3, abs=1.5)


def test_grouped_attention_without_a_number_has_one_group():
    """``--num-query-groups`` is 1 in Megatron-LM's arguments."""
    assert job(megatron(groups="")).request.model.num_key_value_heads == 1
    assert job(megatron()).request.model.num_key_value_heads == 8


@pytest.mark.usefixtures("searched_in_nightly")
def test_gpus_of_the_command_line_take_the_place_of_a_templates():
    text = megatron(
        nodes=1, more="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel"
    )
    assert kinds(audit(text))["gpus"] == "illegal"
    found = audit(text, gpus="128")
    assert "illegal" not in kinds(found).values()
    assert (found.job.layout.dp, found.job.layout.num_gpus) == (1, 128)
    assert found.predicted is not None


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [("global_batch_size", "128", "batch"), ("sequence_length", "4096", "sequence-limit")],
)
def test_a_count_of_the_command_line_lifts_what_hangs_on_the_files(flag, value, rule):
    wrong = {"batch": ("size 128", "size 127"), "sequence-limit": ("seq-length 4096", "seq-length 8192")}[
        rule
    ]
    text = megatron(more="--tensor-model-parallel-size 1").replace(*wrong)
    assert kinds(audit(text)).get(rule) == "illegal"
    assert job(text, **{flag: value}).layout is not None


PRIMUS = """\
modules:
  pre_trainer:
    framework: megatron
    model: llama3.1_70B.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: 256
      seq_length: 8192
      tensor_model_parallel_size: 8
      pipeline_model_parallel_size: 4
"""
NEMO_RL = """\
grpo:
  num_prompts_per_step: 64
policy:
  model_name: meta-llama/Llama-3.1-8B
  train_global_batch_size: 512
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: {tp}
    pipeline_model_parallel_size: {pp}
  generation:
    colocated:
      enabled: {colocated}
{resources}cluster:
  num_nodes: {nodes}
  gpus_per_node: {each}
"""


def nemo_rl(*, nodes=8, each=8, tp=2, pp=1, colocated="true", resources="") -> str:
    return NEMO_RL.format(nodes=nodes, each=each, tp=tp, pp=pp, colocated=colocated, resources=resources)


def resources(**sizes: int) -> str:
    return "      resources:\n" + "".join(f"        {name}: {size}\n" for name, size in sizes.items())


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        (megatron(more="--tensor-model-parallel-size 8"), "run.sh", {}),
        (PRIMUS, "p.yaml", {"model": "llama-3.1-70b", "gpus": "64"}),
    ],
)
def test_tensor_parallelism_without_a_word_of_sequences_is_legal(text, name, flags):
    """Only overlap of its messages and experts ask for split sequences."""
    found = audit(text, name, **flags)
    assert {"illegal", "unpriced"}.isdisjoint(kinds(found).values())
    assert found.predicted is not None


def test_primus_splits_sequences_as_its_base_has_it():
    """``sequence_parallel: true`` and ``tp_comm_overlap: false`` of its language_model.yaml."""
    found = job(PRIMUS, "p.yaml", model="llama-3.1-70b", gpus="64")
    assert found.layout.sequence_parallel
    assert "layout.sequence_parallel" not in {one.field for one in found.unsettled}


@pytest.mark.parametrize(
    ("apart", "world", "dp"),
    [
        ({"colocated": "true"}, 64, 32),
        ({"colocated": "false", "resources": resources(num_nodes=4, gpus_per_node=8)}, 32, 16),
        ({"colocated": "false", "nodes": 1, "resources": resources(gpus_per_node=4)}, 4, 2),
    ],
)
def test_gpus_that_generate_answers_train_nothing(apart, world, dp):
    facts = reading_of(nemo_rl(**apart), "rl.yaml").facts
    assert (facts.count("cluster.num_gpus"), facts.count("layout.dp")) == (world, dp)


def test_a_number_of_generating_gpus_that_is_not_told_is_not_made_up():
    facts = reading_of(nemo_rl(colocated="false"), "rl.yaml").facts
    assert {"cluster.num_gpus", "layout.dp"}.isdisjoint(facts.by_field)


VERL = (Path(__file__).parent / "files" / "verl_fsdp.sh").read_text(encoding="utf-8")
SLIME = (Path(__file__).parent / "files" / "slime_rl.sh").read_text(encoding="utf-8")
TUNED = "cutoff_len: 2048\nper_device_train_batch_size: 1\nfinetuning_type: full\nmodel_name_or_path: org/x\n"
SFT = "accelerate launch --num_processes 8 train.py --model_name_or_path org/x --max_length 2048 "
DPO_CLASS = (
    "from trl import DPOConfig, DPOTrainer\n"
    "args = DPOConfig(per_device_train_batch_size=2, gradient_checkpointing=True, max_length=1024)\n"
    "trainer = DPOTrainer(model='org/x', args=args)\n"
)
MORE_THAN_TRAINING = {
    "verl": (VERL, "verl.sh"),
    "slime": (SLIME, "slime.sh"),
    "ms-swift": ("NPROC_PER_NODE=8 megatron rlhf --model org/x --tensor_model_parallel_size 2 --max_length 2048 --rlhf_type grpo",
                 "s.sh"),
    "LLaMA-Factory": (f"{TUNED}stage: dpo\n", "l.yaml"),
    "Axolotl": ("base_model: org/x\nsequence_len: 2048\nmicro_batch_size: 1\nrl: grpo\n", "a.yaml"),
    "TRL": (f"{SFT}--per_device_train_batch_size 1 --gradient_checkpointing --num_generations 8", "t.sh"),
    "Megatron-LM": (megatron(more="--tensor-model-parallel-size 2 --perform-rl-step"), "run.sh"),
    "a script's name": (f"{SFT}--per_device_train_batch_size 1 --gradient_checkpointing".replace("train.py", "trl/scripts/dpo.py"),
                        "d.sh"),
    "a command of TRL": ("trl kto --model_name_or_path org/x --per_device_train_batch_size 1 --max_length 2048 --bf16", "k.sh"),
    "a class": (DPO_CLASS, "d.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE_THAN_TRAINING)
def test_a_step_that_is_more_than_training_is_priced_as_none(name):
    """Neither a layout nor a time nor a change is shown of it, and the reason is."""
    text, path = MORE_THAN_TRAINING[name]
    found = audit(text, path, model="llama-3.1-8b", gpus="32", sequence_length="4096")
    assert (found.predicted, found.best, found.changes, found.job.layout) == (None, None, (), None)
    assert found.job.missing[0].startswith("a step that is training alone")
    told = "\n".join(map(str, audit_answer(found).sections))
    assert "priced as" not in told
    assert "('layout', " not in told


VERL_UPDATE = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=1024 "
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=5 "
    "trainer.n_gpus_per_node=8 trainer.nnodes=4"
)
PPO = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 --pretrain org/llama-3-8b "
    "--micro_train_batch_size 8 --train_batch_size 128 --rollout_batch_size 1024 --prompt_max_len 1024 "
    "--generate_max_len 1024 --zero_stage 3 --bf16 --gradient_checkpointing"
)
UPDATES = {
    "OpenRLHF": (PPO, "ppo.sh", 8, 128, 2048),
    "NeMo-RL": (nemo_rl(), "rl.yaml", 32, 512, 4096),
    "NeMo-RL beside": (
        nemo_rl(colocated="false", resources=resources(num_nodes=4, gpus_per_node=8)), "rl.yaml", 16, 512, 4096,
    ),
    "NeMo-RL over FSDP": (
        nemo_rl().replace("megatron_cfg", "dtensor_cfg").replace("r_model", "r"), "rl.yaml", 32, 512, 4096,
    ),
    "verl": (
        VERL_UPDATE, "verl.sh", 32, 1280, 1536,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_the_policy_is_priced_and_never_as_the_step(name):
    """What an update reads is stated: its answers and their length; no verdict and no advice rests on it."""
    text, path, replicas, batch, length = UPDATES[name]
    found = audit(text, path)
    parts = (found.job.layout.replicas, found.job.request.job.global_batch_size)
    assert (*parts, found.job.request.job.sequence_length) == (replicas, batch, length)
    assert (found.memory.word, found.best, found.changes) == ("not settled", None, ())
    first = "\n".join(summary_of(found))
    assert "an update of the policy alone is priced" in first
    assert "a step takes" not in first


def test_ranks_that_degrees_do_not_divide_are_those_of_the_file():
    """The file counts 8; every fix of one axis is the same degree, which keeps all its laws: 32, 14,336 and 8."""
    found = audit(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 3 --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16",
        "tp.sh", gpu="h100-sxm",
    )  # fmt: skip
    stopped = {each.rule: each for each in found.findings if each.kind == "illegal"}
    assert stopped["gpus"].message.startswith("8 ranks are no multiple of tp 3")
    assert {stopped[rule].fix for rule in ("heads", "kv-heads")} == {"set --tensor-model-parallel-size 2"}
    assert not found.reading.presumed


def test_files_that_have_the_best_layout_are_the_best():
    """No distance of nothing and no tie: it is the best plan itself."""
    text = (
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\ndeepspeed: ds_z2.json\n"
        "cutoff_len: 4096\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
        "disable_gradient_checkpointing: true\n"
    )
    found = audit(text, "l.yaml", gpus="16")
    assert found.best is not None
    assert (found.is_best, found.best.layout) == (True, found.job.layout)
    told = "\n".join(summary_of(found))
    assert "the layout of the files is the best" in told
    assert "over the best" not in told


VERL_SFT = (
    "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-7B "
    "data.max_length=2048 data.train_batch_size=128 data.micro_batch_size_per_gpu=2"
)
VERL_MEGATRON = f"{VERL_UPDATE} actor_rollout_ref.actor.strategy=megatron"


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        (VERL_UPDATE, ("full", "default")),
        (f"{VERL_UPDATE} actor_rollout_ref.actor.strategy=fsdp2", ("full", "default")),
        (f"{VERL_UPDATE} actor_rollout_ref.model.enable_gradient_checkpointing=False", ("none", "stated")),
        (VERL_SFT, ("full", "default")),
        (f"{VERL_SFT} model.enable_gradient_checkpointing=False", ("none", "stated")),
        (VERL_MEGATRON, None),
    ],
)
def test_verl_recomputes_layers_under_fsdp_where_nothing_is_said(text, recompute):
    """verl/trainer/config/model/hf_model.yaml: enable_gradient_checkpointing is True, not read by Megatron workers."""
    fact = read_texts({"verl.sh": text}).facts.by_field.get("layout.recompute")
    assert (None if fact is None else (fact.value, fact.how)) == recompute


@pytest.mark.parametrize("said", ["stage: sft", "stage: pt", "rl: null"])
def test_words_of_training_alone_are_priced(said):
    assert job(f"{TUNED}{said}\n", "l.yaml", model="llama-3.1-8b", gpus="8").request is not None


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("left", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
@pytest.mark.parametrize("family", ["Primus", "NeMo"])
def test_a_degree_that_only_a_recipe_states_is_not_priced_as_one(family, left):
    text, name = {"Primus": (PRIMUS, "p.yaml"), "NeMo": (UNSETTLED["NeMo"][0], "n.yaml")}[family]
    shown = "\n".join(line for line in text.splitlines() if left not in line)
    found = audit(shown, name, model="llama-3.1-70b", gpus="64")
    assert (found.job.request, found.job.layout, found.predicted) == (None, None, None)
    assert "recipe" in found.job.missing[0]
    assert audit(text, name, model="llama-3.1-70b", gpus="64").job.layout is not None


DEEPSPEED = """\
deepspeed {head} pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --num-layers 32 \\
  --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 \\
  --global-batch-size 64 --bf16 --deepspeed --deepspeed_config ds.json --zero-stage 1 {more}
"""


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("more", "stops"), [("", False), ("--sequence-parallel", True)])
def test_megatron_deepspeed_asks_for_one_queue_where_sequences_are_split(more, stops):
    """Its arguments.py switches asynchronous sums off beside ``--deepspeed`` before it looks."""
    found = audit(DEEPSPEED.format(head="--num_gpus 8", more=more))
    assert found.reading.family.name == "Megatron-DeepSpeed"
    assert ("cuda-connections" in kinds(found)) is stops


SWIFT = """\
NPROC_PER_NODE=8 NNODES={nodes} megatron sft --model org/some-model --tensor_model_parallel_size {tp} \\
  --pipeline_model_parallel_size {pp} --micro_batch_size 1 --global_batch_size 16 --max_length 4096 \\
  --sequence_parallel true --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 {more}
"""


def swift(*, nodes=8, tp=8, pp=4, more="") -> str:
    return SWIFT.format(nodes=nodes, tp=tp, pp=pp, more=more)


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_launcher_sets_what_it_sets():
    """ms-swift's own launcher: the distributed optimizer, one queue, experts of one rank."""
    found = audit(swift(nodes=1, pp=1), model="llama-3.1-8b")
    assert found.reading.family.name == "ms-swift"
    assert (found.job.layout.zero_stage, found.job.layout.recompute) == (1, "full")
    assert {"cuda-connections", "no-distributed-optimizer"}.isdisjoint(kinds(found))


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(("model", "stops"), [("glm-4.5-air", True), ("qwen3-30b-a3b", False)])
def test_rules_of_an_engine_see_the_model_of_the_command_line(model, stops):
    """46 layers do not divide by four stages, 48 do."""
    more = "--expert_model_parallel_size 8 --expert_tensor_parallel_size 1"
    assert (kinds(audit(swift(more=more), model=model)).get("layers") == "illegal") is stops


AXOLOTL = """\
base_model: org/some-model
sequence_len: {length}
micro_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
{more}
"""


@pytest.mark.usefixtures("searched_in_nightly")
def test_rotary_positions_beyond_a_release_are_priced_where_no_engine_counts_them():
    found = audit(AXOLOTL.format(length=16384, more=""), "a.yaml", model="llama-3-8b", gpus="1")
    assert found.job.request.job.sequence_length > 8192
    assert "illegal" not in kinds(found).values()
    assert found.predicted is not None


@pytest.mark.usefixtures("searched_in_nightly")
def test_what_a_profile_does_not_price_is_priced_by_that_of_a_like_engine():
    """Axolotl splits sequences over FSDP ranks: torchtitan's profile prices that, and it is said."""
    more = "dp_shard_size: 4\nsequence_parallel_degree: 2"
    found = audit(AXOLOTL.format(length=4096, more=more), "a.yaml", model="llama-3-8b")
    assert (kinds(found), found.job.layout.cp, found.job.request.stack) == ({}, 2, "torchtitan")
    assert any("priced as torchtitan, since pytorch has no price of cp" in text for text in found.job.assumed)


ADAPTERS = {
    "ms-swift": (swift(nodes=1, pp=1, more="--tuner_type lora --lora_rank 8"), "s.sh"),
    "ms-swift before": (swift(nodes=1, pp=1, more="--train_type lora --target_modules all-linear"), "s.sh"),
    "Axolotl": (AXOLOTL.format(length=2048, more="adapter: lora\nlora_r: 32\nlora_target_linear: true"), "a.yaml"),
    "Axolotl in four bits": (AXOLOTL.format(length=2048, more="adapter: qlora\nload_in_4bit: true"), "a.yaml"),
    "LLaMA-Factory": (
        ("model_name_or_path: org/x\ncutoff_len: 2048\nper_device_train_batch_size: 1\nfinetuning_type: lora\n"
        "lora_target: q_proj,v_proj\n"),
        "l.yaml",
    ),
    "TRL": (
        ("accelerate launch --num_processes 8 sft.py --model_name_or_path org/x --max_length 2048 "
        "--per_device_train_batch_size 1 --gradient_checkpointing --use_peft --lora_r 16 --lora_alpha 16"),
        "t.sh",
    ),
    "a rank alone": (
        ("accelerate launch --num_processes 8 sft.py --model_name_or_path org/x --max_length 2048 "
        "--per_device_train_batch_size 1 --gradient_checkpointing --lora_r 16"),
        "t.sh",
    ),
    "NeMo": (
        ("trainer: {num_nodes: 1, devices: 8}\nmodel:\n  encoder_seq_length: 2048\n  tensor_model_parallel_size: 2\n"
        "  pipeline_model_parallel_size: 1\n  global_batch_size: 64\n  micro_batch_size: 1\n  peft:\n    peft_scheme: lora\n"),
        "n.yaml",
    ),
}  # fmt: skip


@pytest.mark.parametrize("tool", ADAPTERS)
def test_an_adapter_is_never_priced_as_a_whole_model(tool):
    text, name = ADAPTERS[tool]
    found = job(text, name, model="llama-3.1-8b", gpus="8")
    if found.request is not None:
        assert found.request.job.adapter is not None
    else:
        assert any("adapter" in why for why in found.missing)


PEFT = """from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.3", torch_dtype="bfloat16")
{}
args = TrainingArguments(output_dir="o", per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True)
"""
LORA = 'LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])'
PLACES = (
    f"model = get_peft_model(model, {LORA})",
    f"model = get_peft_model(model, peft_config={LORA})",
    f"model = get_peft_model(model, peft.{LORA})",
    f"student = get_peft_model(model, {LORA})",
    f"get_peft_model(model, {LORA})",
    f"cfg = {LORA}\nmodel = get_peft_model(model, cfg)",
    f"trainer = Trainer(model=get_peft_model(model, {LORA}))",
)


@pytest.mark.parametrize("place", PLACES)
def test_an_adapter_is_its_class_wherever_a_program_builds_it(place):
    found = job(PEFT.format(place), "p.py", gpus="8", sequence_length="2048")
    assert found.request is not None, found.missing
    assert found.request.job.adapter.words == "lora:r=16,targets=attention,alpha=32"


@pytest.mark.parametrize("more", [(), tuple(f"expert_{n}_proj" for n in range(40))])
def test_names_of_matrices_are_cut_between_two(more):
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", *more]
    found = job(
        PEFT.format(f"model = get_peft_model(model, LoraConfig(r=8, target_modules={names}))"),
        "p.py",
        gpus="8",
        sequence_length="2048",
    )
    (line,) = [line for line in found.assumed if "every matrix" in line]
    told = line.partition(": ")[2].removesuffix(" is stated").removesuffix(", …").split(",")
    assert told == names[: len(told)]
    assert len(told) >= 7


def test_an_adapter_that_is_given_holds_over_files():
    text, name = ADAPTERS["a rank alone"]
    found = job(text, name, model="llama-3.1-8b", gpus="8", adapter="lora:r=8")
    assert found.request.job.adapter.rank == 8


@pytest.mark.parametrize("said", ["full", "false", "none"])
def test_words_that_name_no_adapter_train_the_whole_model(said):
    text = "model_name_or_path: org/x\ncutoff_len: 2048\nper_device_train_batch_size: 1\nfinetuning_type: {}\nlora_rank: 8\n"
    found = job(text.format(said), "l.yaml", model="llama-3.1-8b", gpus="8")
    assert found.request.job.adapter is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ('"offload_optimizer": {"device": "cpu"}', "optimizer:1"),
        ('"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}', "parameters"),
        ('"offload_optimizer": {"device": "none"}', None),
        ('"offload_optimizer": {"device": "nvme"}', "not priced"),
    ],
)
def test_what_deepspeed_keeps_on_the_host_is_priced_there(state, words):
    texts = {"a.yaml": AXOLOTL.format(length=2048, more="deepspeed: z3.json")}
    texts["z3.json"] = f'{{"zero_optimization": {{"stage": 3, {state}}}}}'
    found = audited_job(read_texts(texts), Flags(gpu="h100-sxm", gpus="8", model="llama-3.1-8b"))
    if words == "not priced":
        assert found.request is None
        assert "disk" in found.missing[0]
    else:
        offload = found.request.job.offload
        assert (offload and offload.words) == words


ENGINES = {
    "OLMo-core": ("from olmo_core.train import TrainerConfig\n\ndef build():\n    return TrainerConfig(rank_microbatch_size=8192)\n\nmain(global_batch_size=1024 * 8192)\n", "o.py"),
    "NeMo AutoModel": ("step_scheduler:\n  global_batch_size: 64\n  local_batch_size: 2\nmodel:\n  _target_: nemo_automodel.Model.from_pretrained\ndistributed:\n  strategy: fsdp2\n  ep_size: 8\n", "m.yaml"),
    "LitGPT": ("checkpoint_dir: checkpoints/x\nlogger: litgpt.utils.CSV\ntrain: {micro_batch_size: 4}\n", "l.yaml"),
    "torchtune": ("model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n", "f.yaml"),
    "an unknown engine": ("workload:\n  gpus: 64\n  image: registry/x\nnetwork:\n  local_batch_size: 4\n  subnetworks: 8\n", "v.yaml"),
    "torchtitan": ("[parallelism]\ntensor_parallel_degree = 2\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n", "t.toml"),
    "ms-swift": (swift(), "s.sh"),
    "Megatron-LM": (megatron(more="--tensor-model-parallel-size 2"), "run.sh"),
    "NeMo-RL": (nemo_rl(), "rl.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_named_by_its_entry_point_or_its_own_keys(name):
    assert reading_of(*ENGINES[name]).family.name == name


def test_an_unknown_engine_is_not_priced_as_another():
    found = job(*ENGINES["an unknown engine"], model="llama-3.1-8b", gpus="64", sequence_length="4096")
    assert found.request is None
    assert "engine" in found.missing[0]


def test_half_of_a_model_is_not_priced():
    text = megatron(more="--tensor-model-parallel-size 1 --decoder-seq-length 128")
    assert "decoder" in job(text.replace("pretrain_gpt", "pretrain_t5")).missing[0]


@pytest.mark.parametrize("name", ["tensor-model", "pipeline-model", "context"])
def test_a_degree_that_only_a_run_knows_is_not_priced_as_one(name):
    found = job(megatron(more=f"--{name}-parallel-size $DEGREE"))
    assert found.request is None
    assert "only a run knows" in found.missing[0]


UNSETTLED = {
    "stated": (megatron(more="--tensor-model-parallel-size 2 --sequence-parallel"), "run.sh", set()),
    "words of a run": (megatron(more="--tensor-model-parallel-size 2 $EXTRA_ARGS"), "run.sh",
                       {"layout.recompute", "layout.sequence_parallel"}),
    "torchtitan": ("[parallelism]\ntensor_parallel_degree = 1\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n",
                   "t.toml", set()),
    "MaxText": ("ici_fsdp_parallelism: 8\nper_device_batch_size: 2\nmax_target_length: 4096\n", "m.yml",
                {"stack"}),
    "a MaxText policy": ("ici_fsdp_parallelism: 8\nmax_target_length: 4096\nremat_policy: of_next_year\n", "m.yml",
                         {"stack", "layout.recompute"}),
    "NeMo": (("trainer: {num_nodes: 1, devices: 8}\nmodel:\n  encoder_seq_length: 2048\n"
             "  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 1\n"
             "  global_batch_size: 64\n  micro_batch_size: 1\n"), "n.yaml",
             {"layout.zero_stage", "layout.recompute", "layout.sequence_parallel"}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSETTLED)
def test_what_decides_memory_and_is_not_known_is_told(name):
    """A verdict may not rest on it; see `planner.audit.unsettled`."""
    text, path, fields = UNSETTLED[name]
    flags = {} if path == "run.sh" else {"model": "llama-3.1-8b", "gpus": "8"}
    assert {one.field for one in job(text, path, **flags).unsettled} == fields


def test_torchtitan_shards_over_all_that_is_left_where_nothing_is_said():
    """``data_parallel_shard_degree`` is -1 in its configuration."""
    found = job(UNSETTLED["torchtitan"][0], "t.toml", model="llama-3.1-8b", gpus="8")
    assert (found.layout.dp, found.layout.zero_stage) == (8, 3)


def test_the_leanest_layout_takes_no_more_than_the_one_that_is_priced():
    found = job(UNSETTLED["NeMo"][0], "n.yaml", model="llama-3.1-8b", gpus="8")
    lean = found.leanest_layout
    assert (lean.zero_stage, lean.recompute, lean.sequence_parallel) == (3, "full", True)
    unbounded = job(UNSETTLED["MaxText"][0], "m.yml", model="llama-3.1-8b", gpus="8")
    assert unbounded.leanest_layout is None


def test_a_server_of_an_unknown_model_is_read():
    from planner.audit.serving.server import Unknown, server_of

    text = "vllm serve org/not-in-the-catalog --tensor-parallel-size 16 --max-model-len 4096"
    found = server_of(reading_of(text), model=None, gpu=None)
    assert isinstance(found, Unknown)
    assert found.missing[0].startswith("--model")
    assert reading_of(text).facts.count("layout.tp") == 16


MAXTEXT = "per_device_batch_size: 1\nmax_target_length: 4096\nremat_policy: full\n"


@pytest.mark.parametrize(
    ("more", "sharding"),
    [
        ("", (3, None)),
        ("ici_fsdp_parallelism: -1\n", (3, None)),
        ("ici_fsdp_parallelism: 8\n", (3, 8)),
        ("ici_fsdp_parallelism: 8\ndcn_fsdp_parallelism: 2\n", (3, 16)),
        ("ici_fsdp_parallelism: 8\ndcn_fsdp_parallelism: 4\n", (3, None)),
        ("ici_fsdp_parallelism: 1\nici_data_parallelism: 8\n", (0, None)),
    ],
)
def test_maxtext_shards_over_its_fsdp_axes(more, sharding):
    """Within a slice all that is left, over slices none, where no word says it: its configs/base.yml."""
    layout = job(MAXTEXT + more, "m.yml", model="llama-3.1-8b", gpus="32").layout
    assert (layout.zero_stage, layout.shard_degree) == sharding
    assert layout.recompute == "full"


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_published_configuration_of_maxtext_fits():
    """Sharded over 8 GPUs of a node and 32 nodes, a 70B is no job of 1,600 GiB a GPU."""
    more = "model_name: llama3.1-70b\nici_fsdp_parallelism: 8\ndcn_fsdp_parallelism: 32\n"
    found = audit(MAXTEXT + more, "m.yml", gpu="h200-sxm", gpus="256")
    assert found.memory.word == "fits"
    assert found.predicted.peak_memory_bytes < 140 * 2**30


SFT = "--model_name_or_path Qwen/Qwen2.5-32B --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --bf16"
NAMED_FILES = {
    "DeepSpeed's": (f"torchrun --nproc_per_node 8 train.py {SFT} --max_seq_length 4096 --deepspeed ds_z2.json",
                    "ds_z2.json", '{"zero_optimization": {"stage": 2}}'),
    "Accelerate's": (f"accelerate launch --config_file multi.yaml --num_processes 8 sft.py {SFT} --max_length 4096",
                     "multi.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\n"),
}  # fmt: skip


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("whose", NAMED_FILES)
def test_a_file_that_is_named_and_not_given_may_make_a_job_fit(whose):
    """It states sharding, offload and recomputation: no job is said not to fit without it."""
    text, name, content = NAMED_FILES[whose]
    alone = audit(text)
    assert alone.predicted.out_of_memory_chance > 0.9
    assert (alone.memory.word, alone.fits) == ("not settled", None)
    assert any(name in why for why in alone.memory.why)
    given = audited(read_texts({"run.sh": text, name: content}), Flags(gpu="h100-sxm"), load_calibration())
    assert given.memory.word == "does not fit"


def test_a_program_of_pytorch_fsdp_recomputes_by_itself():
    """`--activation_checkpointing` is 1 and `--sharding_strategy` full where its command has neither."""
    text = (
        "torchrun --nproc_per_node 8 --nnodes 4 train.py --max_context_width=8192 --hidden_width=4096 "
        "--num_layers=32 --num_heads=32 --intermediate_size=14336 --train_batch_size=1 {more}"
    )
    layouts = [job(text.format(more=more)).layout for more in ("", "--activation_checkpointing=0")]
    assert [layout.recompute for layout in layouts] == ["full", "none"]
    assert [layout.zero_stage for layout in layouts] == [3, 3]
    words = [word for change in audit(text.format(more="")).changes for word in change.set]
    assert not any("gradient_checkpointing" in word for word in words)


def test_what_is_faster_than_all_that_fits_is_no_tie_and_no_gain():
    """A tight job beside a best plan that fits: the distance speaks of memory, and no change gains time."""
    text = (
        "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --gradient_checkpointing true "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --max_seq_len 18432 --bf16 --deepspeed zero3"
    )
    found = audit(text, gpu="a100-sxm-80gb")
    assert (found.memory.word, found.slower_by < 0) == ("tight", True)
    assert found.outruns_what_fits
    assert not found.tied
    assert found.distance_note == "faster than any layout that surely fits, and tight itself"
    assert all(change.seconds_gained <= 0 for change in found.changes if change.whole)
    slower = replace(found, changes=(replace(found.changes[0], whole=True, set=("--tp_size 2",)),))
    step = next(line for line in summary_of(slower) if line.startswith("a step takes"))
    assert step.endswith("surely fits, and tight itself)")


TRAINED = "per_device_train_batch_size=1, gradient_accumulation_steps=8, bf16=True"
STARTER = (
    "accelerate launch --config_file a.yaml train.py --model_name_or_path Qwen/Qwen3-8B --bf16 "
    "--per_device_train_batch_size 1 --max_length 4096 --gradient_accumulation_steps 8"
)


def test_words_of_the_launcher_stand_in_its_file_alone():
    """`TrainingArguments` has no field parallelism_config_tp_size, and HfArgumentParser no such flag."""
    fields = (("tp", 2), ("dp", 8))
    starter = "distributed_type: FSDP\nnum_processes: 16\nfsdp_config:\n  fsdp_version: 2\n"
    known = spelled_change(read_texts({"r.sh": STARTER, "a.yaml": starter}), fields)
    assert known[0] == "parallelism_config.parallelism_config_tp_size: 2"
    text = f"from transformers import Trainer, TrainingArguments\nargs = TrainingArguments({TRAINED})\n"
    for texts in ({"train.py": text}, {"r.sh": STARTER.replace("--config_file a.yaml ", "")}):
        assert spelled_change(read_texts(texts), fields) == ()


def test_arguments_of_a_program_are_no_flags_of_the_script_that_starts_it():
    """What Python states is changed in Python, by the name of the argument."""
    text = f"from transformers import Trainer, TrainingArguments\nargs = TrainingArguments({TRAINED})\n"
    reading = read_texts({"run.sh": "torchrun --nproc-per-node 8 train.py\n", "train.py": text})
    words = spelled_change(reading, (("microbatch_size", 2), ("recompute", "full")))
    assert "per_device_train_batch_size=2" in words
    assert not [word for word in words if word.startswith("-")]


@pytest.mark.parametrize("variable", ["recipe", "r"])
def test_a_recipe_is_changed_by_its_own_variable(variable: str):
    """What a function of NeMo returns has the name that the file gives it."""
    strategy = f"{variable}.trainer.strategy.tensor_model_parallel_size"
    text = (
        f'from nemo.collections import llm\n{variable} = llm.llama3_70b.pretrain_recipe(name="x", num_nodes=8, '
        f"num_gpus_per_node=8)\n{strategy} = 4\n{variable}.data.global_batch_size = 256\n"
    )
    assert spelled_change(read_texts({"nemo.py": text}), (("tp", 8),)) == (f"{strategy} = 8",)


def test_a_stage_of_a_text_of_json_is_changed_in_its_key():
    """A here-document holds DeepSpeed's configuration: no flag of the program overrides it."""
    document = 'cat > z.json <<EOF\n{"zero_optimization": {"stage": 2}}\nEOF\n'
    command = f"deepspeed --num_gpus 8 {STARTER.partition('a.yaml ')[2]} --deepspeed z.json\n"
    reading = read_texts({"r.sh": document + command})
    assert spelled_change(reading, (("zero_stage", 3),)) == ("zero_optimization.stage: 3",)


def test_words_of_a_change_stand_where_they_are_read():
    """No command overrides a DeepSpeed file, and LLaMA-Factory has a word of its own against checkpointing."""
    script = (
        "llamafactory-cli train --stage sft --finetuning_type lora --lora_target q_proj,v_proj "
        "--model_name_or_path meta-llama/Meta-Llama-3-8B --deepspeed z3.json --cutoff_len 1024 --bf16 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 2"
    )
    texts = {"run.sh": script, "z3.json": '{"zero_optimization": {"stage": 3}}'}
    found = audited(
        read_texts(texts), Flags(gpu="a100-sxm-80gb", model="llama-3-8b", gpus="8"), load_calibration()
    )
    words = [word for change in found.changes for word in change.set]
    assert "--disable_gradient_checkpointing true" in words
    assert any(word.startswith("zero_optimization.stage: ") for word in words)
    assert not any(word.startswith(("--zero_optimization", "--gradient_checkpointing")) for word in words)


def test_a_recipe_is_told_no_keys_that_nothing_shows_it_has():
    """Keys of NeMo-RL's Megatron part are not those of Megatron-LM."""
    reading = reading_of(nemo_rl(), "grpo.yaml")
    stated = "policy.megatron_cfg.tensor_model_parallel_size: 4"
    assert spelled_change(reading, (("tp", 4),)) == (stated,)
    assert spelled_change(reading, (("recompute", "full"),)) == ()


def test_a_list_in_python_is_a_list():
    """Torchtitan's split of a model is a list of lists of names, not a text."""
    text = "config.training.seq_len = 8192\nconfig.parallelism.tensor_parallel_degree = 2\n"
    reading = reading_of(text, "c.py")
    reading = replace(reading, family=family_named("torchtitan"))
    (word,) = spelled_words(reading, {"parallelism.module_fqns_per_model_part": [["a"], ["b"]]}, ())
    assert word == 'cfg.parallelism.module_fqns_per_model_part = [["a"], ["b"]]'


SMALL_LLAMA = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 24,
  "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
  "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": true, "hidden_act": "silu"}"""


def test_where_nothing_surely_fits_what_comes_closer_is_proposed(tmp_path):
    """1.7B of parameters at 49,152 tokens on one GPU: checkpointing brings the peak below its memory."""
    text = (
        "base_model: some/model\nsequence_len: {length}\nmicro_batch_size: 1\ngradient_checkpointing: false\n"
    )
    config = tmp_path / "config.json"
    config.write_text(SMALL_LLAMA, encoding="utf-8")
    flags = {"model": str(config), "gpus": "1"}
    found = audit(text.format(length=49152), "a.yaml", **flags)
    assert (found.best, found.memory.word) == (None, "does not fit")
    (change,) = found.changes
    assert change.set == ("gradient_checkpointing: true",)
    assert change.out_of_memory_chance < found.memory.chance / 2
    longest = audit(text.format(length=131072), "a.yaml", **flags)
    assert all(fit_of(change.out_of_memory_chance) != "does not fit" for change in longest.changes)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
    ],
)
def test_a_tuned_model_has_the_sizes_of_its_base(name, base):
    text = f"base_model: {name}\nsequence_len: 4096\nmicro_batch_size: 1\n"
    assert job(text, "a.yaml", gpus="64").request.model.name == base


def test_words_that_the_engine_would_refuse_beside_the_new_ones_are_taken_away():
    """Modules that are recomputed go where whole layers are; the file's dispatcher, which is no slower, stays."""
    text = (Path(__file__).parent / "files" / "deepseek_v3.sh").read_text(encoding="utf-8")
    found = audit(text.replace("4096", "8192"), gpu="h100-sxm")
    whole = next(change for change in found.changes if change.whole)
    assert "--recompute-granularity full" in whole.set
    assert "--recompute-modules" in whole.remove
    assert not any("moe" in word for word in (*whole.set, *whole.remove))


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("--load /data/Qwen3-30B-A3B-mcore", "qwen3-30b-a3b"), ("--load glm-4.5-air-mcore", "glm-4.5-air"),
        ("--model org/Llama-3.1-8B-Instruct/", "llama-3.1-8b"),
    ],
)  # fmt: skip
def test_a_model_is_known_by_the_name_of_its_checkpoint(said, name):
    """Whatever format it was converted to."""
    assert audit(swift().replace("--model org/some-model", said)).job.request.model.name == name


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("--load $MODEL_PATH", "no file names the model, or only a run knows it: give --model NAME"),
        ("--model org/glm-5-class", "no model here is called glm-5-class: give --model NAME such as glm-5,"),
        ("--model org/some-model", "no model here is called some-model: give --model NAME"),
    ],
)
def test_a_model_that_no_file_names_is_asked_for_with_the_reason(said, reason):
    found = audit(swift().replace("--model org/some-model", said))
    assert "--model" in found.job.missing
    assert any(doubt.startswith(reason) for doubt in found.doubts), found.doubts


def test_primus_names_its_model_by_a_file_with_a_default():
    """The default of a part of a value holds as that of a whole one."""
    text = PRIMUS.replace("llama3.1_70B.yaml", "${PRIMUS_MODEL:kimi_k2}.yaml")
    assert job(PRIMUS, "p.yaml", gpus="64").request.model.name == "llama-3.1-70b"
    assert job(text, "p.yaml", gpus="64").request.model.name == "kimi-k2"


@pytest.mark.parametrize(
    ("comment", "gpu"),
    [
        ("# p4de.24xlarge", "a100-sxm-80gb"),
        ("# ml.p5en.48xlarge", "h200-sxm"),
        ("# Standard_ND96isr_MI300X_v5", "mi300x"),
        ("# Standard_NC80adis_H100_v5", "h100-nvl"),
        ("# Standard_NC24ads_A100_v4", "a100-pcie-80gb"),
        ("# p4de.24xlarge-old", "h100-sxm"),
    ],
)
def test_an_instance_type_of_a_cloud_names_its_gpu(comment, gpu):
    """Types of instances are whole words; where none is named, the usual GPU is assumed."""
    found = audited_job(reading_of(f"{comment}\n{megatron()}"), Flags())
    assert {node.gpu for node in found.request.cluster.nodes} == {gpu}


EXPERTS_OF_AXOLOTL = """\
base_model: Qwen/Qwen3-30B-A3B
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
gradient_checkpointing: true
expert_parallel_size: 2
dp_shard_size: 2
fsdp_config:
  fsdp_version: 2
  reshard_after_forward: true
"""


def test_experts_of_axolotl_are_not_told_in_megatrons_words():
    """Its word is ``expert_parallel_size``; Megatron's is one of Accelerate's plugin."""
    found = audit(EXPERTS_OF_AXOLOTL, "a.yaml")
    assert (found.job.layout.ep, found.predicted is not None) == (2, True)
    assert not [word for change in found.changes for word in change.set if "expert_model" in word]


TITAN_LINES = """\
[titan] 2025-05-01 10:00:01,100 - root - INFO - Building 1-D device mesh with ['dp_shard'], [64]
[titan] 2025-05-01 10:00:06,100 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
{applied}[titan] 2025-05-01 10:00:07,100 - root - INFO - Trainer is initialized with local batch size 2, global batch size 128, \
gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)
[titan] 2025-05-01 10:00:44,100 - root - INFO - step: 10  loss: 10.1  memory: 52.21GiB(66.00%)  tps: 6,402  tflops: 370.5
[titan] 2025-05-01 10:01:10,100 - root - INFO - step: 20  loss: 9.1  memory: 52.21GiB(66.00%)  tps: 6,410  tflops: 371.0
"""
APPLIED = "[titan] 2025-05-01 10:00:06,300 - root - INFO - Applied selective activation checkpointing to the model\n"


@pytest.mark.parametrize(("applied", "recompute"), [(APPLIED, "selective-op"), ("", "none")])
def test_sentences_of_a_log_tell_engine_model_and_recomputation(applied, recompute):
    """What torchtitan says of the model that it builds; what it does not say is not settled."""
    found = job(TITAN_LINES.format(applied=applied), "run.log")
    assert (found.request.model.name, found.request.stack) == ("llama-3-8b", "torchtitan")
    assert (found.layout.recompute, found.layout.zero_stage, found.layout.dp) == (recompute, 3, 64)
    assert ("layout.recompute" in found.open_fields) is (not applied)


def test_a_folder_of_the_hub_names_the_model_of_a_log():
    """Transformers prints where it loads from."""
    line = "loading configuration file config.json from cache at /c/hub/models--Qwen--Qwen2.5-7B/snapshots/ab/config.json"
    text = f"{line}\n  Total train batch size (w. parallel, distributed & accumulation) = 128\n"
    assert reading_of(text, "run.log").facts.value("said.model") == "Qwen2.5-7B"


def test_a_tower_beside_a_language_model_is_named():
    """Its share of a step is no part of the price, and that stands below it."""
    found = job(
        f"{SFT}--per_device_train_batch_size 1 --vision_tower openai/clip", "v.sh", model="llama-3.1-8b"
    )
    assert any("openai/clip" in text for text in found.assumed)


@pytest.mark.parametrize("words", ["--max_source_length 512 --max_target_length 128", "--seq_length 2048"])
def test_a_length_alone_names_no_engine(words):
    """Sequence-to-sequence trainers and many scripts have words of MaxText's and Megatron-LM's names."""
    command = f"torchrun --nproc_per_node 8 train.py --model_name_or_path org/x --per_device_train_batch_size 4 {words}"
    assert reading_of(command).family.name == "HF Trainer"


@pytest.mark.parametrize(
    ("comment", "gpus"),
    [
        ("# 96 A100-SXM4-40GB", 96),
        ("# runs on 2 x A100 80GB", 2),
        ("# 4 nodes of 8 H100", None),
        ("# 2 epochs, H100", None),
        ("# from 8 to 16 H100", None),
    ],
)
def test_a_comment_counts_gpus_where_it_names_their_kind(comment, gpus):
    """Of nodes it counts what no reader may add up, and a range is no count."""
    assert reading_of(f"{comment}\n{AXOLOTL.format(length=2048, more='')}", "a.yaml").mentioned_gpus == gpus


def test_a_count_of_a_comment_that_a_layout_does_not_divide_is_none():
    """It speaks of something else, such as a node."""
    more = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel"
    text = megatron(more=more).replace("--nproc_per_node 8 --nnodes 2", "--nproc_per_node 8 --nnodes $N")
    found = audited_job(reading_of(f"# 8 H100\n{text}"), Flags(gpu="h100-sxm"))
    assert "--gpus" in found.missing


@pytest.mark.parametrize("command", ["trl sft", "accelerate launch trl/scripts/sft.py"])
def test_trls_own_commands_have_its_defaults(command):
    """`SFTConfig` recomputes and cuts samples at 1,024 tokens where nothing is said (trl/trainer/sft_config.py)."""
    words = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --bf16"
    found = job(f"{command} {words}", gpus="8")
    assert (found.layout.recompute, found.request.job.sequence_length) == ("full", 1024)


def test_a_configuration_that_a_command_is_handed_is_asked_for_by_its_name():
    """Nothing else of the job is in the script."""
    found = job("torchrun --nproc_per_node 8 -m axolotl.cli.train examples/llama-3/lora-8b.yml")
    assert "name examples/llama-3/lora-8b.yml too" in found.missing[0]


MESH = "model_name: llama2-70b\nmax_target_length: 4096\nici_fsdp_parallelism: 4\ndcn_data_parallelism: 4\n"


@pytest.mark.parametrize(
    ("more", "batch", "microbatch"),
    [
        ("ici_tensor_parallelism: 2\nper_device_batch_size: 2\n", 64, 4),
        ("ici_tensor_parallelism: 2\nper_device_batch_size: 0.5\n", 16, 1),
        ("per_device_batch_size: 2\ngradient_accumulation_steps: 4\n", 128, 2),
    ],
)
def test_maxtext_counts_samples_of_every_device(more, batch, microbatch):
    """Its pyconfig.py: ``int(num_devices * per_device_batch_size) * gradient_accumulation_steps``."""
    found = job(MESH + more, "m.yml")
    assert (found.request.job.global_batch_size, found.layout.microbatch_size) == (batch, microbatch)


def test_a_policy_that_has_no_price_is_told_as_stated():
    found = job(MESH + "per_device_batch_size: 1\nremat_policy: of_next_year\n", "m.yml")
    why = next(each.why for each in found.unsettled if each.field == "layout.recompute")
    assert "of_next_year is stated" in why


@pytest.mark.parametrize(
    ("backend", "worded"),
    [
        ("fsdp: [full_shard, auto_wrap]\n", False),
        ("deepspeed: zero.json\n", False),
        ("deepspeed: zero.json\n", True),
    ],
)
def test_a_copy_is_shared_in_parts_by_a_word_that_the_files_have(backend: str, worded: bool) -> None:
    """DeepSpeed's key is no word of a file over FSDP, and no advice: its releases no longer take it."""
    texts = {
        "tune.yml": f"base_model: mistralai/Mistral-7B-v0.1\nmicro_batch_size: 1\nsequence_len: 512\n{backend}"
    }
    if "zero" in backend:
        parts = ', "mics_shard_size": 4' if worded else ""
        texts["zero.json"] = f'{{"zero_optimization": {{"stage": 3{parts}}}}}'
    words = " ".join(spelled_change(read_texts(texts), (("shard_degree", 2),)))
    assert ("mics_shard_size" in words) is worded
