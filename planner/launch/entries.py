"""How each engine is started on a node once its ranks are known, and what a user must name for it.

A variable that a run cannot do without stops the script with a message where it is unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        image: Base image of a container.
    """

    words: str
    variables: Mapping[str, str]
    launcher: str = TORCHRUN
    numa: tuple[str, ...] = NUMA_OF_TORCHRUN
    sourced: str = ""
    program: tuple[str, str] | None = None
    package: str
    image: str
    extras: Mapping[str, str] = field(default_factory=dict)


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

_STEPS = {"TRAIN_ITERS": "optimizer steps to train", "LEARNING_RATE": "peak learning rate"}
_PROGRAM = {"PROGRAM": "your training program, a Python file"}
ENTRIES: Mapping[str, Entry] = {
    "megatron": Entry(
        words='"$MEGATRON_LM/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" --data-path "$DATA_PATH"'
        ' --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER" --train-iters "$TRAIN_ITERS"'
        ' --lr "$LEARNING_RATE" --save "$CHECKPOINTS" --load "$CHECKPOINTS"'
        ' --save-interval "${SAVE_INTERVAL:-500}"',
        variables={
            "MEGATRON_LM": "folder of your Megatron-LM checkout",
            "DATA_PATH": "prefix of the .bin and .idx files of your tokens",
            "TOKENIZER": "folder or name of the tokenizer",
            "CHECKPOINTS": "folder for checkpoints that all nodes share",
            **_STEPS,
        },
        sourced="megatron_args.sh",
        package="megatron.core",
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
        variables={"MODULE": "model of torchtitan, as llama3", "CONFIG": "its configuration, as llama3_8b"},
        program=("torchtitan_run.py", _TORCHTITAN),
        package="torchtitan",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "deepspeed": Entry(
        words='"$PROGRAM" --deepspeed ds_config.json',
        variables=_PROGRAM,
        package="deepspeed",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
    "accelerate": Entry(
        words='"$PROGRAM" --training_args training_args.json',
        launcher=ACCELERATE,
        numa=NUMA_OF_ACCELERATE,
        variables=_PROGRAM,
        package="accelerate",
        image="nvcr.io/nvidia/pytorch:25.09-py3",
    ),
}
"""By engine; Meshplan's own executor is started by `plan run`, which the schedulers' own targets write."""
