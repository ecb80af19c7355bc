"""The training step: score many layouts, describe one to the stage solver, estimate one in full."""

from costmodel.pipeline.even_split import even_split
from costmodel.training.estimate import estimate
from costmodel.training.score import TrainingScores, evaluate, stage_costs

__all__ = ["TrainingScores", "estimate", "evaluate", "even_split", "stage_costs"]
