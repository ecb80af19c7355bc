#!/bin/bash
for TP in 1 2 4 8; do
  sbatch -N 8 --gres=gpu:8 --wrap="srun torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --bf16"
done
