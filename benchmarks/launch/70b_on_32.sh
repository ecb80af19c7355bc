#!/bin/bash
# Llama-3.1-70B on 32 GPUs, as Megatron-LM users start it.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu \
  --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --bf16 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 512 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer
