"""The training step: score many layouts, describe one to the stage solver, estimate one in full."""

from costmodel.estimation import estimate
from costmodel.scoring import TrainingScores, evaluate, stage_costs
from costmodel.splits import even_split

__all__ = ["TrainingScores", "estimate", "evaluate", "even_split", "stage_costs"]
