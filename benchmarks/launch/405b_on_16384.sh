#!/bin/bash
# Llama-3.1-405B on 16,384 GPUs: 126 layers on 16 stages.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2048 pretrain_gpt.py --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 \
  --num-attention-heads 128 --group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu \
  --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --bf16 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 2048 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel --use-distributed-optimizer \
  --pipeline-model-parallel-layout 'Ettttttt|(tttttttt|)*14tttttttL'
