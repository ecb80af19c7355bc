"""What people type who know another program is answered, or given as the exact command line that is."""

import dataclasses
import io
import re
import shlex
from pathlib import Path

import pytest

from app.cli import COMMANDS, helped, run
from app.entry.other_words import TRAINING, _by_word, _flags_of, command_for, counted_gpus, rewritten
from app.entry.sentences import command_of_sentence
from app.flags.program import known_flags
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from tests.counts import IS_NIGHTLY

LINES = (
    ("8b on 4x4090", "plan --model 8b --gpus 4 --gpu 4090"),
    ("--model 8b --gpus 4x4090", "plan --model 8b --gpus 4 --gpu 4090"),
    ("qlora 8b --gpus 2 --gpu 3090", "plan --model 8b --gpus 2 --gpu 3090 --adapter qlora:r=16"),
    ("compare h100 h200 --model 70b", "plan sweep --model 70b --gpus 32 --gpu h100,h200, with 32 GPUs for example"),
    ("--model 8b --gpus 8 --deepspeed zero2", "plan --model 8b --gpus 8 --for deepspeed --set layout.zero_stage=2"),
    ("serve --model 70b --ngpu 8", "plan serve --model 70b --gpus 8"),

    ("--model 70b --gpus 32 --tp 8", "plan --model 70b --gpus 32 --set layout.tp=8"),
    ("--model 70b --gpus 32 --tensor-model-parallel-size 8", "plan --model 70b --gpus 32 --set layout.tp=8"),
    ("--model 70b --gpus 32 --tensor_parallel_size=8", "plan --model 70b --gpus 32 --set layout.tp=8"),
    ("--model 70b --nodes 4", "plan --model 70b --gpus 32"),
    ("--model 70b --gpu gb200 --nnodes 4", "plan --model 70b --gpu gb200 --gpus 16"),
    ("--model 70b --gpus 4x8", "plan --model 70b --gpus 32"),
    ("--model 70b --gpus 32xh100", "plan --model 70b --gpus 32 --gpu h100"),
    ("--model 70b --gpus 32 --gbs 1024", "plan --model 70b --gpus 32 --global-batch-size 1024"),
    ("--model 70b --gpus 32 --seq-len 4096", "plan --model 70b --gpus 32 --sequence-length 4096"),
    ("--model 70b --gpus 32 --mbs 2", "plan --model 70b --gpus 32 --set layout.microbatch_size=2"),
    ("--model 70b --gpus 32 --gpu h100,a100", "plan sweep --model 70b --gpus 32 --gpu h100,a100"),
    ("--model 70b --gpus 32 --csv", "plan --model 70b --gpus 32 --format csv"),
    ("--model 8b --gpus 8 --lora", "plan --model 8b --gpus 8 --adapter lora:r=16"),
    ("--model 8b --gpus 8 --fsdp", "plan --model 8b --gpus 8 --stack pytorch --set layout.zero_stage=3"),
    (
        "--model 8b --gpus 8 --gradient-checkpointing true",
        "plan --model 8b --gpus 8 --set layout.recompute=full",
    ),
    ("--discover topology.conf", "plan --cluster topology.conf --model 70b, with 70b for example"),
    ("estimate --model 8b --gpus 8 --tp 2 --pp 2", "plan estimate --model 8b --gpus 8 --set layout.tp=2 --set layout.pp=2"),
    ("serve --model 70b --gpu h100-sxm --qps 20", "plan serve --model 70b --gpu h100-sxm --rate 20/s"),
    ("serve --model 70b --isl 4000 --osl 500", "plan serve --model 70b --input 4000 --output-tokens 500"),
    ("serve --model 70b --max-concurrency 64", "plan serve --model 70b --concurrency 64"),
    ("compare a.json b.json", "plan diff a.json b.json"),
    ("vram 70b", "plan estimate --gpus 32 --model 70b"),
    ("dashboard", "plan dash"),
    ("optimize train.sh", "plan audit train.sh"),
    ("vllm serve org/Llama-3.1-70B --tensor-parallel-size 4", "plan audit -- vllm serve org/Llama-3.1-70B --tensor-parallel-size 4"),
    ("vllm serve org/Llama-3.1-8B -tp 4", "plan audit -- vllm serve org/Llama-3.1-8B -tp 4"),
    ("megatron sft --model 8b --tensor-model-parallel-size 8", "plan audit -- megatron sft --model 8b --tensor-model-parallel-size 8"),
    ("trtllm-serve llama --tp_size 8", "plan audit -- trtllm-serve llama --tp_size 8"),
    ("kubectl apply -f job.yaml", "plan audit job.yaml"),
    ("sky launch x.yaml", "plan audit x.yaml"),
    ("sbatch --nodes 4 train.sbatch", "plan audit train.sbatch"),
    ("accelerate estimate-memory meta-llama/Llama-3.1-8B", "plan memory meta-llama/Llama-3.1-8B"),
    ("--model 70b --gpus 32 --mxfp8", "plan --model 70b --gpus 32 --precision mxfp8"),
    ("--model 70b --gpus 32 --nvfp4", "plan --model 70b --gpus 32 --precision nvfp4"),
    ("ladder 8b 8 h100 length", "plan ladder --model 8b --gpus 8 --gpu h100 --knob length"),
    ("max context for 8b on one h100", "plan ladder --model 8b --gpus 1 --gpu h100 --knob length"),
    ("memory 8b 4096 8", "plan estimate --model 8b --gpus 8 --sequence-length 4096"),
    ("70b 64 h200 ttft", "plan serve --model 70b --gpus 64 --gpu h200, without ttft"),
    ("8 nodes of 8 h100 70b", "plan --model 70b --gpus 64 --gpu h100"),
    ("cost of 70b on 1T tokens 512 h100 at $2", "plan --model 70b --gpus 512 --gpu h100 --tokens 1T --set cluster.usd_per_gpu_hour=2"),
    ("mfu of 8b on 64 h100 at 32k", "plan --model 8b --gpus 64 --gpu h100 --sequence-length 32k"),
    ("70b on 32 h100", "plan --model 70b --gpus 32 --gpu h100"),
    ("'70b on 32 h100s?'", "plan --model 70b --gpus 32 --gpu h100"),
    ("train llama 3.1 70b 64xh200 fp8 tp 8", "plan --model llama-3.1-70b --gpus 64 --gpu h200 --precision fp8 --set layout.tp=8"),
    ("how many gpus for 70b", "plan --model 70b --gpus ..1024 --objective gpus --tokens 1T --deadline 30d, with 1T tokens in 30 days for example"),
    ("deepseek-v3 on 256 nodes of h800", "plan --model deepseek-v3 --gpus 2048 --gpu h800"),
    ("can i finetune 8b on a 4090 with lora", "plan --model 8b --gpus 1 --gpu 4090 --adapter lora:r=16"),
    ("why is 70b slow", "plan explain --model 70b --gpus 32, with 32 GPUs for example"),
    ("compare h100 b200", "plan sweep --model 70b --gpus 32 --gpu h100,b200, with 70b and 32 GPUs for example"),
    ("70b on 4xnodes", "plan --model 70b --gpus 32"),
    ("does 70b fit on one gpu", "plan --model 70b --gpus 1"),
    ("memory for 8b lora", "plan memory 8b --adapter lora:r=16"),
    ("how many gpus for 70b with 2T tokens", "plan --model 70b --gpus ..1024 --tokens 2T --objective gpus --deadline 30d, with 30 days for example"),
    ("how many h100 to train 405b in 30 days on 15T tokens", "plan --model 405b --gpus ..49152 --gpu h100 --deadline 30d --tokens 15T --objective gpus"),
    ("70b in 2 weeks on 1T tokens", "plan --model 70b --gpus ..1536 --deadline 14d --tokens 1T --objective gpus"),
    ("70b 2 weeks 1T tokens", "plan --model 70b --gpus ..1536 --deadline 14d --tokens 1T --objective gpus"),
    ("405b 16k h100 90 days 15T tokens", "plan --model 405b --gpus 16k --gpu h100 --deadline 90d --tokens 15T"),
    ("70b on 64 h100 1T tokens 36h", "plan --model 70b --gpus 64 --gpu h100 --tokens 1T --deadline 36h"),
    ("70b on 64 h100 in 3 days", "plan --model 70b --gpus 64 --gpu h100 --deadline 3d --tokens 1T, with 1T tokens for example"),
    ("8b 3 h100", "plan --model 8b --gpus 3 --gpu h100"),
    ("8b 8 h100", "plan --model 8b --gpus 8 --gpu h100"),
    ("how many gpus to fit 405b", "plan --model 405b --gpus 8"),
    ("infer 70b on 8 h100", "plan serve --model 70b --gpus 8 --gpu h100"),
    ("memory llama 70b", "plan memory llama-70b"),
    ("memory 70b fp8 on 8 h100 seq 32k", "plan estimate --model 70b --gpus 8 --gpu h100 --precision fp8 --sequence-length 32k"),
    ("serve 70b fp8 on 16 h100", "plan serve --model 70b --gpus 16 --gpu h100 --weights fp8"),
    ("cost of 70b on 1024 gpus 15T tokens", "plan --model 70b --gpus 1024 --tokens 15T"),
    ("--model 70b --gpus 32 --lr 1e-4", "plan --model 70b --gpus 32"),
    ("--model 70b --gpus 32 --deepspeed ds.json", "plan --model 70b --gpus 32 --for deepspeed"),
    ("--model 70b --gpus 32 --nproc_per_node 8 --nnodes 4", "plan --model 70b --gpus 32"),
    ("--model 70b --gpus 32 --gres gpu:8", "plan --model 70b --gpus 32"),
    ("--model 70b --gpus 32 --max-model-len 8192", "plan --model 70b --gpus 32 --sequence-length 8192"),
    ("estimate --model 8b --gpus 8 --layout tp=2,pp=2", "plan estimate --model 8b --gpus 8 --set layout.tp=2 --set layout.pp=2"),
    ("serve org/Llama-3.1-70B --tensor-parallel-size 4", "plan serve --model org/Llama-3.1-70B --set layout.tp=4"),
    ("vram llama-3.1-70b --gpus 16", "plan estimate --model llama-3.1-70b --gpus 16"),
    ("audit --nproc_per_node 8 train.py", "plan audit -- torchrun --nproc_per_node 8 train.py"),
    ("audit pyproject.toml --tp 8", "plan audit pyproject.toml --set layout.tp=8"),
    ("audit pyproject.toml --nodes 2 --max-steps 3",
     "plan audit pyproject.toml --gpus 16, without --max-steps: tokens to train on are steps × sequences of a step × their length: --tokens 1T"),
    ("serve --model 70b --tp 8 --max-num-seqs 256 --rate 10/s",
     "plan serve --model 70b --set layout.tp=8 --rate 10/s, without --max-num-seqs: how many requests a server holds at once follows from its cache; --concurrency 64 asks for so many in flight"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "meant"), LINES)
def test_the_exact_command_is_given(line: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Three lines, exit code 2, and nothing is planned in its place."""
    assert run(shlex.split(line)) == 2
    out, told = capfd.readouterr()
    assert out == ""
    assert told.splitlines()[-1] == f"help:  write {meant}"


@pytest.mark.parametrize(
    "line",
    [
        "70b on mars",
        "hello",
        "70b 13b on 32 h100",
        "32 h100",
        "70b 32 64",
        "gpus",
        "serve 70b lora",
        "70b on 64 h100 tp 8 or pp 8",
        "70b on 32 h100 bf16 vs fp8",
        "8b tp 2 or tp 4",
        "70b 3 racks",
        "70b 30 minutes",
    ],
)
def test_words_that_are_not_understood_give_no_other_question(line: str) -> None:
    assert command_of_sentence(line.split()) == ""


@pytest.mark.parametrize(
    "line", ["", "-h", "help", "help serve", "serve -h", "gpus h100", "--install-completion"]
)
def test_ways_of_asking_are_answered(
    line: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help without a word of ours, and what one GPU is."""
    words = ["--show-completion", "bash"] if "completion" in line else shlex.split(line)
    monkeypatch.setattr("sys.argv", ["plan", *words])
    assert run(words) == 0
    assert capfd.readouterr().out.strip()


@pytest.mark.parametrize("command", [*TRAINING, "serve"])
def test_what_is_offered_has_only_flags_of_the_command(command: str) -> None:
    """Each of the words of other programs, alone; where the command has the flag, it is not rewritten."""
    known = known_flags(command)
    for word in _flags_of(command):
        name, _, value = word.partition("=")
        dashes = "-" if len(name) == 1 else "--"
        meant = rewritten([command, f"{dashes}{name}", value or "7"], command, known)
        if f"{dashes}{name}" in known or not meant:
            continue
        for line in meant.split(" && "):
            _, *parts = shlex.split(line)
            target = parts[0] if parts and parts[0] in COMMANDS else "train"
            flags = {each for each in parts if each.startswith("--")}
            assert flags <= {*known_flags(target), "--help", "--version"}, (word, meant)


def test_every_word_means_a_command() -> None:
    """None is a command itself, and each is rewritten to one."""
    for word in _by_word("commands"):
        assert word not in COMMANDS
        meant = shlex.split(command_for([word]))[1]
        assert meant in (*COMMANDS, "--model", "--help", "--version", "--install-completion")


def test_fields_that_are_offered_exist() -> None:
    """Of the layout, the job and the cluster."""
    layouts = {field.name for field in dataclasses.fields(ParallelLayout)}
    jobs = {field.name for field in dataclasses.fields(TrainingJob)}
    nodes = {"nic_bandwidth_bytes_per_s", "usd_per_gpu_hour"}
    names = {"layout": layouts, "job": jobs, "cluster": nodes}
    for table in ("every", "train", "serve"):
        for here in _by_word(table).values():
            for group, field in re.findall(r"--set (\w+)\.(\w+)", here):
                assert field in names[group], here


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("70b 32", "plan --model 70b --gpus 32"), ("serve 70b", "plan serve --model 70b"),
        ("estimate 70b 32 --json", "plan estimate --model 70b --gpus 32 --json"),
        ("meta-llama/Llama-3.1-8B-Instruct --gpus 8", "plan --model meta-llama/Llama-3.1-8B-Instruct --gpus 8"),
        ("audit torchrun --nproc_per_node 8 train.py --tp 8", "plan audit -- torchrun --nproc_per_node 8 train.py --tp 8"),
        ("--model 70b --nodes 4 --gpus-per-node 8", "plan --model 70b --gpus 32"),
        ("--model 70b --nnodes 4 --nproc-per-node 4",
         "plan --model 70b --gpus 16 --set cluster.gpus_per_node=4 --set cluster.count=4 --set cluster.nics_per_node=4"),
        ("--model 70b -g 32 -v", "plan --model 70b --gpus 32"), ("--model 70b -N 4", "plan --model 70b --gpus 32"),
        ("--model 70b --gpus 32 --explain", "plan explain --model 70b --gpus 32"),
        ("--model 70b --gpus 32 --strategy fsdp", "plan --model 70b --gpus 32 --stack pytorch --set layout.zero_stage=3"),
        ("--model 70b --gpus 32 --ib 400",
         "plan --model 70b --gpus 32 --set cluster.nic_bandwidth_bytes_per_s=400Gbit/s"),
        ("--model 70b --gpus 32 --optimizer adam8bit", "plan --model 70b --gpus 32 --set job.optimizer=adamw-8bit"),
        ("--model 70b --gpus 32 --export megatron",
         "plan --model 70b --gpus 32 --output plan.json && plan export plan.json --to megatron"),
        ("--model 70b --gpus 32 --tokens 1T --hours 24", "plan --model 70b --gpus 32 --tokens 1T --deadline 24h"),
        ("--model 8b --gpus 1 --peft qlora", "plan --model 8b --gpus 1 --adapter qlora:r=16"),
        ("serve --model 70b --p99 2s", "plan serve --model 70b --percentile 99 --ttft 2s"),
        ("optimize --model 70b --gpus 32", "plan --model 70b --gpus 32"), ("version", "plan --version"),
        ("params 70b", "plan models 70b"), ("-V", "plan --version"),
    ],
)  # fmt: skip
def test_lines_of_a_first_hour(line: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Bare words, letters, flags of two things, and questions that another command answers."""
    assert run(shlex.split(line)) == 2
    assert capfd.readouterr().err.splitlines()[-1] == f"help:  write {meant}"


def test_flags_that_look_like_none_are_not_guessed(capfd: pytest.CaptureFixture[str]) -> None:
    """A letter amiss is; a word of no meaning here is sent to the help."""
    assert run(shlex.split("--model 70b --gpus 32 --presision fp8")) == 2
    assert "did you mean --precision?" in capfd.readouterr().err
    assert run(shlex.split("--model 70b --gpus 32 --frobnicate 3")) == 2
    assert "see `plan train --help`" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "help_line"),
    [
        ("--model 70b --gpus 32 --steps 1000", "--tokens 1T"), ("--model 70b --gpus 32 --memory 80", "four keys"),
        ("--layers 80 --hidden 8192 --gpus 32", "--model config.json"), ("serve --model 70b --slo 500ms", "--ttft 500ms"),
        ("--model 70b --gpus 32 --offload", "--offload WHAT[:SHARE]: Keep in host memory"),
        ("diff", "write plan diff A.json B.json"), ("audit", "write plan audit FILE"),
    ],
)  # fmt: skip
def test_what_no_flag_says_is_told_instead(
    line: str, help_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what a flag or a command lacks."""
    assert run(shlex.split(line)) == 2
    assert help_line in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("vllm serve --model 70b --qps 2 --gpu h100-sxm", "serve --model 70b --rate 2/s --gpu h100-sxm"),
        ("search --model 8b --gpus 8 --tp 8", "--model 8b --gpus 8 --set layout.tp=8"),
        ("--model 8b --gpus 8 --fsdp", "--model 8b --gpus 8 --stack pytorch --set layout.zero_stage=3"),
        ("--model 8b --gpus 8 --zero-stage 2", "--model 8b --gpus 8 --stack pytorch --set layout.zero_stage=2"),
        ("--model 8b --gpus 8 --zero3 --for torchtitan", "--model 8b --gpus 8 --set layout.zero_stage=3 --for torchtitan"),
        ("--model 8b --gpus 8 --optim adamw_torch", "--model 8b --gpus 8 --set job.optimizer=adamw"),
        ("--model 8b --gpus 8 --framework megatron-lm", "--model 8b --gpus 8 --for megatron"),
        ("serve --model 8b --qps 2/s --gpu h100-sxm", "serve --model 8b --rate 2/s --gpu h100-sxm"),
        ("serve --model 8b --qps 2 --dtype bfloat16 --gpu h100-sxm", "serve --model 8b --rate 2/s --weights bf16 --gpu h100-sxm"),
        ("serve --model 8b --qps 2 --kv-cache-dtype auto --gpu h100-sxm", "serve --model 8b --rate 2/s --gpu h100-sxm"),
    ],
)  # fmt: skip
def test_what_is_offered_is_answered(line: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Values that other programs call differently are ours, too, and no further flag is refused.

    What is offered of fleets is compared over precisions and modes in the nightly run alone.
    """
    assert run(shlex.split(line)) == 2
    assert f"write plan {meant}\n" in capfd.readouterr().err
    narrowed = ["--mode", "aggregated"] if meant.startswith("serve") else []
    narrowed += ["--weights", "fp8"] if narrowed and "--weights" not in meant else []
    assert run([*shlex.split(meant), *([] if IS_NIGHTLY else narrowed)]) == 0


def test_flags_of_ours_stay() -> None:
    """A line that is right is not rewritten; a value that looks like another's flag is one."""
    assert rewritten(["--model", "70b", "--gpus", "32"], "train", ("--model", "--gpus")) == ""
    assert counted_gpus(["--model", "70b", "--gpus", "32"], "train") == ""
    assert command_for(["train"]) == ""
    assert rewritten(["--tp"], "train") == ""


def test_a_sweep_lists_degrees(capfd: pytest.CaptureFixture[str]) -> None:
    """Six cells, with the reason of every empty one."""
    line = "sweep --model 8b --gpus 8 --set layout.tp=1,2,4 --set layout.pp=1,2 -b 64 --format csv"
    assert run(shlex.split(line)) == 0
    rows = capfd.readouterr().out.strip().splitlines()
    assert len(rows) == 7


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    "--global-batch-size 128 --bf16"
)


def test_an_audit_reads_standard_input_and_a_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are read as the file that holds them is."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MEGATRON.encode())))
    run(["audit", "-", "--gpu", "h100"])
    piped = capfd.readouterr().out
    run(["audit", "--gpu", "h100", "--", *shlex.split(MEGATRON)])
    summary = [
        text.replace("command.sh", "stdin").partition("\n\n")[0] for text in (piped, capfd.readouterr().out)
    ]
    assert summary[0].split() == summary[1].split()
    assert "Megatron-LM" in piped
    assert "tp 8" in piped


def test_a_command_keeps_its_words_and_the_files_beside_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A -h of the command is the command's; a log beside it is read; no folder of ours is named."""
    words = helped(["audit", "-h", "--", "torchrun", "-h"])
    assert words == ["audit", "--help", "--", "torchrun", "-h"]
    log = tmp_path / "train.log"
    log.write_text("iteration 10/ 100 | elapsed time per iteration (ms): 3000.0 |\n", encoding="utf-8")
    run(["audit", str(log), "--gpu", "h100", "--json", "--", *shlex.split(MEGATRON)])
    out = capfd.readouterr().out
    assert '"command.sh"' in out
    assert "train.log" in out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": ')))
    assert run(["audit", "-"]) == 2
    assert capfd.readouterr().err.startswith("error: stdin is not valid JSON")


def test_what_is_piped_is_never_cut(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a file may hold is refused, and bytes that are no text are."""
    for content, what in ((b"x" * 7_000_000, "is too large"), (b"\xff\xfe", "is no text")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert run(["audit", "-"]) == 2
        assert capfd.readouterr().err.startswith(f"error: standard input {what}")


def test_a_kind_and_machines_are_two_questions(capfd: pytest.CaptureFixture[str]) -> None:
    """None is answered in silence."""
    assert run(["gpus", "h100", "--machines"]) == 2
    assert "write plan gpus h100" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "meant"),
    [("discover", "plan topology --here"), ("discover s.txt", "plan topology --discover s.txt")],
)
def test_a_command_without_its_value_is_whole(
    line: str, meant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is offered can be typed, and no second command is suggested beside it."""
    assert run(shlex.split(line)) == 2
    message = capfd.readouterr().err
    assert message.splitlines()[-1] == f"help:  write {meant}"
    assert "Did you mean" not in message


def test_empty_standard_input_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In three lines."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    assert run(["audit", "-"]) == 2
    assert capfd.readouterr().err.startswith("error: standard input is empty")


@pytest.mark.parametrize(
    ("line", "what", "fix"),
    [
        ("audit https://example.org/a/train.sh", "an address is no file", "plan audit train.sh"),
        ("topology topo.txt", "topo.txt does not exist", "check the path"),
    ],
)
def test_what_is_no_file_here_is_told_so(
    line: str,
    what: str,
    fix: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address is not fetched, and a dump that is not there is no name of a cluster."""
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line)) == 2
    told = capfd.readouterr().err
    assert what in told
    assert fix in told


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--model 70b --gpus 32 --parallelism.tensor_parallel_degree 8", "plan --model 70b --gpus 32 --set layout.tp=8"),
        ("--model 70b --gpus 32 --train.global_batch_size=512", "plan --model 70b --gpus 32 --global-batch-size=512"),
        ("-m 70b -n 32 -g h100", "plan -m 70b -n 32 --gpu h100"),
        ("--model 8b --gpus 32 --hsdp", "plan --model 8b --gpus 32 --stack pytorch --set layout.zero_stage=3 --set layout.shard_degree=8"),
        ("--model 8b --gpus 8 --fsdp-sharding-strategy SHARD_GRAD_OP", "plan --model 8b --gpus 8 --stack pytorch --set layout.zero_stage=2"),
        ("--list-models", "plan models"), ("list gpus", "plan gpus"), ("quickstart", "plan --help"), ("status", "plan watch"),
        ("train.sh", "plan audit train.sh"), ("job.sbatch --gpus 64", "plan audit job.sbatch --gpus 64"),
        ("show plan.json", "plan verify plan.json"), ("show llama", "plan models llama"),
        ("memory --model 70b --tp 8", "plan estimate --model 70b --gpus 32 --set layout.tp=8"),
        ("export --model 70b --gpus 32 --to deepspeed", "plan --model 70b --gpus 32 --output plan.json && plan export plan.json --to deepspeed"),
        ("generate --model 70b --gpus 32 --framework megatron", "plan --model 70b --gpus 32 --for megatron"),
        ("compare --model 70b --gpu h100 --gpu b200", "plan sweep --model 70b --gpu h100,b200 --gpus 32, with 32 GPUs for example"),
        ("what is the best tp for 70b on 32 h100", "plan --model 70b --gpus 32 --gpu h100"),
        ("will 70b fit on 8 a100 40gb", "plan --model 70b --gpus 8 --gpu a100-40gb"),
        ("llama 70b 64 gpus h100 sequence length 128k", "plan --model llama-70b --gpus 64 --gpu h100 --sequence-length 128k"),
        ("qwen3 32b sft 8 h100", "plan --model qwen3-32b --gpus 8 --gpu h100"),
        ("serve llama-70b on 8 h200 with 20 requests per second", "plan serve --model llama-70b --gpus 8 --gpu h200 --rate 20/s"),
        ("why is my training slow", "plan audit train.sh train.log, with the launch file and the log of the job"),
    ],
)  # fmt: skip
def test_lines_that_had_no_way_out(line: str, meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Flags of an engine's tables, questions with a memory or a rate, files, and words of other tools."""
    assert run(shlex.split(line)) == 2
    assert capfd.readouterr().err.splitlines()[-1] == f"help:  write {meant}"


@pytest.mark.parametrize(
    ("line", "help_line"),
    [
        ("--model 70b --gpus 32 --use-flash-attn", "--set switch.attention_kernel=fa3"), ("--config job.yaml", "plan audit FILE"),
        ("--model 70b --gpus 32 --plot", "plan dash"), ("what does zero 3 do", "plan 70b on 32 h100"),
        ("serve --model 70b --speculative-model 8b", "--drafter"), ("--model lama-70b --gpus 32", "llama-3.1-70b"),
    ],
)  # fmt: skip
def test_a_line_without_a_command_is_told_a_next_step(
    line: str, help_line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a name that begins within a word of another model's is no name of it."""
    assert run(shlex.split(line)) == 2
    assert help_line in capfd.readouterr().err.splitlines()[-1]
