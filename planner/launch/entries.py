"""How each engine is started on a node once its ranks are known, and what a user must name for it.

A variable that a run cannot do without stops the script with a message where it is unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.engines.quoting import shell
from planner.launch.programs import PLANNED_FILE
from topology.base.version import VERSION

TORCHRUN = (
    'torchrun --nnodes={nodes} --nproc-per-node={each} --node-rank="$NODE_RANK" --rdzv-backend=static'
    ' --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    ' ${{NUMA_BINDING:+--numa-binding="$NUMA_BINDING"}}'
)
ACCELERATE = (
    "accelerate launch --config_file accelerate.yaml --num_machines {nodes} --num_processes {all}"
    ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'
)

IMAGE = "<image of the Dockerfile>"
"""What a container runs: the user's build of the Dockerfile, with the bundle at /plan."""

_NUMA_WHY = "on the cores of its GPU's own socket a rank keeps copies off the link between sockets;"
NUMA_OF_TORCHRUN = (_NUMA_WHY, "not set unless you name it: NUMA_BINDING=node, from torch 2.9 on")
NUMA_OF_ACCELERATE = (_NUMA_WHY, "not set unless you name it: ACCELERATE_CPU_AFFINITY=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The program of one engine.

    Attributes:
        words: What a rank runs, after the launcher's own words; shell text of this module alone.
        variables: What the user names, by variable: the message that stops the script where it is unset.
        launcher: What runs it on every GPU of a node, with `nodes`, `each` GPUs of a node and `all` of them.
        numa: Why a rank should be bound to a socket, and how, each a line.
        sourced: A file of the engine that the shell reads first.
        program: A file that is written beside the engine's, its name and its text.
        package: What must be importable on every node.
        checkout: The variable that names a folder it is looked for first, if there is one.
        image: Base image of a container.
        before: Lines of the shell before the launcher, with its fields.
        lists_hosts: Whether it is told all hosts, and not just the first.
        torch: Whether it runs on torch.
        requirement: What pip puts into that image; the contract's last release if None, nothing if empty.
    """

    words: str
    variables: Mapping[str, str]
    launcher: str = TORCHRUN
    numa: tuple[str, ...] = NUMA_OF_TORCHRUN
    sourced: str = ""
    program: tuple[str, str] | None = None
    package: str
    checkout: str = ""
    image: str
    before: tuple[str, ...] = ()
    lists_hosts: bool = False
    torch: bool = True
    requirement: str | None = None

    @property
    def install(self) -> str:
        """What puts the engine into that image; nothing where it has it."""
        return f"python -m pip install --no-cache-dir {shell(self.requirement)}" if self.requirement else ""


_TORCHTITAN = '''\
"""Train by torchtitan with the plan; arguments as for torchtitan.train: --module MODEL --config NAME."""

import torchtitan_plan
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

if __name__ == "__main__":
    init_logger()
    config = torchtitan_plan.apply_plan(ConfigManager().parse_args())
    trainer = config.build()
    trainer.train()
    trainer.close()
'''

_BRIDGE = '''\
"""Train by Megatron-Bridge with the plan: the recipe is named as package.module:function."""

import importlib
import os

import bridge_plan
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

if __name__ == "__main__":
    module, _, name = os.environ["RECIPE"].partition(":")
    pretrain(bridge_plan.apply_plan(getattr(importlib.import_module(module), name)()), forward_step)
'''

HOROVOD = (
    '[ "$NODE_RANK" = 0 ] || exit 0  # horovodrun of node 0 starts the ranks of every host, by ssh',
    'hosts=""',
    'for name in ${{names:-localhost}}; do hosts="$hosts,$name:{each}"; done',
)
TENSORFLOW = (
    'workers=""',
    r'for name in ${{names:-localhost}}; do workers="$workers, \"$name:$MASTER_PORT\""; done',
    """config='{{"cluster": {{"worker": [%s]}}, "task": {{"type": "worker", "index": %s}}}}'""",
    "# shellcheck disable=SC2059  # the words of the format are ours",
    'TF_CONFIG=$(printf "$config" "${{workers#, }}" "$NODE_RANK")',
    "export TF_CONFIG",
)
MESHPLAN = (
    'export GLOO_SOCKET_IFNAME="$INTERFACE" NCCL_SOCKET_IFNAME="=$INTERFACE"',
    "# ranks of the other nodes start when those of node 0 meet them, after it has written the run",
    '[ "$NODE_RANK" != 0 ] || plan run plan.json --run-dir "$RUN_DIR" --data "$DATA" --dry-run \\',
    '  ${{TOKENIZER:+--tokenizer "$TOKENIZER"}} \\',
    '  --steps "$TRAIN_ITERS" --learning-rate "$LEARNING_RATE" --interface "$INTERFACE" >&2',
)

USUAL_SAVE_INTERVAL = "${SAVE_INTERVAL:-500}"
"""Steps between checkpoints of a plan without a campaign."""

_STEPS = {"TRAIN_ITERS": "optimizer steps to train", "LEARNING_RATE": "peak learning rate"}
_PLANNED = f'{PLANNED_FILE} "$PROGRAM"'
_PROGRAM = {"PROGRAM": "training program, a Python file of yours"}
ENTRIES: Mapping[str, Entry] = {
    "megatron": Entry(
        words='"$MEGATRON_LM/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" --data-path "$DATA_PATH"'
        ' --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER" --train-iters "$TRAIN_ITERS"'
        ' --lr "$LEARNING_RATE" --save "$CHECKPOINTS" --load "$CHECKPOINTS"'
        f' --save-interval "{USUAL_SAVE_INTERVAL}"',
        variables={
            "MEGATRON_LM": "folder of your Megatron-LM checkout",
            "DATA_PATH": "prefix of the .bin and .idx files of your tokens",
            "TOKENIZER": "folder or name of the tokenizer",
            "CHECKPOINTS": "folder for checkpoints that all nodes share",
            **_STEPS,
        },
        sourced="megatron_args.sh",
        package="megatron.core",
        checkout="MEGATRON_LM",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "megatron-bridge": Entry(
        words="bridge_run.py",
        variables={"RECIPE": "recipe of the model as package.module:function"},
        program=("bridge_run.py", _BRIDGE),
        package="megatron.bridge",
        image="nvcr.io/nvidia/nemo:25.09",
    ),
    "torchtitan": Entry(
        words='torchtitan_run.py --module "$MODULE" --config "$CONFIG"',
        variables={
            "MODULE": "model of torchtitan, as llama3",
            "CONFIG": "configuration of that model, as llama3_8b",
        },
        program=("torchtitan_run.py", _TORCHTITAN),
        package="torchtitan",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "deepspeed": Entry(
        words=_PLANNED,
        variables=_PROGRAM,
        package="deepspeed",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "accelerate": Entry(
        words=_PLANNED,
        launcher=ACCELERATE,
        numa=NUMA_OF_ACCELERATE,
        variables=_PROGRAM,
        package="accelerate",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "colossalai": Entry(
        words=_PLANNED,
        variables=_PROGRAM,
        package="colossalai",
        image="pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel",
    ),
    "horovod": Entry(
        words=_PLANNED,
        variables=_PROGRAM,
        launcher='horovodrun -np {all} -H "${{hosts#,}}" python',
        numa=(
            _NUMA_WHY,
            "not set unless you name it: HOROVOD_THREAD_AFFINITY, a core for each rank of a host",
        ),
        package="horovod",
        image="horovod/horovod:0.28.1",
        requirement="",
        before=HOROVOD,
        lists_hosts=True,
    ),
    "tensorflow": Entry(
        words=_PLANNED,
        variables=_PROGRAM,
        launcher="python",
        numa=(_NUMA_WHY, "one process has all GPUs of a host here: nothing to bind"),
        package="tensorflow",
        image="tensorflow/tensorflow:2.20.0-gpu",
        requirement="",
        before=TENSORFLOW,
        lists_hosts=True,
        torch=False,
    ),
    "meshplan": Entry(
        words='-m executor.training.worker "$RUN_DIR/run.json"',
        variables={
            "RUN_DIR": "folder of the run that all nodes share",
            "DATA": "file of tokens, or synthetic, or text with TOKENIZER set",
            "INTERFACE": "network interface that only the nodes of the job reach",
            **_STEPS,
        },
        package="executor",
        image="python:3.12-slim-bookworm",
        requirement=f"meshplan[run]=={VERSION}",
        before=MESHPLAN,
    ),
}
"""By engine."""
