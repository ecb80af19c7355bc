#!/bin/bash
set -e
ENV=$1
export CUDA_DEVICE_MAX_CONNECTIONS=1
if [ -z ${AGAIN} ];then
    AGAIN=1
fi
ENV=desk
MODEL_SIZE=SMALL
BATCH_SIZE=4
GLOBAL_BATCH_SIZE=256
SEQ_LEN=2048
PR=fp8
TP=2
PP=1
EP=8
SP=true
DO=true
AC=full
TRAIN_ITERS=20
if [ $ENV = desk ]; then
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
MASTER_PORT=$(shuf -n 1 -i 10000-65535)
NNODES=1
GPUS_PER_NODE=8
elif [ $ENV = cloud ]; then
NNODES=${WORLD_SIZE}
GPUS_PER_NODE=${POD_GPUS}
fi
if [ -z ${CHUNK} ]; then
    chunk_flags=""
else
    chunk_flags=" \
        --num-layers-per-virtual-pipeline-stage ${CHUNK}"
fi
if [ $MODEL_SIZE = BIG ]; then
HIDDEN_SIZE=5120
NUM_ATTN_HEADS=128
NUM_LAYERS=60
NUM_EXPERTS=160
expert_flags=" \
    --num-experts ${NUM_EXPERTS} \
    --expert-model-parallel-size ${EP}"
elif [ $MODEL_SIZE = SMALL ]; then
HIDDEN_SIZE=2048
NUM_ATTN_HEADS=16
NUM_LAYERS=27
NUM_EXPERTS=64
expert_flags=" \
    --moe-ffn-hidden-size 1408 \
    --moe-router-topk 6 \
    --num-experts ${NUM_EXPERTS} \
    --expert-model-parallel-size ${EP}"
fi
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
if [ $TP_COMM_OVERLAP -eq 1 ]; then
    overlap_flags="\
        --tp-comm-overlap \
        --overlap-grad-reduce"
fi
if [ $AC = full ]; then
    again_flags=" \
		    --recompute-method uniform \
		    --recompute-granularity full \
            --recompute-num-layers ${AGAIN}"
elif [ $AC = sel ]; then
    again_flags=" \
        --recompute-activations"
fi
if [ $PR = fp16 ]; then
    format_flags=" --fp16"
elif [ $PR = bf16 ]; then
    format_flags=" --bf16"
elif [ $PR = fp8 ]; then
    format_flags=" \
        --bf16
        --fp8-hybrid \
        --fp8-amax-compute-algo max"
fi
if [ $DO = true ]; then
    optimizer_flags=" --use-distributed-optimizer"
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sequence_flags=" \
		    --sequence-parallel"
elif [ $SP = false ]; then
    sequence_flags=" "
fi
job_flags="  \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --seq-length ${SEQ_LEN} \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size ${PP} \
        --eval-iters -1 \
        --swiglu
        "
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port $MASTER_PORT"
line="torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
 ${job_flags} ${format_flags} ${again_flags} \
 ${optimizer_flags} ${sequence_flags} ${expert_flags} ${chunk_flags} ${overlap_flags}"
line="$line | tee $OUT"
echo ${line}
eval ${line}
set +x
