"""Layouts of a search with their costs and their memory: what bounds and candidates read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.training.priced import Priced, price_layouts
from planner.problem import Setting

__all__ = ["Priced", "price", "price_any_sharding"]


def price(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory columns of some layouts."""
    return price_layouts(setting.model, setting.cluster, setting.job, setting.stack, table, cal)


def price_any_sharding(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory that no sharding of the state of these layouts over a part of their replicas can beat.

    They shard over all replicas, which leaves the least state on a rank; traffic is the least of any part.
    Gradients made on demand that are sharded less take the place of more activations: of all, at most.
    """
    priced = price_layouts(
        setting.model, setting.cluster, setting.job, setting.stack, table, cal, any_sharding=True
    )
    on_demand = np.full(len(table), float(setting.stack.memory.gradients_on_demand))
    return replace(priced, pieces=replace(priced.pieces, first_backward_relief=on_demand))
