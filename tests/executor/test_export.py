"""Exports say what the plan says in the words of each tool, and no name can break out of a string."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from planner.engines.accelerate import ACCELERATE, parse
from planner.engines.dotted import flat
from planner.engines.quoting import slug, yaml
from planner.launch.targets import TARGETS, export_plan
from planner.plan import Plan
from tests.executor.conftest import TINY
from tests.unit.planner.engines.priced import priced
from topology.base.errors import InputError
from topology.builders import default_cluster

HOSTILE = 'x"; $(touch /tmp/pwned) `id`\n#SBATCH --partition=root\n- a: {b'
PLAIN = ParallelLayout(dp=8, zero_stage=3)
HYBRID = ParallelLayout(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True)


def test_torchtitan_names_what_the_flavour_must_compute() -> None:
    """The flavour is the user's to choose, the numbers are the model's."""
    notes = export_plan(priced(PLAIN, stack="torchtitan"), "torchtitan").notes
    assert notes[-1].endswith("norm_eps 1e-05, rope_theta 500000, rope scaling llama3 8")


@pytest.mark.parametrize(
    ("target", "layout"),
    [
        ("torchtitan", dataclasses.replace(HYBRID, cp=2, dp=1, cp_kind="ulysses")),
        ("deepspeed", HYBRID),
        ("accelerate", HYBRID),
    ],
)
def test_what_a_tool_cannot_run_is_refused(
    target: str, layout: ParallelLayout, plan_of: Callable[..., Plan]
) -> None:
    """With the number that stands in the way and a change that helps."""
    with pytest.raises(InputError, match=f"{target} cannot run this plan"):
        export_plan(plan_of(layout), target)


def test_deepspeed_batch_triple_multiplies_out() -> None:
    """Micro · accumulation · dp = global, as DeepSpeed's own check demands."""
    config = json.loads(export_plan(priced(PLAIN, stack="pytorch"), "deepspeed").text)
    triple = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [config[name] for name in triple] == [1, 8]
    assert (config["train_batch_size"], config["zero_optimization"]["stage"]) == (64, 3)


@pytest.mark.parametrize("target", TARGETS)
def test_a_hostile_model_name_stays_data(target: str, plan_of: Callable[..., Plan]) -> None:
    """Neither a quote nor a line break of the name reaches the text as syntax."""
    plan = plan_of(ParallelLayout(dp=8) if target in ("horovod", "tensorflow") else PLAIN)
    spec = dataclasses.replace(plan.request.model, name=HOSTILE)
    plan = dataclasses.replace(plan, request=dataclasses.replace(plan.request, model=spec))
    lines = export_plan(plan, target, nearest=True).text.splitlines()
    code = [line for line in lines if not line.startswith("# ") and target != "meshplan"]
    assert not [line for line in code if "touch" in line and "x-touch" not in line]
    assert not [line for line in lines if line.startswith("#SBATCH --partition")]


@pytest.mark.parametrize("target", ["slurm", "megatron"])
def test_shell_texts_parse(target: str, plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Bash reads them without executing."""
    script = tmp_path / "script.sh"
    script.write_text(export_plan(plan_of(PLAIN), target, nearest=True).text, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False, capture_output=True).returncode == 0


SBATCH = {  # long options and the form of their values, from https://slurm.schedmd.com/sbatch.html (24.11)
    "no-kill": r"(off)?",
    "job-name": r"[\w-]+",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "gpus-per-node": r"(\w+:)?\d+",
    "exclusive": r"|user|mcs|topo",
    "signal": r"([RB]{1,2}:)?(\d+|[A-Z]+\d?)(@\d{1,5})?",
    "output": r"([\w.-]|%[AaJjNnstuWx%])+",
}


def test_slurm_options_are_those_of_sbatch(plan_of: Callable[..., Plan]) -> None:
    """Known names, values of their form, all before the first command: sbatch reads none after it."""
    lines = export_plan(plan_of(PLAIN), "slurm").text.splitlines()
    options = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    wrong = [o for o in options if not re.fullmatch(SBATCH[o.split("=")[0]], o.partition("=")[2])]
    command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert (wrong, [line for line in lines[command:] if line.startswith("#SBATCH")]) == ([], [])
    assert {"nodes=1", "gpus-per-node=8"} <= set(options)


def test_slurm_names_the_network_of_several_nodes(plan_of: Callable[..., Plan]) -> None:
    """`plan run` demands it there; one node needs none. The shell stops with the reason where it is missing."""
    plans = [plan_of(ParallelLayout(dp=dp, zero_stage=1), batch=16) for dp in (8, 16)]
    wide = dataclasses.replace(plans[1].request, cluster=default_cluster("h100-sxm", 16).spec)
    one, two = (
        export_plan(plan, "slurm") for plan in (plans[0], dataclasses.replace(plans[1], request=wide))
    )
    assert ("--interface" in one.text, '--interface "${INTERFACE:?' in two.text) == (False, True)
    assert (one.notes, "INTERFACE=NAME" in two.notes[0]) == ((), True)


def test_slurm_warns_as_early_as_the_run_is_told(plan_of: Callable[..., Plan]) -> None:
    """The seconds between Slurm's signal and its kill are those that the ranks may take."""
    text = export_plan(plan_of(PLAIN), "slurm").text
    assert re.findall(r"--signal=USR1@(\d+)|--notice (\d+)", text) == [("120", ""), ("", "120")]


def test_torchtitan_text_fills_a_configuration() -> None:
    """It is Python, and sets the degrees; their product is the number of GPUs."""
    from types import SimpleNamespace

    scope: dict[str, Callable[[SimpleNamespace], SimpleNamespace]] = {}
    plan = priced(dataclasses.replace(HYBRID, zero_stage=2), TINY, stack="torchtitan", sequence_length=16)
    exec(compile(export_plan(plan, "torchtitan").text, "plan", "exec"), scope)  # noqa: S102
    config = SimpleNamespace(
        parallelism=SimpleNamespace(), training=SimpleNamespace(), compile=SimpleNamespace()
    )
    found = scope["apply_plan"](config).parallelism
    degrees = found.tensor_parallel_degree, found.pipeline_parallel_degree, found.data_parallel_shard_degree
    assert (degrees, found.pipeline_parallel_schedule) == ((2, 2, 2), "1F1B")
    assert found.module_fqns_per_model_part == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3", "norm", "lm_head"],
    ]


def test_slugs_are_names_every_scheduler_takes() -> None:
    """Lower-case letters, digits and hyphens, beginning with a letter."""
    assert (slug("70B Llama"), slug("***")) == ("plan-70b-llama", "plan")


def test_yaml_reads_back_as_the_same_data() -> None:
    """A YAML reader sees exactly what was meant."""
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert reader.safe_load(yaml({"a": [[1, "b: c"], {}]})) == {"a": [[1, "b: c"], {}]}


def test_accelerate_is_read_as_a_yaml_reader_reads_it() -> None:
    """The reader of the written file, which is no YAML reader, sees the same."""
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    exported = export_plan(priced(PLAIN, stack="pytorch"), "accelerate")
    files = {exported.file_name: exported.text, **exported.others}
    found = {k: v for k, v in parse(files, ACCELERATE).items() if not k.startswith("trainer.")}
    assert flat(reader.safe_load(exported.text)) == found
    assert json.loads(exported.others["training_args.json"])["gradient_accumulation_steps"] == 8
