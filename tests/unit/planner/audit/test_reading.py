"""What an audit reads from launch files is what an expert reads from them; what they do not state is absent."""

from pathlib import Path

import pytest

from planner.audit.job import audited_job
from planner.audit.read import read_files, read_texts
from planner.formats.kinds import kind_of
from planner.questions.flags import Flags
from tests.unit.planner.audit.judge import judged, read, rows_of
from topology.base.errors import InputError

FILES = Path(__file__).parent / "files"


def fields(*names: str, **variables: str) -> dict[str, object]:
    """Canonical fields of some files."""
    found = read_files([str(FILES / name) for name in names], variables).facts.by_field
    return {name: fact.value for name, fact in found.items() if not name.startswith("said.")}


def script(tmp_path: Path, text: str, name: str = "run.sh") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def read_script(tmp_path: Path, text: str, **variables: str) -> dict[str, object]:
    found = read_files([str(script(tmp_path, text))], variables).facts.by_field
    return {name: fact.value for name, fact in found.items() if not name.startswith("said.")}


@pytest.mark.parametrize("row", rows_of(FILES), ids=lambda row: f"{row['file']} {row['variant']}")
def test_every_field_is_read_as_by_an_expert_and_none_is_made_up(row):
    wrong = [cell for cell in judged(FILES, [row]) if cell.verdict not in ("right", "absent")]
    assert wrong == []


def test_a_fact_knows_the_line_that_states_it():
    found = read_files([str(FILES / "megatron_moe.sh")]).facts.by_field
    lines = (FILES / "megatron_moe.sh").read_text(encoding="utf-8").split("\n")
    assert lines[found["layout.ep"].line - 1].strip() == "--expert-model-parallel-size 8"
    assert lines[found["model.num_layers"].line - 1].strip() == "--num-layers 32"


def test_a_commented_flag_is_not_set():
    assert "layout.expert_tp" not in fields("megatron_moe.sh")


def test_the_experts_of_a_deepspeed_script_are_no_degree_of_parallelism():
    """EP_SIZE is the number of experts there."""
    found = fields("deepspeed_moe.sh")
    assert (found["model.num_experts"], found["layout.ep"]) == (128, 64)


def test_what_only_a_run_knows_is_absent_and_is_said(tmp_path):
    text = "torchrun --nproc_per_node $GPUS pretrain_gpt.py --tensor-model-parallel-size $TP --num-layers $(cat n) --hidden-size 64"
    assert read_script(tmp_path, text) == {"model.hidden_size": 64, "layout.pp": 1}
    assert read_script(tmp_path, text, TP="4", GPUS="8")["layout.dp"] == 2


def test_branches_that_a_run_decides_leave_unknown_what_they_set_differently(tmp_path):
    text = (
        "if [[ $KIND == a ]]; then TP=2; PP=4; else TP=8; PP=4; fi\n"
        "torchrun --nproc_per_node 8 x.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --num-layers 8"
    )
    reading = read_files([str(script(tmp_path, text))])
    assert "layout.tp" not in reading.facts.by_field
    assert reading.facts.value("layout.pp") == 4
    assert any("KIND" in doubt for doubt in reading.doubts)
    assert read_script(tmp_path, text, KIND="a")["layout.tp"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=$((2*(1+3)))", 8),
        ("B=16; A=$(( B > 8 ? B/2 : 1 ))", 8),
        ("A=${B:-8}", 8),
        ("A=${B:=8}", 8),
        ("L=(1 8 2); A=${L[1]}", 8),
        ("f() { A=$1; }\nf 8", 8),
        ("case x in y) A=1;; x) A=8;; *) A=2;; esac", 8),
        ('A=4; A+=0; A=${A%0}; [ -z "$NOPE" ] && A=8', 8),
        ("NAME=tp8; A=${NAME#tp}", 8),
        ("(( A = 2 * 4 ))", 8),
        ("B=3; (( B > 2 )) && A=8 || A=1", 8),
        ("B=3; if (( B == 4 )); then A=1; else A=8; fi", 8),
        ('A=2; let "A *= 1 + 3"', 8),
        ("A=$(expr 16 / 2)", 8),
        ("declare -A L=([a]=1 [b]=8); B=b; A=${L[$B]}", 8),
        ("f() { shift; A=$1; }\nf 1 8", 8),
        ("set -- 4 8; A=$2", 8),
        ("for A in 8 16; do :; done", 16),
    ],
)  # fmt: skip
def test_variables_are_followed_as_a_shell_would(tmp_path, text, value):
    line = f"{text}\npython pretrain_gpt.py --tensor-model-parallel-size $A --num-layers 8"
    if text.startswith("for"):
        line, value = (
            text.replace(":;", "python pretrain_gpt.py --tensor-model-parallel-size $A --num-layers 8;"),
            8,
        )
    assert read_script(tmp_path, line)["layout.tp"] == value


def test_an_arithmetic_condition_that_only_a_run_decides_leaves_its_branches_open(tmp_path):
    text = "if (( $N > 8 )); then A=8; else A=4; fi\npython pretrain_gpt.py --tensor-model-parallel-size $A --num-layers 8"
    assert "layout.tp" not in read_script(tmp_path, text)
    assert read_script(tmp_path, text, N="9")["layout.tp"] == 8


@pytest.mark.parametrize("line", ["A=4; [[ $N == 8 ]] && A=8", "A=4; [[ $N == 4 ]] || A=8"])
def test_what_follows_a_condition_that_only_a_run_decides_may_not_run(tmp_path, line):
    text = line + "\npython pretrain_gpt.py --tensor-model-parallel-size $A --num-layers 8"
    assert "layout.tp" not in read_script(tmp_path, text)
    assert read_script(tmp_path, text, N="8")["layout.tp"] == 8


@pytest.mark.parametrize(
    "shell",
    ['pdsh -w n1 "{}"', "ssh n1 '{}'", 'sbatch --wrap="{}"', "kubectl exec pod -- bash -lc '{}'"],
)
def test_a_command_that_another_shell_is_given_is_read(tmp_path, shell):
    command = (
        "cd x && torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 8"
    )
    assert read_script(tmp_path, shell.format(command))["layout.dp"] == 2


def test_the_launcher_deepspeed_counts_the_gpus_of_a_node(tmp_path):
    text = (
        "deepspeed --num_gpus 8 --num_nodes 4 train.py --per_device_train_batch_size 2 --model_max_length 512"
    )
    assert read_script(tmp_path, text)["cluster.num_gpus"] == 32


def test_one_node_that_does_not_hold_the_layout_is_not_the_job(tmp_path):
    """Its configuration leaves the number of nodes to a launcher."""
    text = "trainer:\n  devices: 8\nmodel:\n  encoder_seq_length: 2048\n  tensor_model_parallel_size: 8\n  pipeline_model_parallel_size: 4\n"
    reading = read_files([str(script(tmp_path, text, "c.yaml"))])
    assert "cluster.num_gpus" not in reading.facts.by_field
    assert any("nodes are not told" in doubt for doubt in reading.doubts)


def test_recomputing_no_layer_is_no_recomputation(tmp_path):
    text = "torchrun pretrain_gpt.py --num-layers 8 --num-attention-heads 4 --recompute-granularity full --recompute-method block --recompute-num-layers {}"
    assert read_script(tmp_path, text.format(4))["layout.recompute"] == "full"
    assert read_script(tmp_path, text.format(0))["layout.recompute"] == "none"


def test_a_degree_that_only_a_run_knows_leaves_dp_untold(tmp_path):
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $1 --pipeline-model-parallel-size 2 --num-layers 8"
    reading = read_files([str(script(tmp_path, text))])
    assert reading.facts.value("cluster.num_gpus") == 8
    assert "layout.dp" not in reading.facts.by_field
    assert any("dp untold" in doubt for doubt in reading.doubts)


@pytest.mark.parametrize(("policy", "stage"), [("default", 3), ("always", 3), ("never", 2)])
def test_parameters_that_stay_gathered_are_no_zero_3(tmp_path, policy, stage):
    text = f'[parallelism]\ndata_parallel_shard_degree = 8\nfsdp_reshard_after_forward = "{policy}"\n'
    assert read_files([str(script(tmp_path, text, "c.toml"))]).facts.value("layout.zero_stage") == stage


def test_a_layout_that_does_not_fill_the_gpus_has_no_dp(tmp_path):
    """Files that are illegal as shipped: tp 8 · pp 16 on one node of 8."""
    text = "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers 96"
    assert "layout.dp" not in read_script(tmp_path, text)


def test_nanotron_has_ranks_of_their_own_for_experts(tmp_path):
    path = script(
        tmp_path,
        "parallelism:\n  dp: 2\n  expert_parallel_size: 4\n  pp: 1\n  tp: 2\n  pp_engine: 1f1b\n",
        "c.yaml",
    )
    assert read_files([str(path)]).facts.value("cluster.num_gpus") == 16


def test_tokens_of_a_microbatch_are_samples(tmp_path):
    """The newer word of torchtitan for the local batch."""
    text = "[training]\nseq_len = 4096\nnum_tokens_per_microbatch_per_dp_rank = 16384\n[parallelism]\ntensor_parallel_degree = 2\n"
    assert read_files([str(script(tmp_path, text, "c.toml"))]).facts.value("layout.microbatch_size") == 4


def test_a_table_that_is_off_says_nothing(tmp_path):
    text = "policy:\n  dtensor_cfg:\n    enabled: false\n    tensor_parallel_size: 8\n  megatron_cfg:\n    enabled: true\n    tensor_model_parallel_size: 2\n"
    assert read_files([str(script(tmp_path, text, "c.yaml"))]).facts.value("layout.tp") == 2


def test_a_template_is_read_with_its_holes(tmp_path):
    """Scripts replace names in it before the engine reads it."""
    text = '{"train_batch_size": CONFIG_BATCH_SIZE, "zero_optimization": {"stage": 2}, "fp16": {"enabled": FP16}}'
    reading = read_files([str(script(tmp_path, text, "template.json"))])
    assert reading.facts.value("layout.zero_stage") == 2
    assert "job.global_batch_size" not in reading.facts.by_field
    assert any("template" in doubt for doubt in reading.doubts)


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("#!/bin/bash\nA=1", "noname", "shell"),
        ("#SBATCH --nodes=2\n", "x.txt", "shell"),
        ("{\n}", "x", "json"),
        ("[a]\nb = 1", "x.conf", "toml"),
        ("import a\n", "x.txt", "python"),
        ("a:\n  b: 1", "x.txt", "yaml"),
        ("text\n```\nrun --x 1\n```", "x.txt", "page"),
        ("iteration 1/2 | elapsed time per iteration (ms): 12.0 |", "x.sh", "log"),
    ],
)
def test_a_file_is_what_it_contains(text, name, kind):
    assert kind_of(text, name) == kind


def test_files_are_read_together_and_a_command_holds_over_the_file_it_names(tmp_path):
    config = script(
        tmp_path,
        "[training]\nseq_len = 4096\nlocal_batch_size = 1\n[parallelism]\ntensor_parallel_degree = 1\n",
        "c.toml",
    )
    run = script(
        tmp_path,
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file c.toml --training.local_batch_size 4 --parallelism.tensor_parallel_degree 2",
    )
    reading = read_files([str(config), str(run)])
    values = {
        name: reading.facts.value(name)
        for name in ("job.sequence_length", "layout.microbatch_size", "layout.tp", "layout.dp")
    }
    assert values == {
        "job.sequence_length": 4096,
        "layout.microbatch_size": 4,
        "layout.tp": 2,
        "layout.dp": 4,
    }
    assert any("holds over" in doubt for doubt in reading.doubts)


def test_a_recipe_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(InputError, match="no recipe nosuch") as error:
        read_files([str(FILES / "bridge_recipes.py.txt::nosuch")])
    assert "llama_pretrain_1024gpu_h100_bf16_config" in error.value.cause


def test_nothing_that_a_file_names_is_opened(tmp_path):
    secret = script(tmp_path, "export TP=8\n", "secret.sh")
    text = f"source {secret}\nTP=$(cat {secret})\npython pretrain_gpt.py --tensor-model-parallel-size $TP --num-layers 8 --hidden-size 64"
    assert "layout.tp" not in read_script(tmp_path, text)


def test_a_file_that_states_no_layout_says_so():
    document, warned = read(FILES, {"file": "trt_serve.sh"})
    assert document["layout"] == {}
    assert warned


ANCHORS = """\
base: &base {per_device_train_batch_size: 2, cutoff_len: 4096, more: {bf16: true}}
gpus: &gpus 16
job:
  per_device_train_batch_size: 1
  <<: *base
cluster:
  num_processes: *gpus
"""


def test_an_alias_is_what_its_anchor_marks(tmp_path):
    """A table says what it merges, under what it says itself; the template speaks last, and not against it."""
    reading = read_files([str(script(tmp_path, ANCHORS, "c.yaml"))])
    found = {name: reading.facts.value(name) for name in ("layout.microbatch_size", "job.sequence_length")}
    assert found == {"layout.microbatch_size": 1, "job.sequence_length": 4096}
    assert (reading.facts.value("job.precision"), reading.facts.value("cluster.num_gpus")) == ("bf16", 16)


def test_a_file_that_says_two_things_is_told(tmp_path):
    """The first holds, and nobody reads it without the other."""
    text = "cutoff_len: 4096\nper_device_train_batch_size: 1\nextra:\n  per_device_train_batch_size: 2\n"
    reading = read_files([str(script(tmp_path, text, "c.yaml"))])
    assert reading.facts.value("layout.microbatch_size") == 1
    told = "per_device_train_batch_size 1 (line 2) holds over extra.per_device_train_batch_size 2 (line 4)"
    assert told in reading.doubts


NAMES = """\
from megatron.bridge import config
PARALLEL = 8
def recipe(cfg, debug):
    depth = 2 if debug else 4
    length = 4096
    cfg.model.tensor_model_parallel_size = PARALLEL
    cfg.model.pipeline_model_parallel_size = depth
    cfg.model.context_parallel_size = 2
    with open("x"):
        cfg.model.seq_length = length
    if debug:
        cfg.model.context_parallel_size = 1
    cfg.train.global_batch_size = 512
    return cfg
"""


def test_python_is_read_by_the_values_of_names_and_not_by_branches(tmp_path):
    """A name with one value is that value; what a branch may change is not known, and that is told."""
    reading = read_files([str(script(tmp_path, NAMES, "c.py"))])
    found = {name: fact.value for name, fact in reading.facts.by_field.items()}
    assert (found["layout.tp"], found["job.sequence_length"], found["job.global_batch_size"]) == (
        8,
        4096,
        512,
    )
    assert not {"layout.pp", "layout.cp"} & set(found)
    assert [doubt for doubt in reading.doubts if doubt.startswith("line 11: only a run knows")]


def test_what_python_sets_last_holds(tmp_path):
    """In a module as in a function; a name that is given two values is none that is known."""
    text = "import x\nn = 2\nn = 4\ncfg.model.tensor_model_parallel_size = 2\ncfg.model.tensor_model_parallel_size = 8\ncfg.model.pipeline_model_parallel_size = n\nif __name__ == '__main__':\n    cfg.train.global_batch_size = 64\n"
    facts = read_files([str(script(tmp_path, text, "c.py"))]).facts
    assert (facts.value("layout.tp"), facts.value("job.global_batch_size")) == (8, 64)
    assert "layout.pp" not in facts.by_field


def test_parts_of_an_array_are_given_one_by_one(tmp_path):
    """By number and by key; a part whose number is not known leaves all of it unknown, and that is told."""
    end = (
        '\ntorchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" --num-layers 8 --num-attention-heads 8\n'
    )
    text = "declare -A SIZE\nSIZE[tp]=4\nNAME=PP\nPP=2\nARGS=(--tensor-model-parallel-size 1)\nARGS[1]=${SIZE[tp]}\nARGS[2]=--pipeline-model-parallel-size\nARGS[3]=${!NAME}"
    found = read_script(tmp_path, text + end)
    assert (found["layout.tp"], found["layout.pp"]) == (4, 2)
    reading = read_files([str(script(tmp_path, text + "\nARGS[$1]=2" + end))])
    assert not {"layout.tp", "layout.pp"} & {
        name for name, fact in reading.facts.by_field.items() if fact.how == "stated"
    }
    assert any("what they set is not told" in doubt for doubt in reading.doubts)


@pytest.mark.parametrize(("value", "found"), [("offload", "full"), ("true", "full"), ("false", "none")])
def test_checkpoints_that_are_offloaded_are_recomputation(tmp_path, value, found):
    """Axolotl's words of where they are kept."""
    text = f"base_model: Qwen/Qwen2.5-14B\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_checkpointing: {value}\n"
    assert read_files([str(script(tmp_path, text, "c.yaml"))]).facts.value("layout.recompute") == found


PARTS = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=h100:4
#SBATCH hetjob
#SBATCH --nodes=8 --gpus-per-node=h200:8
#SBATCH hetjob
#SBATCH --nodes=4 --gpus-per-node=h200:8
srun --het-group=0 python serve.py &
srun {}
"""
STEP = (
    "pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32 --hidden-size 4096 --micro-batch-size 1"
)


@pytest.mark.parametrize(
    ("step", "gpus"),
    [
        (f"--het-group=1 python {STEP}", 64), (f"--het-group 2 python {STEP}", 32), (f"--het-group=1,2 python {STEP}", 96),
        (f"--het-group=1-2 python {STEP}", 96), (f"--pack-group=0 python {STEP}", 8), (f"python {STEP}", 8),
        (f"--het-group=7 python {STEP}", 8), (f"--het-group=0,1 python {STEP}", None),
        (f"--het-group=1 bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 {STEP}'", 64),
        (f"--het-group=2 torchrun --nnodes=$SLURM_JOB_NUM_NODES_HET_GROUP_2 --nproc_per_node=8 {STEP}", 32),
    ],
)  # fmt: skip
def test_a_step_has_the_nodes_of_its_components(step, gpus):
    """sbatch(1) and srun(1): components have numbers from 0, a step runs on the first where it names none."""
    assert read_texts({"run.sbatch": PARTS.format(step)}).facts.count("cluster.num_gpus") == gpus


@pytest.mark.parametrize(
    ("words", "gpus", "note"),
    [
        ("accelerator_type='A100'", ("a100-sxm-80gb",), "a100-sxm-40gb"), ("accelerator_type='A100-40G'", ("a100-sxm-40gb",), ""),
        ("# on A100s of 80 GB: A100-80G, each an A100", ("a100-sxm-80gb",), ""), ("accelerator_type='H100'", ("h100-sxm",), ""),
        ("# A100, or A100-40GB", ("a100-sxm-40gb",), ""),
    ],
)  # fmt: skip
def test_a_gpu_whose_memory_is_not_told_is_said_to_have_another(words, gpus, note):
    """Ray's accelerator_type A100 is of either memory (python/ray/util/accelerators/accelerators.py)."""
    text = (
        "from transformers import TrainingArguments\n"
        f"args = TrainingArguments(per_device_train_batch_size=1, gradient_checkpointing=True)\nuse({words.partition('#')[0] or 1}) "
        f"# {words}\n"
    )
    reading = read_texts({"train.py": text})
    assert reading.gpus == gpus
    assumed = audited_job(reading, Flags(model="llama-3.1-8b", gpus="8", sequence_length="2048")).assumed
    said = [line for line in assumed if "--gpu" in line and "GPUs are" in line]
    assert [note in line for line in said] == ([True] if note else [])
