"""Launch files of other engines: scripts, configurations and logs, of which nothing may be run or opened."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from random import Random

from tests.property.fuzz.mutate import TEXTS, hostile_value, mutated_text
from tests.property.fuzz.surface import Box, answer_of_command

FILES = Path(__file__).parents[2] / "unit" / "planner" / "audit" / "files"
_YAML = """\
policy:
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: ${PP:4}
  train_micro_batch_size: 1
cluster: {gpus_per_node: 8, num_nodes: 16}
data: !include other.yaml
base: &base {train_global_batch_size: &batch 512, sizes: {num_layers: 8}}
more:
  <<: [*base, *base]
  seq_length: *batch
"""
_NANOTRON = """\
parallelism: {dp: 4, expert_parallel_size: 1, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
tokens: {batch_accumulation_per_replica: 1, micro_batch_size: 3, sequence_length: 4096}
model: {dtype: bfloat16, model_config: {hidden_size: 2048, num_hidden_layers: 28, num_attention_heads: 16}}
"""
_TOML = """\
# NOTE: this toml config is a preset for 64 H100 GPUs.
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
"""
_LOG = """\
using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16
  num_layers ...................................... 64
  hidden_size ..................................... 8192
 iteration 1/ 9 | elapsed time per iteration (ms): 155483.8 | global batch size:  1024 | TFLOPs: 149.02 |
 iteration 2/ 9 | elapsed time per iteration (ms): 129000.0 | global batch size:  1024 | TFLOPs: 149.02 |
step: 20  loss: 11.8  memory: 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%
DLLL {"step": "PARAMETER", "data": {"cfg/tensor_model_parallel_size": 4, "cfg/fp8": true}}
:::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 14.2, "throughput": 208833.7}}
"""
_MANIFEST = """\
apiVersion: jobset.x-k8s.io/v1alpha2
spec:
  containers:
    - command: [bash, -c]
      args:
        - |
          torchrun --nnodes=4 --nproc_per_node=8 pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 48
    - command: [python3, -m, sglang.launch_server, --tp, "16", --nnodes, $(SIZE)]
num_nodes: 4
resources: {accelerators: H100:8}
run: |
  deepspeed --num_gpus 8 train.py --per_device_train_batch_size 2 --deepspeed ds_z3.json
"""
_SCRIPT = """\
declare -A LAYERS=( [7b]=32 [13b]=40 ); SIZE=${SIZE:-13b}
let "DP = 64 / (4 * 2)"; (( ACC = 512 / DP )); N=$(expr 8 \\* 2)
launch() { local tp="$1"; shift; pdsh -w "n[1-4]" "cd x && torchrun --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size $tp --num-layers ${LAYERS[$SIZE]} $*"; }
if (( ACC > 8 && DP == 8 )); then launch 4 --bf16; else launch 2; fi
sbatch --wrap="srun python x.py --tensor-model-parallel-size $N"
--tensor-model-parallel-size 4
--num-layers 48 --hidden-size 8192
"""
_RECIPE = """\
from a import recipe
CONFIG = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
def b_64gpu_h100():
    cfg = recipe()
    cfg.mixed_precision = bf16_mixed()
    cfg.model.tensor_model_parallel_size = 4
    cfg.train.global_batch_size = 128
    return cfg
def c_128gpu_h100():
    return _with_global_batch_size(b_64gpu_h100(), 256)
"""
_MORE_LOGS = """\
0: + torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 32
[rank0]:[titan] 2025-05-12 12:01:56,123 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]
[rank0]:[titan] - Trainer is initialized with local batch size 1, global batch size 8, sequence length 8192
[31mstep:  1  [33mmemory: 50.01GiB(52.62%)  [34mtps: 700  [36mtflops: 40.51  [35mmfu: 4.10%[39m
[2024-03-01 08:11:02,000] [INFO] [config.py:984:print]   train_micro_batch_size_per_gpu  4
iteration: 2 / 100 | elapsed_time_per_iteration_ms: 6.5K | tokens_per_sec_per_gpu: 1.26K | model_tflops_per_gpu: 553
global_step=1.000, consumed_samples=4096.0, train_step_timing in s=20.00]
global_step=2.000, consumed_samples=6144.0, train_step_timing in s=20.40]
  Total train batch size (w. parallel, distributed & accumulation) = 128
Step Time : 9.02s GPU utilization: 712.9MODEL_TFLOP/s/GPU
MA 10.1 GB         Max_MA 12.5 GB         CA 13.0 GB
"""
_JSON = '{"train_batch_size": 64, "zero_optimization": {"stage": 3}, "fp16": {"enabled": "auto"}}'
_PIECES = (
    "$(", "${", "$((", "`", "<<EOF", "<<-'E'", "((", "[[", "}", ")", ";;", "esac", "fi", "done", "if true; then", "case $A in",
    "for x in 1 2; do", "f() { f; f; }; f", "A=$A$A", "A+=( ${A[@]} ${A[@]} )", "eval $A", 'bash -c "$A"', "source CANARY/secret.toml",
    "${A:-${B:-${C:-8}}}", "$((9**9**9))", "$((1/0))", "${!A}", "${A//x/y}", "${A##*[!a]*}", "exit 0", "\\", "&a [*a, *a]", "!!python/object:os.system x",
    "(( A = A + 1 ))", "let A=A*A", "((A<<=99))", "shift 9", "$(expr 9 / 0)", "$(expr $(expr $(expr 1)))", "${A[$A]}", "${A[${A[${A}]}]}",
    'ssh h "ssh h \'torchrun x --a\'"', 'pdsh "$A --b python x --a"', "--wrap=", "- command: [", "  args: [*a, [", "run: |", "accelerators: H100:", "with_a(with_a(f(), 1), 1)",
    'x = {"a": {"a": f()}}', "[1m[1m[1m", "0: 1: 2: [", "device mesh with [], []", "consumed_samples=9 global_step=9", "elapsed_time_per_iteration_ms: 9.K",
    "{{", "- - - -", "? a", "%YAML 9", "\t", "|", ">",
)  # fmt: skip


@functools.cache
def seeds() -> tuple[str, ...]:
    """Valid files of every kind."""
    fixtures = [path.read_text(encoding="utf-8") for path in sorted(FILES.iterdir()) if path.suffix != ".csv"]
    return (*fixtures, _YAML, _NANOTRON, _TOML, _LOG, _JSON, _MANIFEST, _SCRIPT, _RECIPE, _MORE_LOGS)


def make_launch(random: Random, story: list[str]) -> str:
    """A launch file with hostile pieces, values and changed text in it."""
    lines = random.choice(seeds()).split("\n")
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        place = random.randrange(len(lines))
        kind = random.random()
        if kind < 0.4:
            piece = random.choice(_PIECES)
            lines[place] = f"{lines[place]} {piece}" if random.random() < 0.5 else f"{piece}\n{lines[place]}"
        elif kind < 0.7:
            value = random.choice(TEXTS) if random.random() < 0.5 else str(hostile_value(random))[:3000]
            head, mark, _ = lines[place].rpartition(random.choice(("=", " ", ":")))
            lines[place] = f"{head}{mark}{value}"
        elif kind < 0.85:
            lines[place : place + random.randrange(6)] = []
            lines = lines or [""]
        else:
            lines[place:place] = lines[:40] * random.choice((1, 3, 20))
        story.append(f"line {place}: {lines[min(place, len(lines) - 1)][:60]!r}")
    text = "\n".join(lines)
    return mutated_text(text, random, story) if random.random() < 0.3 else text


def _path(text: str, box: Box) -> str:
    """The file of an input, under a name that says anything or nothing."""
    names = ("run.sh", "job.slurm", "c.yaml", "c.toml", "c.json", "c.py", "page.md", "out.log", "noname")
    return str(box.file(names[len(text) % len(names)], text))


def read_launch(text: str, box: Box) -> object:
    """What an audit reads of a file."""
    from app.reports.audit.report import audit_document
    from planner.audit.audit import Audit, measured_step_s
    from planner.audit.findings import findings_of
    from planner.audit.job import Job
    from planner.audit.read import read_files

    reading = read_files([_path(text, box)])
    findings = findings_of(reading, Job(), None)
    found = Audit(
        reading=reading, job=Job(), findings=findings, measured_step_s=measured_step_s(reading, Job())
    )
    document = json.loads(json.dumps(audit_document(found), allow_nan=False))
    return {"measured": document["measured"]}


def audit_launch(text: str, box: Box) -> object:
    """The whole command."""
    return answer_of_command(["audit", _path(text, box), "--json"])


LAUNCHES = (
    "$(" * 5000, "${" * 5000, '"$(' * 5000, "$((" * 5000 + "1", "(" * 50_000, "[" * 100_000, "{" * 100_000, "if " * 20_000, "f() { f; f; }\nf\n",
    "A=x\n" + "A=$A$A\n" * 60 + "run --tp-size $A", "A=(x)\n" + "A+=( ${A[@]} ${A[@]} )\n" * 40 + "run --x ${A[@]}", "cat <<EOF\n" * 1000, "while true; do :; done\n" * 500,
    "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(9)),
    "- " * 20_000 + "x", "{a: " * 20_000, "x = " + "(" * 5000, "def f():\n    x = " + "-" * 100_000 + "1\n", "import a\nx = " + "9" * 5000, "x = " + "[" * 90 + "]" * 90,
    '{"a":' * 50_000, "[a]\n" + "a." * 5000 + "b = 1", "[model]\nname = 'a'\n[" + "a." * 90 + "b]\nx = 1", "elapsed time per iteration (ms): 1.0\n" * 50_000,
    "elapsed time per iteration (ms): " + "9" * 5000, "tps: 1 tflops: 2 " + "step: 1 memory: 1GiB " * 5000, ":::MLLOG " + "[" * 50_000, "DLLL {" + '"a":{' * 50_000,
    "(( " * 5000, "let A=1\n" * 20_000, 'pdsh "' + 'pdsh \\"torchrun --a ' * 3000, "--a 1\n" * 50_000, "$(expr " * 3000, "A=([x]=1)\n" + "B=${A[$B]}\n" * 10_000,
    "run: |\n  torchrun x --a\n" * 5000, "- command: [" + "a, " * 50_000 + "]", "f = with_a(" * 50 + "1" + ", 2)" * 50, "x = " + '{"a": ' * 60 + "1" + "}" * 60,
    "step: 1 memory: 1GiB tps: 1 tflops: 2 " * 5000, "[" * 100_000 + "elapsed time per iteration (ms): 1.0", "1: " * 50_000 + "elapsed time per iteration (ms): 1.0",
    "device mesh with [" + "'tp'," * 20_000 + "], [" + "2," * 20_000 + "] elapsed time per iteration (ms): 1.0", "global_step=1 " + "consumed_samples=1 " * 20_000 + "train_step_timing: 1",
    "$((9**9**9**9)) $((1<<99999)) ${A%%*a*a*a*a*a*b}", "A=" + "a" * 50_000 + "\nB=${A##*a*a*a*b}\nrun --x $B", "#SBATCH --nodes=" + "9" * 5000 + "\n#SBATCH --gres=gpu:0\n",
    "torchrun --nproc_per_node 0 --nnodes 0 x.py --tensor-model-parallel-size 0 --pipeline-model-parallel-size -1 --num-layers 1e400",
    "torchrun --nproc_per_node 999999999 x.py --tensor-model-parallel-size 99999999999999 --num-layers 8 --hidden-size 8 --num-attention-heads 3 --seq-length 1",
    "source CANARY/secret.toml\nx=$(cat CANARY/secret.toml)\nrun --tensor-model-parallel-size $x --num-layers 2", "```\n" * 5000, "", "\n" * 100_000, "\x00", "\x1b[31m" * 10_000,
)  # fmt: skip
"""What broke it, and what was made to."""
_MANY = "\n".join(f"V{number}={number}" for number in range(3000)) + "\n"
SLOW = (
    "f() {\n" + '  pdsh -w n "cd x && torchrun x.py --a 1"\n' * 40 + "  f\n  f\n}\nf\n",
    "f() { eval \"$A\"; ssh h \"torchrun x --a $A\"; f; }\nA='" + 'f; ssh h "torchrun x --a"; ' * 300 + "'\nf\n",
    _MANY + "if [ $A = 1 ]; then X=1; else X=2; fi\n" * 6000, _MANY + "f() { X=$1; }\n" + "f 1\n" * 19_000, "A='" + "x " * 40_000 + "'\n" + "run $A $A\n" * 3000,
    "A=(" + "--a 1 " * 20_000 + ")\n" + "torchrun x.py ${A[@]}\n" * 200, "cat <<EOF\n" + "--a 1\n" * 20_000 + "EOF\n" + "torchrun x.py --tp 1\n" * 5000,
    "\n".join(f"def f{n}():\n    x = f{n + 1}()\n    y = f{n + 1}()\n    cfg.tp.tensor_parallel_degree = 3" for n in range(2500)),
    "a:\n" + "  - b: 1\n" * 25_000, "\n".join(f"[a{n}]\nb=1" for n in range(12_000)), "torchrun x.py --tensor-model-parallel-size 8 --num-layers 3 \n" * 4000,
)  # fmt: skip
"""What once took longer than two seconds, or might."""
