"""A bundle on a Ray cluster: Train's TorchTrainer with a worker a node, each of which runs `start.sh`."""

from __future__ import annotations

import json

from planner.launch.entries import Entry
from planner.launch.machines import PlanMachines
from planner.launch.node_order import HOSTS_ARE, NodeOrder
from planner.plan import Plan

DRIVER = '''\
"""Start the plan by Ray Train: a worker a node, which runs start.sh as any other launcher does.

Run it on a host of the Ray cluster: python ray_train.py [words for the engine]
"""

import csv
import os
import subprocess
import sys

import ray
from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer

VARIABLES = @VARIABLES@
ASKED = @ASKED@
# of Ray's own process group, which is not that of the ranks: start.sh sets the like for each of them
THEIRS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "ACCELERATE_TORCH_DEVICE")


def node(told):
    """One node: its rank is that of the worker, and node 0 is where Ray's rank 0 is, unless HOSTS says."""
    names = {name: value for name, value in os.environ.items() if name not in THEIRS}
    names |= {"NODE_RANK": str(get_context().get_world_rank()), "MASTER_PORT": told["port"]}
    subprocess.run(["bash", "start.sh", *told["words"]], env=names, check=True)


def main():
    """As many workers as ranks.csv has nodes, each with the GPUs that it has of a node."""
    for name, what in (VARIABLES | ASKED).items():
        if not os.environ.get(name):
            sys.exit(f"{name}: name the {what}")
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    with open("ranks.csv", newline="", encoding="utf-8") as file:
        nodes = [row["node_rank"] for row in csv.DictReader(file)]
    named = {name: os.environ[name] for name in (*VARIABLES, "HOSTS", "SKIP_PREFLIGHT") if name in os.environ}
    # workers stay in this folder instead of one of the trial
    here = {"working_dir": ".", "env_vars": {**named, "RAY_CHDIR_TO_TRIAL_DIR": "0"}}
    ray.init(runtime_env=here)
    TorchTrainer(
        node,
        train_loop_config={"port": os.environ.get("MASTER_PORT", "29500"), "words": sys.argv[1:]},
        torch_config=TorchConfig(backend="gloo"),  # the GPUs are the ranks' alone
        scaling_config=ScalingConfig(
            num_workers=len(set(nodes)),
            use_gpu=True,
            resources_per_worker={"GPU": nodes.count("0")},
            placement_strategy="STRICT_SPREAD",  # a placement group of a bundle a node
        ),
    ).fit()


if __name__ == "__main__":
    main()
'''


def ray(_: Plan, entry: Entry, __: PlanMachines, order: NodeOrder) -> dict[str, str]:
    """A driver of Ray Train's TorchTrainer; nodes and GPUs are those of ranks.csv."""
    asked = {"HOSTS": f"{HOSTS_ARE}: {order.why}"}
    text = DRIVER.replace("@VARIABLES@", json.dumps(dict(entry.variables), indent=4))
    must = (order.matters or order.listed) and not order.hosts
    return {"ray_train.py": text.replace("@ASKED@", json.dumps(asked if must else {}, indent=4))}
