"""Configurations in the form of torchtitan's registry."""

from torchtitan.trainer import Trainer


def model_debugmodel() -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(local_batch_size=8, seq_len=2048),
        parallelism=ParallelismConfig(expert_parallel_degree=1),
    )


def model_16b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("16B", attn_backend="flex"),
        optimizer=OptimizersContainer.Config(lr=2.2e-4),
        training=TrainingConfig(local_batch_size=4, seq_len=4096),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="Interleaved1F1B", expert_parallel_degree=8),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective"),
    )
