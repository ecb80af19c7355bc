"""Layouts that people have run and published, as plans of every engine that can be told them."""

from __future__ import annotations

from random import Random

import numpy as np

from costmodel.accuracy.training_runs import read_run, shipped_runs
from costmodel.case import Case
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable
from costmodel.runs.cells import UnsupportedRunError
from costmodel.stack import stack
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import plainest
from planner.plan import Problem
from planner.rules.check import legal
from tests.property.planner.engines.random_plans import Told, told_plan_of
from topology.base.errors import InputError


def published_plans(engine: str) -> list[Told]:
    """Those of the shipped table whose layout, model and precision the engine can be told, in its order."""
    contract, found = CONTRACTS[engine], []
    for row in shipped_runs():
        try:
            run = read_run(row)
        except (UnsupportedRunError, InputError):
            continue
        problem = Problem(
            case=Case(
                model=run.model,
                cluster=run.cluster,
                job=run.job,
                stack=stack(contract.stacks[0]),
                cal=load_calibration(),
            ),
            engine=engine,
        )
        keep, _ = legal(problem, LayoutTable.from_rows([run.layout]))
        if np.all(keep):
            found.append(told_plan_of(Random(row["id"]), contract, problem, plainest(run.layout)))
    return found
