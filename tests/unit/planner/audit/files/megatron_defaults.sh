#!/bin/bash
CHECKPOINT_PATH="NONE"
TOKENIZER_ARG="MOCK"
CONFIG_FILE=""
while [[ $# -gt 0 ]]; do
    case $1 in
        --checkpoint-path)
            CHECKPOINT_PATH="$2"
            shift 2
            ;;
        --config-file)
            CONFIG_FILE="$2"
            shift 2
            ;;
        *)
            echo "Unknown option: $1"
            exit 1
            ;;
    esac
done
if [ ! -d "$CHECKPOINT_PATH" ]; then
    echo "Error: no such folder: $CHECKPOINT_PATH"
    exit 1
fi
GPUS_PER_NODE=8
NUM_NODES=2
if [ -n "$CONFIG_FILE" ]; then
    if [ ! -f "$CONFIG_FILE" ]; then
        echo "Warning: none"
    else
        source "$CONFIG_FILE"
    fi
fi
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NUM_NODES=${NUM_NODES:-1}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP_SIZE=1     
EP_SIZE=1     
PP_SIZE=${WORLD_SIZE}     
DTYPE="fp8"
SEQ_LENGTH=8192
TRAINING_ARGS=(--micro-batch-size 2 --global-batch-size 64 --bf16)
TRAINING_ARGS=(
    "${TRAINING_ARGS[@]}"
    --recompute-activations
)
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-param-gather"
    )
fi
DATA_ARGS_LIST=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]] || [[ -z "$TOKENIZER_ARG" ]]; then
    DATA_ARGS_LIST+=(
        "--mock-data"
        "--vocab-size 128256"
        "--split '99,1,0'"
    )
else
    DATA_ARGS_LIST+=("--vocab-size 32000")
fi
python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --num-attention-heads 16 --seq-length ${SEQ_LENGTH} --swiglu \
    ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} ${DATA_ARGS_LIST[@]} \
    --tensor-model-parallel-size ${TP_SIZE} --pipeline-model-parallel-size ${PP_SIZE} \
    --expert-model-parallel-size ${EP_SIZE} --context-parallel-size 1 --use-distributed-optimizer
