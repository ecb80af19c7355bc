"""Layouts of a search with their costs and their memory: what bounds and candidates read."""

from __future__ import annotations

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.training.priced import Priced, price_layouts
from planner.problem import Setting

__all__ = ["Priced", "price"]


def price(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory columns of some layouts."""
    return price_layouts(setting.model, setting.cluster, setting.job, setting.stack, table, cal)
