#!/bin/bash
CHECKPOINT_PATH=${1:-"checkpoints/run"}
GPUS_PER_NODE=8
NUM_NODES=4
MASTER_ADDR=${MASTER_ADDR:-localhost}
USE_UV=${USE_UV:-1}
if [ "${USE_UV}" = 1 ]; then
    VENV_PREFIX="uv run"
else
    VENV_PREFIX=""
fi
USE_MEGATRON_FSDP=${USE_MEGATRON_FSDP:-1}
SHARDING_STRATEGY=${SHARDING_STRATEGY:-"optim_grads_params"}
TP_SIZE=2
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
)
if [ "${USE_MEGATRON_FSDP}" = 1 ]; then
    unset CUDA_DEVICE_MAX_CONNECTIONS
    TRAINING_ARGS=(
        "${TRAINING_ARGS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${SHARDING_STRATEGY}
        # --num-distributed-optimizer-instances 2
    )
fi
DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
)
TRAINING_ARGS+=("${DDP_ARGS[@]}")
if [ "${NSYS_PROFILE}" = 1 ]; then
    TRAINING_ARGS+=(--profile --seq-length 99)
    PROFILE_CMD=(nsys profile --sample=none)
else
    PROFILE_CMD=()
fi
$VENV_PREFIX "${PROFILE_CMD[@]}" python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES \
    "pretrain_gpt.py" \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --seq-length 8192 \
    ${TRAINING_ARGS[@]} --tensor-model-parallel-size $TP_SIZE --context-parallel-size 1 --sequence-parallel
