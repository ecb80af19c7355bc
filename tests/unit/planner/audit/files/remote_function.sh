#!/usr/bin/env bash
set -euo pipefail
NODES="node[01-16]"
declare -A LAYERS=( [7b]=32 [13b]=40 [34b]=48 )
readonly SIZE=${SIZE:-13b}
common_args() {
  local tp=$1 pp=$2
  echo "--tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp"
}
launch() {
  local tp="$1"; shift
  local pp="$1"; shift
  pdsh -w "$NODES" "cd $PWD && torchrun --nnodes 16 --nproc-per-node 8 \
      pretrain_gpt.py --tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp \
      --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 4096 \
      --micro-batch-size 2 --global-batch-size 1024 --bf16 --use-distributed-optimizer $*"
}
launch 4 2 --sequence-parallel --recompute-activations
