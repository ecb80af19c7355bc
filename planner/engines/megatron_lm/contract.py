"""Megatron-LM with megatron-core: its contract."""

from __future__ import annotations

from planner.engines.contract import Contract
from planner.engines.megatron_lm.layout import LAYOUT_SETTINGS
from planner.engines.megatron_lm.model import MODEL_SETTINGS

MEGATRON = Contract(
    engine="megatron",
    title="Megatron-LM",
    versions="megatron-core 0.15 to 0.19",
    stacks=("megatron-core", "megatron-core-noov"),
    settings=LAYOUT_SETTINGS + MODEL_SETTINGS,
    source="megatron/training/arguments.py of the megatron-core 0.19.2 wheel",
)
