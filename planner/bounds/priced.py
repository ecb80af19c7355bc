"""Layouts of a search with their costs and their memory: what bounds and candidates read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.layout import LayoutTable
from costmodel.training.priced import Priced, price_layouts
from planner.plan import Problem

__all__ = ["Priced", "price_any_sharding", "priced_columns"]


def priced_columns(problem: Problem, table: LayoutTable) -> Priced:
    """Time and memory columns of some layouts."""
    return price_layouts(problem.case, table)


def price_any_sharding(problem: Problem, table: LayoutTable) -> Priced:
    """Time and memory that no sharding of the state of these layouts over a part of their replicas can beat.

    They shard over all replicas, which leaves the least state on a rank; traffic is the least of any part.
    Gradients made on demand that are sharded less take the place of more activations: of all, at most.
    """
    priced = price_layouts(problem.case, table, any_sharding=True)
    on_demand = np.full(len(table), float(problem.stack.memory.gradients_on_demand))
    return replace(priced, pieces=replace(priced.pieces, first_backward_relief=on_demand))
