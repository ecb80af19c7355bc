"""Commands that stand where people keep them: in justfiles, Python, host lists, JSON behind a flag, recipes."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.layout import ParallelLayout
from planner.audit.audit import calibration_of
from planner.audit.changes import changes_of, running_of
from planner.audit.job import Job, audited_job
from planner.audit.read import Reading, read_texts
from planner.audit.words import FAMILIES
from planner.formats.justfile import script_of_justfile
from planner.formats.logs import measured_of
from planner.questions.flags import Flags

SFT = (
    "--model_name_or_path Qwen/Qwen3-8B --max_length 4096 --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --bf16"
)
JUST = f"""model := "Qwen/Qwen3-8B"
gpus := env_var_or_default("GPUS", "4")
# run it
train bs="2":
    uv run accelerate launch --num_processes {{{{gpus}}}} train.py {SFT.replace("Qwen/Qwen3-8B", "{{ model }}").replace("size 2", "size {{bs}}")}
"""
RUN = f"""import subprocess
N_GPUS = 4

def train():
    \"\"\"Run torchrun --nproc_per_node 8 other.py --model_name_or_path org/x.\"\"\"
    subprocess.run(f"torchrun --nproc_per_node {{N_GPUS}} train.py {SFT}", shell=True, check=True)
"""
POOL = f"""from google.cloud import aiplatform
job = aiplatform.CustomJob(worker_pool_specs=[{{
    "machine_spec": {{"machine_type": "a3-highgpu-8g"}}, "replica_count": 1,
    "container_spec": {{"command": ["torchrun"], "args": {["--nproc_per_node=4", "train.py", *SFT.split()]}}},
}}])
"""
HOSTS = f"""cat > hostfile <<EOF
worker-0 slots=2
worker-1 slots=2
EOF
deepspeed --hostfile=hostfile --launcher pdsh train.py {SFT} --deepspeed ds_z2.json
"""
STARTED = {
    "justfile": JUST,
    "modal_app.py": RUN,
    "vertex.py": POOL,
    "hosts.sh": HOSTS,
    "azure.yaml": (
        f"type: command\ncommand: python train.py {SFT}\ndistribution:\n  process_count_per_instance: 2\n"
        "resources:\n  instance_count: 2\n"
    ),
    "typed.sbatch": f"#SBATCH --nodes=2 --gpus-per-node=h100:2\nsrun python train.py {SFT}\n",
    "whole.sbatch": f"#SBATCH --nodes=2 --gpus=h100:4\nsrun python train.py {SFT}\n",
}


@pytest.mark.parametrize("name", STARTED)
def test_a_command_is_read_where_it_is_kept(name: str) -> None:
    """Four GPUs with two samples each, accumulated four times."""
    facts = read_texts({name: STARTED[name]}).facts
    counts = ("cluster.num_gpus", "layout.microbatch_size", "job.global_batch_size", "job.sequence_length")
    assert [facts.count(field) for field in counts] == [4, 2, 32, 4096]
    assert facts.value("said.model") == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("first", ["@torchrun", "#!/bin/sh\n    torchrun"])
def test_a_continued_line_of_a_recipe_keeps_its_flag(first: str) -> None:
    """Marks of just stand before a command alone: a line that goes on begins with dashes of its own."""
    text = f"train:\n    {first} --nproc-per-node 2 train.py \\\n      --max_length 4096 \\\n      {SFT}\n"
    assert "\n--max_length 4096 \\\n--model" in script_of_justfile(text)
    assert script_of_justfile("train:\n    -@rm a\n    @-rm b\n") == "\nrm a\nrm b\n"


def test_a_configuration_in_python_is_no_command() -> None:
    """What it sets is its job, though a text of it starts another."""
    text = f"{RUN}\nfrom trl import SFTConfig\nargs = SFTConfig(per_device_train_batch_size=1, gradient_checkpointing=True)\n"
    assert read_texts({"train.py": text}).facts.count("layout.microbatch_size") == 1


def test_a_table_behind_a_flag_is_read() -> None:
    """The Trainer takes DeepSpeed's configuration and FSDP's as JSON (transformers/training_args.py)."""
    stage = """--deepspeed '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'"""
    facts = read_texts({"run.sh": f"deepspeed --num_gpus 8 train.py {SFT} {stage}\n"}).facts
    assert facts.value("layout.zero_stage") == 3
    broken = f"deepspeed --num_gpus 8 train.py {SFT} --deepspeed '{{\"zero_optimization\": '\n"
    assert "layout.zero_stage" not in read_texts({"run.sh": broken}).facts.by_field


def test_a_module_of_trl_has_its_defaults() -> None:
    """trl/trainer/sft_config.py recomputes where nothing is said."""
    text = f"torchrun --nproc_per_node 8 -m trl.scripts.sft {SFT}\n"
    assert read_texts({"run.sh": text}).facts.value("layout.recompute") == "full"


def job(texts: dict[str, str], **flags: str) -> Job:
    return audited_job(read_texts(texts), Flags(gpu="h100-sxm", **flags))


REGISTRY = """from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.qwen3 import model_registry

def qwen3_32b():
    return Trainer.Config(
        model_spec=model_registry("32B"), training=TrainingConfig(local_batch_size=2, seq_len=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
    )
"""
PRIMUS = """modules:
  pre_trainer:
    framework: torchtitan
    model: llama3.1_8B-fp8.yaml
    overrides:
      training: {local_batch_size: 4, seq_len: 8192}
      parallelism: {tensor_parallel_degree: 1}
"""


@pytest.mark.parametrize(
    ("name", "text", "model"),
    [("registry.py", REGISTRY, "qwen3-32b"), ("primus.yaml", PRIMUS, "llama-3.1-8b")],
)
def test_a_model_is_named_by_its_package_or_its_base(name: str, text: str, model: str) -> None:
    """A registry of torchtitan has sizes alone; Primus names a file of its models."""
    request = job({name: text}, gpus="16").request
    assert request is not None
    assert request.model.name == model


RECIPE = """from megatron.bridge.recipes.qwen import qwen3_30b_a3b_pretrain_config
cfg = qwen3_30b_a3b_pretrain_config()
cfg.model.tensor_model_parallel_size = 2
cfg.model.pipeline_model_parallel_size = 1
cfg.model.expert_model_parallel_size = 8
cfg.model.seq_length = 4096
cfg.train.global_batch_size = 64
cfg.train.micro_batch_size = 1
"""


@pytest.mark.parametrize(
    ("more", "gaps"),
    [
        ("", {"layout.cp"}), ("cfg.model.context_parallel_size = 1\n", set()),
        ("cfg.model.context_parallel_size = 2\n", {"layout.cp_kind"}),
        ("cfg.model.context_parallel_size = 2\ncfg.model.cp_comm_type = 'a2a'\n", set()),
    ],
)  # fmt: skip
def test_what_a_recipe_decides_of_context_is_not_settled(more: str, gaps: set[str]) -> None:
    """Recipes of Megatron-Bridge set both (recipes/llama/h100/llama3.py); experts have one tensor rank there."""
    found = job({"recipe.py": RECIPE + more}, gpus="32")
    assert {gap.field for gap in found.unsettled if gap.field.startswith("layout.cp")} == gaps
    assert isinstance(found.layout, ParallelLayout)
    assert found.layout.expert_tp == 1


def test_a_file_of_a_part_has_its_gpus() -> None:
    """Of two kinds that a batch script asks for, those of the component that trains."""
    text = (
        "#SBATCH --nodes=2 --gpus-per-node=h100:4\n#SBATCH hetjob\n#SBATCH --nodes=8 --gpus-per-node=h200:8\n"
        f"srun --het-group=1 python train.py {SFT}\n"
    )
    assert read_texts({"run.sbatch": text}).gpus == ("h200-sxm",)


NEMO = "nemo llm pretrain --factory mixtral_8x7b trainer.num_nodes=8 trainer.devices=8 data.global_batch_size=512 {}\n".format(
    "trainer.strategy.tensor_model_parallel_size=2 trainer.strategy.pipeline_model_parallel_size=4 data.seq_length=4096 "
    "trainer.strategy.expert_model_parallel_size=8 data.micro_batch_size=1"
)
RENAMED = RECIPE.replace("_config\n", "_config as recipe\n", 1).replace(
    "= qwen3_30b_a3b_pretrain_config", "= recipe"
)
RANKS = """from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from transformers import AutoModelForCausalLM
pc = ParallelismConfig(dp_replicate_size=2, dp_shard_size=4, cp_size=2, tp_size=2)
acc = Accelerator(mixed_precision="bf16", parallelism_config=pc, gradient_accumulation_steps=4)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
"""
LAYOUTS = {
    "a recipe with experts": ({"run.sh": NEMO}, {"tp": 2, "pp": 4, "ep": 8, "sequence_parallel": True}),
    "a recipe by another name": ({"recipe.py": RENAMED}, {"tp": 2, "ep": 8}),
    "axes of Accelerate": (
        {"train.py": RANKS},
        {"tp": 2, "cp": 2, "dp": 8, "zero_stage": 3, "shard_degree": 8},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_that_of_the_words(name: str) -> None:
    """Experts beside tensors stop Megatron without split sequences; shards of ParallelismConfig are FSDP's."""
    texts, degrees = LAYOUTS[name]
    layout = job(texts, gpus="64" if name.startswith("a recipe") else "32", sequence_length="4096").layout
    assert {field: getattr(layout, field) for field in degrees} == degrees


def test_a_node_that_holds_no_block_of_experts_is_not_the_job() -> None:
    """NGPU of torchtitan's run_train.sh counts the GPUs of a node; 32 ranks of experts need more."""
    text = "NGPU=8 ./run_train.sh --model.name deepseek_v3 --model.flavor 671B --training.local_batch_size 8 {}\n"
    assert (
        read_texts({"a.sh": text.format("--parallelism.expert_parallel_degree 8")}).facts.count(
            "cluster.num_gpus"
        )
        == 8
    )
    facts = read_texts({"a.sh": text.format("--parallelism.expert_parallel_degree 32")}).facts
    assert facts.count("cluster.num_gpus") is None


LAUNCHER = """kind: MPIJob
spec:
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{command: [mpirun, -np, "32", python, pretrain_gpt.py, --num-layers, "80", --bf16,
        --tensor-model-parallel-size, "8", --micro-batch-size, "1", --hidden-size, "8192"]}]}}
    Worker:
      replicas: 4
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""


def test_a_launcher_without_gpus_is_no_node() -> None:
    """Of an MPIJob the workers have them."""
    assert read_texts({"job.yaml": LAUNCHER}).facts.count("cluster.num_gpus") == 32


@pytest.mark.parametrize(
    "line",
    [
        'read -r L H A <<< "${SIZES[13b]}"',
        'read -ra ROW <<< "${SIZES[13b]}"; L=${ROW[0]}; H=${ROW[1]}; A=${ROW[2]}',
    ],
)
def test_words_of_a_text_are_read_into_variables(line: str) -> None:
    """One each, or all into an array."""
    text = (
        f'declare -A SIZES=( [7b]="32 4096 32" [13b]="40 5120 40" )\n{line}\ntorchrun --nproc-per-node=8 pretrain_gpt.py '
        "--num-layers $L --hidden-size $H --num-attention-heads $A --micro-batch-size 2 --tensor-model-parallel-size 4\n"
    )
    facts = read_texts({"run.sh": text}).facts
    names = ("num_layers", "hidden_size", "num_attention_heads")
    assert [facts.count(f"model.{name}") for name in names] == [40, 5120, 40]


BAR = "Train step of epoch 0:  {0}%|#| {0}/100 [00:{0}<08:00,  5.00s/it, gpt_loss=1.2]\n"


def test_a_bar_whose_head_is_cut_is_no_bar_of_steps() -> None:
    """OpenRLHF's counts microbatches; the first line of a torn log has lost the words that say so."""
    text = "".join(BAR.format(step) for step in range(10, 16))
    measured, *_ = measured_of(text[12:])
    assert measured.step_time_s is None
    assert measured.microbatch_s == pytest.approx(5.0)


def test_a_page_of_an_unknown_program_is_refused_as_a_log() -> None:
    """Not as YAML: its lines look like those of steps."""
    from topology.base.errors import InputError

    lines = "".join(f"[x|INFO] update {step}: speed 5.00 s, loss 1.2\n" for step in range(6))
    with pytest.raises(InputError, match="no line of a step was recognised"):
        read_texts({"notes.txt": lines})


def test_reading_of_every_family_names_its_resharding() -> None:
    """A word that FSDP2 is told without being stated is a word of its family."""
    named: dict[str, Any] = {family.name: family for family in FAMILIES if family.reshards}
    assert {"torchtune", "Axolotl"} <= named.keys()
    assert all(family.words.get(family.reshards) == "said.reshard" for family in named.values())
    assert isinstance(read_texts({"run.sh": STARTED["hosts.sh"]}), Reading)


PRINTS = """\
sizes() {{
{body}
}}
torchrun --nproc_per_node 8 pretrain_gpt.py $(sizes) --seq-length 4096 --micro-batch-size 1 --global-batch-size 64
"""


@pytest.mark.parametrize(
    ("body", "layers"),
    [
        ('  local -a a=(--num-layers 32\n --hidden-size 4096)\n  echo "${a[@]}"', 32),
        ("  printf '%s ' --num-layers 32 --hidden-size 4096", 32),
        ("  cat <<EOF\n--num-layers 32\n--hidden-size 4096\nEOF", 32),
        ('  echo "sizes of $1" >&2\n  echo --num-layers 32', 32),
        ("  python print_sizes.py", None),
        ("  if grep -q h100 /etc/gpu; then echo --num-layers 80; else echo --num-layers 32; fi", None),
        ("  for n in 32 48; do echo --num-layers $n; done", None),
        ("  echo --num-layers 32 | sed s/32/48/", None),
    ],
)  # fmt: skip
def test_a_function_gives_the_arguments_that_it_prints(body, layers):
    """What its output is only a run knows where it is a program's, a branch's or a pipe's."""
    reading = read_texts({"run.sh": PRINTS.format(body=body)})
    assert reading.facts.count("model.num_layers") == layers
    assert any("words that only a run knows" in doubt for doubt in reading.doubts) is (layers is None)


@pytest.mark.parametrize(
    ("hosts", "gpus"),
    [
        ("(node{01..04})", 32),
        ("(a b c)", 24),
        ("($(scontrol show hostnames $SLURM_JOB_NODELIST))", None),
    ],
)
def test_nodes_are_as_many_as_an_array_has(hosts, gpus):
    text = f"HOSTS={hosts}\n" + PRINTS.format(body=" echo --num-layers 32").replace(
        "torchrun", "torchrun --nnodes=${#HOSTS[@]}"
    )
    reading = read_texts({"run.sh": text})
    assert reading.facts.count("cluster.num_gpus") == gpus
    assert ("said.nodes" in reading.facts.unknown) is (gpus is None)


WORDS_OF_PYTHON = """\
import subprocess
N_GPU = 4
subprocess.run(["accelerate", "launch", "--num_processes", str(N_GPU), "sft.py", "--model_name_or_path", "org/x", "--bf16"])
"""
SCALED = """\
def train_func(config):
    args = TrainingArguments(output_dir="o", per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True)
scaling = ScalingConfig(num_workers=24, use_gpu=True)
TorchTrainer(train_func, scaling_config=scaling).fit()
"""


@pytest.mark.parametrize(("text", "gpus"), [(WORDS_OF_PYTHON, 4), (SCALED, 24)])
def test_python_counts_its_gpus_under_a_name(text, gpus):
    assert read_texts({"run.py": text}).facts.count("cluster.num_gpus") == gpus


ARGUMENTS = 'args=SFTConfig(output_dir="o", max_length=2048, per_device_train_batch_size=8)'
NATIVE = """\
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
ds_config = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
model.gradient_checkpointing_enable()
engine, *_ = deepspeed.initialize(model=model, config=ds_config)
"""


@pytest.mark.parametrize(
    "text",
    [
        f't = SFTTrainer(model="meta-llama/Llama-3.1-8B", {ARGUMENTS})',
        f'trainer = SFTTrainer("meta-llama/Llama-3.1-8B", {ARGUMENTS})',
        NATIVE,
    ],
)
def test_python_names_its_model_where_it_makes_it(text):
    """By whatever name the trainer is kept; recomputation that a method switches on is read, too."""
    found = audited_job(read_texts({"run.py": text}), Flags(gpus="8", sequence_length="2048"))
    assert found.request.model.name == "llama-3.1-8b"
    assert found.layout.recompute == "full"


TRAINER_LOG = """\
{'loss': 1.9} 2%|# | 10/4000 [00:43<4:40:00, 4.30s/it]
{'loss': 1.8} 5%|# | 20/4000 [01:26<4:40:00, 4.30s/it]
{'loss': 1.7} 7%|# | 30/4000 [02:09<4:40:00, 4.30s/it]
{'train_runtime': 17200.0, 'train_samples_per_second': 14.88, 'train_steps_per_second': 0.2325, 'epoch': 1.0}
"""
"""64 samples a step: 8 GPUs of 8."""


@pytest.mark.parametrize(("gpus", "contradicted"), [(4, True), (8, False)])
def test_a_log_of_other_gpus_than_files_count_is_told(gpus, contradicted):
    """GPUs that files count hold over what a log's rate means."""
    launch = f"accelerate launch --num_processes {gpus} train.py {SFT}\n"
    reading = read_texts({"run.sh": launch, "run.log": TRAINER_LOG})
    assert reading.facts.count("cluster.num_gpus") == gpus
    assert any("may be of different jobs" in doubt for doubt in reading.doubts) is contradicted


CALLED_RECIPE = """\
def {name}():
    cfg = llama3_8b_pretrain_config(seq_length=4096)
    cfg.train.global_batch_size = {batch}
    cfg.model.tensor_model_parallel_size = 2
"""


def test_a_module_that_calls_its_recipe_is_none_of_its_own():
    alone = read_texts({"run.py": CALLED_RECIPE.format(name="main", batch=256) + "main()\n"})
    assert not any("recipes the first" in doubt for doubt in alone.doubts)
    two = "".join(
        CALLED_RECIPE.format(name=name, batch=batch) for name, batch in (("small", 256), ("large", 512))
    )
    assert any("of 2 recipes the first" in doubt for doubt in read_texts({"run.py": two}).doubts)


def test_what_a_recipe_decides_is_told_as_its_own():
    text = (
        "recipe = llm.llama3_70b.pretrain_recipe(num_nodes=8, num_gpus_per_node=8)\n"
        + "".join(
            f"recipe.trainer.strategy.{name}_model_parallel_size = 4\n" for name in ("tensor", "pipeline")
        )
        + "recipe.data.micro_batch_size = 1\nrecipe.trainer.strategy.context_parallel_size = 2\n"
    )
    reading, asked = read_texts({"run.py": text}), Flags(sequence_length="8192", global_batch_size="256")
    found = audited_job(reading, asked)
    why = next(each.why for each in found.unsettled if each.field == "layout.sequence_parallel")
    assert "decided by the recipe" in why
    running = running_of(reading, found, calibration_of(reading, asked))
    advised = changes_of(reading, running, None, runs=False)
    assert advised
    assert not any("sequence_parallel" in word for change in advised for word in change.set)


SLIME = """source "${SCRIPT_DIR}/models/qwen3-235B-A22B.sh"
ARGS=(
   --hf-checkpoint ${BASE_FOLDER}/Qwen3-235B-A22B
   --rollout-function-path slime.rollout.sft_rollout.generate_rollout
   --rollout-batch-size 128 --global-batch-size 128 --loss-type LOSS
   --tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 32 --expert-tensor-parallel-size 1
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --max-tokens-per-gpu 9216
)
ray job submit -- python3 train_async.py --actor-num-nodes 4 --actor-num-gpus-per-node 8 ${MODEL_ARGS[@]} ${ARGS[@]}
"""
VERL = """MODEL_PATH=${MODEL_PATH:-${HOME}/models/${MODEL_ID:-Qwen/Qwen3-8B}}
ENGINE="engine=megatron engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2"
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_batch_size=32 data.max_length=2048 \\
  model.path=$MODEL_PATH $ENGINE
"""
BRIDGE = (
    "python scripts/performance/setup_experiment.py -m deepseek -mr deepseek_v3 -ng 256 -g gb200 -c fp8_mx -tp 1 -pp 4 "
    "-ep 64 -mb 1 -gb 2048\n"
)
PRIMUS = """modules:
  post_trainer:
    framework: megatron_bridge
    model: ${PRIMUS_MODEL:qwen3_30B_A3B}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: 4096
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: 1
      expert_model_parallel_size: ${PRIMUS_EP:8}
"""
MESH = """model_name: llama3.1-70b
remat_policy: full
per_device_batch_size: 1
max_target_length: 8192
dcn_tensor_parallelism: 2
ici_tensor_parallelism: 2
dcn_data_parallelism: 4
ici_fsdp_parallelism: 4
"""
LEFT_OUT = {
    "Primus": {"gpus": "32"},
    "slime": {"sequence_length": "8192"},
    "Megatron-Bridge": {"sequence_length": "4096"},
}
"""What the files of a family leave to a run."""
CURRENT = (
    ("run.sh", SLIME.replace("LOSS", "sft_loss"), "slime", "qwen3-235b-a22b", (4, 1, 8, 1, 128)),
    ("run.sh", VERL, "verl", "qwen3-8b", (2, 2, 2, 1, 32)),
    ("run.sh", BRIDGE, "Megatron-Bridge", "deepseek-v3", (1, 4, 64, 1, 2048)),
    ("run.yaml", PRIMUS, "Primus", "qwen3-30b-a3b", (1, 1, 32, 1, 128)),
    ("run.yaml", MESH, "MaxText", "llama-3.1-70b", (4, 1, 16, 3, 64)),
)


@pytest.mark.parametrize(("name", "text", "family", "model", "numbers"), CURRENT)
def test_files_of_this_year_need_no_flag(
    name: str, text: str, family: str, model: str, numbers: tuple[int, ...]
) -> None:
    """Whose they are, their model, and tp, pp, dp, the stage of ZeRO and the batch by hand.

    Sources: slime/backends/megatron_utils/arguments.py, verl/trainer/config/engine/megatron.yaml, argument_parser.py of
    Megatron-Bridge's scripts/performance, Primus' examples/configs/megatron_bridge, and configs/base.yml of MaxText.
    """
    reading = read_texts({name: text})
    job = audited_job(reading, Flags(**LEFT_OUT.get(family, {})))
    assert (reading.family.name, job.missing) == (family, ())
    assert job.request is not None
    assert job.request.model.name == model
    assert job.layout is not None
    found = (
        job.layout.tp,
        job.layout.pp,
        job.layout.dp,
        job.layout.zero_stage,
        job.request.job.global_batch_size,
    )
    assert found == numbers


def test_a_step_of_slime_that_generates_is_more_than_training() -> None:
    """The loss alone tells supervised samples from answers."""
    job = audited_job(read_texts({"run.sh": SLIME.replace("LOSS", "policy_loss")}), Flags())
    assert "rollout-batch-size 128 has answers generated" in " ".join(job.missing)


def test_a_folder_that_only_a_run_knows_hides_no_model() -> None:
    """A name in full is the model's; a checkpoint's is not."""
    for path, model in (("Qwen3-8B", "Qwen3-8B"), ("Qwen3-8B/", "Qwen3-8B"), ("checkpoint-500", None)):
        text = f"torchrun --nproc_per_node 8 train.py {SFT.replace('Qwen/Qwen3-8B', f'$ROOT/{path}')}"
        assert read_texts({"run.sh": text}).facts.value("said.model") == model, path


WRITTEN = """#SBATCH --nodes=2 --gpus-per-node=8
LENGTH=4096
cat > configs/job.yaml <<EOF
base_model: Qwen/Qwen2.5-7B
sequence_len: $LENGTH
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
deepspeed: deepspeed_configs/zero2.json
EOF
srun axolotl train configs/job.yaml
"""


@pytest.mark.parametrize("opening", ["cat > configs/job.yaml <<EOF", "cat <<EOF > configs/job.yaml"])
def test_a_configuration_that_a_script_writes_is_read(opening: str) -> None:
    """With the script's variables, as the file beside it would be; one that is given stands instead."""
    text = WRITTEN.replace("cat > configs/job.yaml <<EOF", opening)
    reading = read_texts({"run.sbatch": text})
    facts = reading.facts
    assert (reading.family.name, facts.value("said.model")) == ("Axolotl", "Qwen/Qwen2.5-7B")
    counts = ("cluster.num_gpus", "layout.microbatch_size", "job.sequence_length", "layout.zero_stage")
    assert [facts.count(field) for field in counts] == [16, 2, 4096, 2]
    given = read_texts({"run.sbatch": text, "job.yaml": "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\n"})
    assert given.facts.value("said.model") == "Qwen/Qwen3-8B"
