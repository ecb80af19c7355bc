"""Write docs/engines.md from the contracts of engines: `python tools/write_engines_page.py`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.kernels.tables import load_calibration
from costmodel.layout import RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.pipeline.schedules import RECORDS
from costmodel.stack import stack
from planner.engines.contract import Contract
from planner.engines.contracts import CONTRACTS
from planner.launch.bundle import LAUNCHERS, STARTS
from planner.launch.node_order import BLOCKS, HOSTS, KEEPS
from planner.plan import Problem
from planner.rules.check import legal
from topology.builders import default_cluster

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
HEAD = """\
# Engines

What a plan promises is what is launched. `plan --for ENGINE` (by default the engine of the stack) plans
within what the engine can be told. `plan export --to ENGINE` reads back what it wrote and estimates it. It
succeeds only if step time and memory are the plan's. Otherwise it names the fields that differ and what they
cost; `--nearest` writes the nearest and prints both. `--for any` is the space that no engine limits.

One contract per engine (`planner/engines/`) holds its words in both directions, its limits, its environment
and what it does without a word. This page is written from them by `tools/write_engines_page.py`; a test holds
it to them.

The engines' own parsers judge what is written:

- Megatron-LM's `validate_args`, and the configuration and stages it makes of the arguments (megatron-core
  0.19.2)
- Megatron-Bridge's `ConfigContainer` through `runtime_config_update` (0.6.2)
- torchtitan's `Trainer.Config` and `ParallelDims` (0.3.0)
- `DeepSpeedConfig` (0.19.8)
- Accelerate's loader, with the plugins that its launcher makes (1.15.0), in the environment that is
  exported alone

The degrees, batch, stages, shards and recomputation that they derive must be the plan's. Tests ask them of
the default plans, of published layouts and of random ones. Every night asks 2,000 random ones of each
engine (`benchmarks/round_trip.py`). `plan validate` asks them of your plan where the engine is installed.
Elsewhere `MESHPLAN_PARSERS` names an interpreter that has it; `python tools/build_parsers.py FOLDER` makes
one. No GPU is asked: kernels are empty there, and Transformer Engine is taken to be 2.14.

## What can be told

A layout counts as offered if it keeps every rule, with some ZeRO stage, with a dense model and with one of
experts.

"""
LAUNCH = """\
## Launchers

`plan export PLAN.json --to ENGINE --launcher NAME --save-dir DIR` writes a folder that starts the engine.
It holds the settings, `environment.sh` with why each variable is there, `start.sh` for a node, and
`ranks.csv`. Its Dockerfile has a base by version and the last release that the contract describes. The plan
and what the launcher needs lie beside them. Data, tokenizer and the like are variables that stop the script
with a message where they are not named. `preflight.sh` runs first on each node and says plan against found:
GPUs and their memory, the driver, the engine's release, and between nodes the rate of the cards
(`/sys/class/infiniband`, `/sys/class/net`) and whether node 0 answers; `SKIP_PREFLIGHT=1` starts all the
same. Ranks are bound to sockets only where that is named (`NUMA_BINDING=node` for torchrun).

Which node a rank is on is part of the plan. Where hosts differ by what they share (racks of a scale-up
domain, leaves that lose bandwidth) the step is priced in the worst order too. Where the allocation that
was read names its hosts, `hosts` holds them and `ranks.csv` the host of each rank. So every node is where the
plan has it. Elsewhere what an order is worth decides. If the step stays the same, the
README says that any order will do. If not, `HOSTS` names a file with the hosts in the order of `node_rank`,
one a line. Each node looks up its own name in it, whatever number the launcher gave it. Without it nothing
starts; `HOSTS=any` takes the launcher's order. Under Kubernetes Kueue keeps the blocks that the
plan needs; launchers that cannot keep an order refuse with both step times.

Where stages run on unlike nodes, the hosts are in the order of their stages. `preflight.sh` wants of
each node what its rank was planned on: product, memory, driver, NICs. A JobSet has a job with a node selector
for each kind, and refuses where racks within a kind matter. Nodes may have unlike numbers of GPUs (`slurm`,
`torchrun`, `mpi`, `kubernetes`). Other launchers than these and `ray` refuse unlike nodes, and all do where a
stage leaves part of a node unused. `start.sh` names the GPUs of a node of which some are broken.

No launcher has run on a cluster. `shellcheck` finds nothing in any script. The classes of Kubeflow's
Trainer take every word of the JobSet and the TrainJob. Where they are installed, so do kubernetes-validate,
SkyPilot's Task, and the own models of the training operator, SageMaker and Vertex AI. Tests run `start.sh`
and `preflight.sh`. They also run what Slurm, Open MPI, SkyPilot, SageMaker and Vertex AI start on a node,
with the variables that these set. The driver runs with stand-ins for Ray's classes. Open MPI 5's mapper,
where it is installed, has process n on the n-th host of `HOSTS`.

"""
PROGRAM = """\
`program.json` holds what no file of the engine decides: sequence length, attention, batch, accumulation,
precision, optimizer, recomputation. A bundle runs the program by `planned.py`, which hands them on. It stops
the program unless that says before its first step, `planned.check(...)`, that it uses them."""
CELLS: dict[str, dict[str, Any]] = {
    "tensor": {"tp": 2, "sequence_parallel": True}, "tensor, whole sequences": {"tp": 2},
    "pipeline": {"pp": 2}, "context, ring": {"cp": 2}, "context, Ulysses": {"cp": 2, "cp_kind": "ulysses"},
    "context, all-gather": {"cp": 2, "cp_kind": "allgather"},
    "experts": {"ep": 2}, "experts over tp": {"tp": 2, "expert_tp": 2, "sequence_parallel": True},
    "ZeRO-1": {"zero_stage": 1}, "ZeRO-2": {"zero_stage": 2}, "ZeRO-3": {"zero_stage": 3},
    "ZeRO-2 in a pipeline": {"zero_stage": 2, "pp": 2}, "ZeRO-3 in a pipeline": {"zero_stage": 3, "pp": 2},
    "ZeRO-3 within a part": {"zero_stage": 3, "shard_degree": 4},
    **{f"schedule {name}": {"pp": 2, "schedule": name, "virtual_stages": n}
       for name, n in ((name, RECORDS[name].chunks or 2) for name in SCHEDULES)},
    **{f"recompute {name}": {"recompute": name} for name in RECOMPUTES if name != "none"},
    "replicas outside stages": {"pp": 2, "dp": 4, "axis_order": ("dp", "pp", "cp", "tp")},
}  # fmt: skip
_MODELS = ("llama-3.1-8b", "mixtral-8x7b")
_AMOUNTS = {
    "per-rank": "a number of each rank",
    "per-chunk": "one number for all chunks",
    "all": "all or none",
}


def offered(contract: Contract, fields: dict[str, Any]) -> str:
    """Whether the engine can be told a layout: yes, no, or with dense models only."""
    names = _MODELS[1:] if "ep" in fields or "expert_tp" in fields else _MODELS
    verdicts = [_is_offered(contract, name, fields) for name in names]
    return "yes" if all(verdicts) else "dense only" if any(verdicts) else "–"


def _is_offered(contract: Contract, name: str, fields: dict[str, Any]) -> bool:
    """The same with one model, under any ZeRO stage where none is named."""
    problem = Problem(
        case=Case(
            model=model(name),
            cluster=default_cluster("b200-sxm", 64),
            job=TrainingJob(sequence_length=4096, global_batch_size=256),
            stack=stack(contract.stacks[0]),
            cal=load_calibration(),
        ),
        engine=contract.engine,
    )
    layouts = [ParallelLayout(**{"dp": 8, "zero_stage": stage} | fields) for stage in range(4)]
    keep, _ = legal(problem, LayoutTable.from_rows(layouts))
    return bool(keep.any())


def page() -> str:
    """The page."""
    engines = list(CONTRACTS.values())
    lines = [HEAD + _row(["", *(one.title for one in engines)]), _row(["---"] * (len(engines) + 1))]
    lines.append(_row(["`--for`", *(f"`{one.engine}`" for one in engines)]))
    lines.append(
        _row(["versions", *(f"{one.package} {'–'.join(dict.fromkeys(one.releases))}" for one in engines)])
    )
    lines.append(_row(["priced by", *(", ".join(one.stacks) for one in engines)]))
    lines += [_row([name, *(offered(one, fields) for one in engines)]) for name, fields in CELLS.items()]
    lines.append(_row(["recomputed layers", *(_AMOUNTS[one.recomputes] for one in engines)]))
    lines += [_row([f"precision {name}", *(_precision(one, name) for one in engines)]) for name in TRAINING]
    lines += [
        "",
        LAUNCH + _row(["`--launcher`", "writes", "started by", "order of nodes"]),
        _row(["---"] * 4),
    ]
    lines += [_row([f"`{name}`", _writes(name), f"`{STARTS[name]}`", _kept(name)]) for name in LAUNCHERS]
    return "\n".join([*lines, "", *(_section(one) for one in engines)])


def _writes(launcher: str) -> str:
    """What a launcher adds to the folder: the first line that its function says of itself."""
    return (inspect.getdoc(LAUNCHERS[launcher]) or "").splitlines()[0]


def _kept(launcher: str) -> str:
    """How it keeps the plan's order of nodes."""
    said = {HOSTS: "`HOSTS`", BLOCKS: "blocks by Kueue"}
    return said.get(KEEPS[launcher], f"refused: {KEEPS[launcher]}")


def _precision(contract: Contract, name: str) -> str:
    """Whether a precision has words, on a GPU that has the units."""
    job = TrainingJob(sequence_length=4096, global_batch_size=256, precision=name)  # type: ignore[arg-type]
    case = Case(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("b200-sxm", 8),
        job=job,
        stack=stack(contract.stacks[0]),
        cal=load_calibration(),
    )
    problem = Problem(case=case, engine=contract.engine)
    table = LayoutTable.from_rows([ParallelLayout()])
    broken = any(bool(np.any(limit.broken(problem, table))) for limit in contract.limits if not limit.reads)
    return "–" if broken else "yes"


def _section(contract: Contract) -> str:
    """One engine: what it is told by, what it cannot run, what it needs, what it does without a word."""
    words = sum(len(setting.words) for setting in contract.settings)
    spellings = len(contract.spellings)
    limits = ", ".join(f"`{contract.engine}-{limit.name}`" for limit in contract.limits)
    lines = [
        f"## {contract.title}",
        "",
        f"{words} words in {spellings} spellings, from {contract.source}.",
        "",
    ]
    lines += ["| rules of its own |", "|---|", f"| {limits} |", ""]
    lines += [f"The program is yours: it {contract.program}. {PROGRAM}", ""] if contract.program else []
    lines += [f"- `{one.name}={one.value}`: {one.why}." for one in contract.environment]
    lines += [f"- `{name}` without a word: {why}." for name, why in contract.built_in.items()]
    lines += [f"- `{name}` {effect}: read, not priced." for name, effect in contract.unpriced.items()]
    return "\n".join([*lines, ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
