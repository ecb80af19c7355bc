"""`plan audit DIR`: what of a folder is one job, and what is said where it is none or several."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import run
from app.commands.audit.answer import AuditQuestion, loads_beside
from app.commands.audit.command import named_files
from app.commands.audit.folder import job_in_folder
from planner.questions.flags import ServeFlags
from tests.cli import commands
from topology.base.errors import InputError

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16\n"
)
LOG = "".join(
    f" iteration {step}/ 100 | consumed samples: {64 * step} | elapsed time per iteration (ms): 2500.0 | "
    "global batch size: 64 |\n"
    for step in range(1, 6)
)
STAGE = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'


def _folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_launch_its_settings_and_its_log_are_one_job(tmp_path: Path) -> None:
    """What is no part of it is named, and not read."""
    folder = _folder(tmp_path, train__sh=SCRIPT, ds__json=STAGE, train__log=LOG, README__md="# a page\n")
    found = job_in_folder(folder)
    assert [Path(name).name for name in found.read] == ["train.sh", "ds.json", "train.log"]
    assert found.words == "read: train.sh, ds.json, train.log; left out: README.md"


def test_of_several_launches_none_is_chosen(tmp_path: Path) -> None:
    folder = _folder(tmp_path, a__sh=SCRIPT, b__sh=SCRIPT.replace("32", "48"), train__log=LOG)
    with pytest.raises(InputError) as refused:
        job_in_folder(folder)
    assert "holds 2 jobs" in refused.value.what
    assert "a.sh (Megatron-LM), b.sh (Megatron-LM)" in refused.value.cause
    assert refused.value.fix.endswith("a.sh")


def test_a_script_and_the_configuration_that_it_names_are_one(tmp_path: Path) -> None:
    config = "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\nsequence_len: 4096\n"
    folder = _folder(tmp_path, run__sh="accelerate launch -m axolotl.cli.train lora.yml\n", lora__yml=config)
    assert {Path(name).name for name in job_in_folder(folder).read} == {"run.sh", "lora.yml"}


def test_a_folder_without_a_job_says_what_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path, notes__txt="hello\n", data__csv="a,b\n")
    assert run(["audit", str(folder)]) == 2
    assert "seen: data.csv, notes.txt" in capsys.readouterr().err


def test_a_command_without_flags_needs_no_dashes_before_it() -> None:
    """Its first word is a program, and no file here has that name."""
    names, texts = named_files([Path("vllm"), Path("serve"), Path("Qwen/Qwen3-8B")])
    assert (names, texts) == (("command.sh",), {"command.sh": "vllm serve Qwen/Qwen3-8B\n"})


def test_the_load_of_a_server_lies_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of a plan has the load that it was planned for, and its GPUs; a file alone says so."""
    question = "serve --model qwen3-8b --gpu l40s --gpus 1 --rate 2/s --input 500 --output-tokens 100"
    assert run([*question.split(), "--deploy", "scripts", "--save-dir", str(tmp_path)]) == 0
    assert {Path(name).name for name in job_in_folder(tmp_path).read} == {
        "node0.sh", "loadtest.sh", "plan.json",
    }  # fmt: skip
    capsys.readouterr()
    assert run(["audit", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["server"]["gpu"], document["loads"][0]["rate"]) == ("l40s", "2.0/s")
    alone = AuditQuestion(files=(str(tmp_path / "node0.sh"),))
    assert loads_beside(alone) == "plan.json, loadtest.sh"
    assert not loads_beside(replace(alone, load=ServeFlags(rate="1/s")))


def test_the_folder_of_a_plan_is_the_fleet_that_was_planned(tmp_path: Path) -> None:
    """Scripts of all its nodes are one job, of which the manifest is another form; without the plan several."""
    folder, words = tmp_path / "saved", ["--ttft", "500ms", "--tpot", "20ms"]
    question = ["serve", "--model", "8b", "--gpu", "h100", "--weights", "bf16", "--rate", "10/s", *words]
    saved = commands.plan(*question, "--json", "--save-dir", str(folder))
    assert saved.returncode == 0, saved.stderr
    planned = json.loads(saved.stdout)
    found = {Path(name).name for name in job_in_folder(folder).read}
    scripts = {path.name for path in folder.glob("node*.sh")}
    assert len(scripts) == planned["num_gpus"] > 1
    assert found >= {*scripts, "loadtest.sh", "plan.json"}
    assert "kubernetes.yaml" not in found
    audited = commands.plan("audit", str(folder), "--json")
    assert audited.returncode == 0, audited.stderr
    server = json.loads(audited.stdout)["server"]
    assert server["num_gpus"] == planned["num_gpus"]
    (folder / "plan.json").unlink()
    with pytest.raises(InputError) as refused:
        job_in_folder(folder)
    assert f"holds {len(scripts) + 1} jobs" in refused.value.what
