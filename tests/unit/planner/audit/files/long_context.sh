#!/bin/bash
NNODES=${SLURM_JOB_NUM_NODES:-32}
export CUDA_DEVICE_MAX_CONNECTIONS=1
CONTEXT=131072
torchrun --nproc-per-node=8 --nnodes=32 pretrain_gpt.py \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8 \
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000 --use-rope-scaling \
  --seq-length $CONTEXT --max-position-embeddings $CONTEXT --vocab-size 128256 \
  --micro-batch-size 1 --global-batch-size 32 --bf16 \
  --tensor-model-parallel-size 8 --sequence-parallel --context-parallel-size 16 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8 \
  --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 8 2 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap \
  --recompute-granularity full --recompute-method block --recompute-num-layers 4
