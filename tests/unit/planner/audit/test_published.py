"""Launches that name a configuration of their engine and do not show it: torchtune, torchtitan."""

from __future__ import annotations

import csv

import pytest

from app.reports.audit.summary import summary_of
from costmodel.kernels.tables import load_calibration
from planner.audit.audit import Audit, audited
from planner.audit.changes import running_of
from planner.audit.contract_reading import words_between
from planner.audit.findings import findings_of
from planner.audit.job import Job, audited_job
from planner.audit.presumed import with_published
from planner.audit.published import PUBLISHED, recipe_called
from planner.audit.read import Reading, read_texts
from planner.audit.spelling import spelled_name
from planner.questions.flags import Flags


def _audit(text: str, name: str = "run.sh", **others: str) -> Audit:
    return audited(read_texts({name: text, **others}), Flags(gpu="h100-sxm"), load_calibration())


@pytest.mark.usefixtures("searched_in_nightly")
def test_a_recipe_of_torchtune_has_the_figures_of_its_published_file() -> None:
    """recipes/configs/llama3_1/70B_lora.yaml of 0.6.1: LoRA of rank 16, two samples, checkpointed layers."""
    audit = _audit(
        "tune run --nproc_per_node 8 lora_finetune_distributed --config llama3_1/70B_lora "
        "tokenizer.max_seq_len=4096\n"
    )
    request, layout = audit.job.request, audit.job.layout
    assert request is not None
    assert layout is not None
    assert (request.model.name, request.job.adapter.rank, request.job.adapter.targets) == (
        "llama-3.1-70b",
        16,
        ("attention", "mlp"),
    )
    assert (layout.microbatch_size, layout.recompute, request.job.global_batch_size) == (2, "full", 16)
    assert request.job.sequence_length == 4096
    assert "llama3_1/70B_lora was not given: its figures are those of torchtune 0.6.1" in summary_of(audit)[0]


def test_what_a_launch_says_holds_over_the_published_file() -> None:
    """The same key with another value is an override."""
    audit = _audit(
        "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/8B_full batch_size=4 "
        "enable_activation_checkpointing=False\n"
    )
    assert audit.job.layout is not None
    assert (audit.job.layout.microbatch_size, audit.job.layout.recompute) == (4, "none")


def test_a_file_that_was_given_holds_over_the_published_one() -> None:
    """Nothing of the release is taken once the user's own file is there."""
    given = (
        "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 7\ndtype: bf16\n"
        "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}\n"
    )
    audit = _audit(
        "tune run --nproc_per_node 8 full_finetune_distributed --config 8B_full.yaml\n",
        **{"8B_full.yaml": given},
    )
    assert audit.reading.published == ""
    assert audit.reading.facts.value("layout.microbatch_size") == 7


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("lora_dpo_distributed --config llama3_1/8B_lora_dpo", "a step that is training alone"),
        ("knowledge_distillation_distributed --config llama3_2/8B_to_1B_KD_lora_distributed", "a step that"),
    ],
)
def test_a_recipe_of_more_than_training_is_not_priced(recipe: str, why: str) -> None:
    """A reference or a teacher runs beside the step."""
    audit = _audit(f"tune run --nproc_per_node 8 {recipe}\n")
    assert audit.predicted is None
    assert any(why in missing for missing in audit.job.missing)


def test_lora_is_never_priced_as_a_whole_model() -> None:
    """The recipe says what is trained, even where its configuration is nobody's."""
    audit = _audit("tune run --nproc_per_node 8 lora_finetune_distributed --config mine/8B_lora.yaml\n")
    assert audit.job.request is None or audit.job.request.job.adapter is not None


TITAN = {
    "file": "CONFIG_FILE=./torchtitan/models/llama3/train_configs/llama3_70b.toml NGPU=8 ./run_train.sh",
    "default": 'export CONFIG_FILE=${CONFIG_FILE:-"./train_configs/llama3_70b.toml"}\n'
    "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file ${CONFIG_FILE}",
    "registry": "NGPU=8 MODULE=llama3 CONFIG=llama3_70b ./run_train.sh",
    "flags": "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_70b",
}


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("form", TITAN)
def test_a_configuration_of_torchtitan_is_known_in_every_form(form: str) -> None:
    """Release 0.2's llama3_70b.toml and 0.3's registry: tp 8, eight samples of 8,192 tokens, full policy."""
    audit = _audit(TITAN[form] + "\n")
    request, layout = audit.job.request, audit.job.layout
    assert audit.reading.family.name == "torchtitan"
    assert request is not None
    assert layout is not None
    assert (request.model.name, request.job.sequence_length) == ("llama-3-70b", 8192)
    assert (layout.tp, layout.microbatch_size, layout.recompute, request.cluster.num_gpus) == (
        8,
        8,
        "full",
        8,
    )


def test_the_script_of_another_project_is_no_torchtitan() -> None:
    """run_train.sh is a common name: without a configuration of torchtitan it says nothing."""
    reading = read_texts({"go.sh": "NGPU=8 ./run_train.sh --lr 1e-4 --data c4\n"})
    assert reading.family.name != "torchtitan"


def test_a_configuration_of_nobody_is_asked_for() -> None:
    """An unknown name adds nothing, and no figure is made up."""
    audit = _audit("CONFIG_FILE=./mine.toml NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 4\n")
    assert audit.predicted is None
    assert audit.reading.published == ""


BRIDGE = {
    "recipe": "--model_recipe_name llama3_70b -ng 64",
    "name and size": "--model_name llama3 --model_size 70b --num_gpus 64",
}


@pytest.mark.usefixtures("searched_in_nightly")
@pytest.mark.parametrize("form", BRIDGE)
def test_a_recipe_of_megatron_bridge_is_chosen_as_its_scripts_do(form: str) -> None:
    """Release 26.08, llama3_70b_pretrain_64gpu_h100_fp8cs_config: tp 4, pp 8, 5 chunks, a batch of 256."""
    script = (
        f"python scripts/performance/setup_experiment.py --gpu h100 {BRIDGE[form]} --compute_dtype fp8_cs"
    )
    audit = _audit(f"{script}\n")
    request, layout = audit.job.request, audit.job.layout
    assert request is not None
    assert layout is not None
    assert (request.model.name, request.cluster.num_gpus, request.job.precision) == ("llama-3-70b", 64, "fp8")
    assert (layout.tp, layout.pp, layout.virtual_stages, layout.microbatch_size) == (4, 8, 5, 1)
    assert (request.job.global_batch_size, request.job.sequence_length) == (256, 8192)


def test_a_recipe_of_other_gpus_is_not_made_up() -> None:
    """Of 48 GPUs nobody publishes a recipe: no degree is taken from that of 64."""
    audit = _audit(
        "python scripts/performance/setup_experiment.py --gpu h100 --model_recipe_name llama3_70b -ng 48\n"
    )
    assert audit.predicted is None
    assert audit.reading.published == ""


@pytest.mark.parametrize(("preset", "stage"), [("zero3", 3), ("zero2", 2), ("fsdp2", 3), ("multi_gpu", 0)])
def test_a_preset_of_trl_says_what_is_sharded(preset: str, stage: int) -> None:
    """TRL's command line takes the name of a configuration that it ships, without an ending."""
    config = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: 4096\nper_device_train_batch_size: 4\n"
        f"gradient_checkpointing: true\nbf16: true\naccelerate_config: {preset}\n"
    )
    layout = _audit(config, "sft.yaml").job.layout
    assert layout is not None
    assert layout.zero_stage == stage


RECIPE = "llama3_70b_pretrain_64gpu_h100_bf16_config"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "run_script.py --model_name llama3 --model_size 70b --num_gpus 64",
            "num_gpus 64 (line 1) is another, by which",
        ),
        (
            "run_script.py --model_name llama3 --model_size 70b -ng 64",
            "num_gpus 64 (line 1) is another, by which",
        ),
        (f"../training/run_recipe.py --recipe {RECIPE}", f"and {RECIPE} is for 64"),
    ],
)
def test_a_launch_of_other_gpus_than_its_recipe_is_said_first(script: str, says: str) -> None:
    """Four nodes of eight are 32: the recipe of 64 is priced on them, which is said before all else."""
    more = "" if "recipe.py" in script else " --gpu h100 --compute_dtype bf16"
    audit = _audit(f"srun -N 4 --ntasks-per-node 8 python scripts/performance/{script}{more}\n")
    first = summary_of(audit)[0]
    assert first.startswith("contradiction: 4 nodes of 8 GPUs are 32")
    assert says in first
    assert "start 8 nodes" in first


@pytest.mark.parametrize("nodes", [8, 0])
def test_a_recipe_on_the_gpus_of_its_name_contradicts_nothing(nodes: int) -> None:
    """Eight nodes are its 64; where nodes are not counted, the name counts the GPUs."""
    start = f"srun -N {nodes} --ntasks-per-node 8 " if nodes else ""
    audit = _audit(f"{start}python scripts/training/run_recipe.py --recipe {RECIPE}\n")
    assert not [finding for finding in audit.findings if finding.kind == "contradiction"]
    assert audit.job.request is not None
    assert audit.job.request.cluster.num_gpus == 64


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "srun -N 4 --ntasks-per-node 8 python run_recipe.py --recipe llama3_70b_pretrain_32gpu_h100_bf16_config",
            "what llama3_70b_pretrain_32gpu",
        ),
        (
            "tune run --nproc_per_node 8 full_finetune_distributed --config mine/8B_full.yaml",
            "what mine/8B_full.yaml",
        ),
        ("CONFIG_FILE=./mine.toml NGPU=8 ./run_train.sh", "a job of an engine that is known"),
    ],
)
def test_what_an_absent_configuration_states_is_not_made_up(script: str, says: str) -> None:
    """Degrees, batch and checkpointing stand there: with a model and a length alone nothing is priced."""
    flags = Flags(model="llama-3.1-8b", sequence_length="8192", gpu="h100-sxm", gpus="32")
    audit = audited(read_texts({"run.sh": f"{script}\n"}), flags, load_calibration())
    assert audit.predicted is None
    assert audit.job.missing[0].startswith(says)


def _of_titan(config: str, words: str = "") -> Reading:
    """A launch that names a configuration of torchtitan, with what it publishes under that name."""
    return with_published(read_texts({"run.sh": f"NGPU=8 MODULE=x CONFIG={config} ./run_train.sh {words}"}))


def test_what_torchtitan_publishes_is_no_finding() -> None:
    """The user wrote none of its words: nothing of them contradicts what the user wrote.

    One is for a single process: on the eight of this launch it stops at its mesh.
    """
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        names = {row["config"] for row in csv.DictReader(file) if row["engine"] == "torchtitan"}
    findings = {name: findings_of(_of_titan(name), Job(), None) for name in names}
    rules = {name: {one.rule for one in found} for name, found in findings.items() if found}
    assert rules == {"deepseek_v3_16b_minimal_async_ep": {"mesh"}}


SCHEDULE = "parallelism.pipeline_parallel_schedule"


@pytest.mark.parametrize(
    ("words", "gone", "rules"),
    [("", (), set()), (f"--{SCHEDULE} Interleaved1F1B", (SCHEDULE,), {"schedule"})],
)
def test_no_word_is_taken_away_that_no_file_has(words: str, gone: tuple[str, ...], rules: set[str]) -> None:
    """deepseek_v3_16b is published with a schedule and no pipeline; the same word of a user is advised against."""
    reading = _of_titan("deepseek_v3_16b", words)
    job = audited_job(reading, Flags(gpu="h100-sxm"))
    now = running_of(reading, job, load_calibration())
    assert now is not None
    between = words_between(reading, now.facts, {**now.facts, "layout.recompute": "full"})
    assert between is not None
    assert between[1] == gone
    assert {finding.rule for finding in findings_of(reading, job, None)} == rules


def test_a_flag_that_no_file_has_is_named_with_its_table() -> None:
    """A launch of torchtitan takes no ``--pipeline_parallel_degree``."""
    reading = _of_titan("llama3_8b", "--parallelism.tensor_parallel_degree 2")
    assert [spelled_name(reading, name) for name in ("tp", "pp")] == [
        "--parallelism.tensor_parallel_degree",
        "--parallelism.pipeline_parallel_degree",
    ]


NEMO_FILE = """from nemo.collections import llm

def recipe(nodes: int = 4):
    recipe = llm.llama3_70b.pretrain_recipe(dir="/c", name="x", num_nodes=nodes, num_gpus_per_node=8)
    recipe.trainer.strategy.context_parallel_size = 1
    return recipe
"""


def test_a_recipe_of_nemo_that_is_called_is_known_and_changed_by_the_file() -> None:
    """NeMo 2.0's own numbers where the file says nothing, the file's where it does."""
    reading = with_published(read_texts({"nemo.py": NEMO_FILE}))
    degrees = {
        name: reading.facts.count(f"layout.{name}") for name in ("tp", "pp", "cp", "virtual_stages", "dp")
    }
    assert degrees == {"tp": 4, "pp": 4, "cp": 1, "virtual_stages": 5, "dp": 2}
    assert reading.facts.count("job.sequence_length") == 8192
    assert "nemo" in reading.published.lower()


def test_of_two_recipes_none_is_taken() -> None:
    called = recipe_called(NEMO_FILE)
    assert called is not None
    assert called.value == "llama3_70b"
    assert recipe_called(f"{NEMO_FILE}b = llm.llama3_8b.pretrain_recipe()\n") is None
