#!/bin/bash
# Usage: TP=2 EP=8 bash m_mixtral.sh
: "${TP:=1}"
: "${PP:=4}"
: "${EP:=8}"
: "${ETP:=1}"
: "${NNODES:=16}"
: "${MBS:=1}" "${GBS:=1024}"
WORLD=$[ NNODES * 8 ]
let "DP = WORLD / (TP * PP)"
(( ACC = GBS / (DP * MBS) ))
DIST="--nproc-per-node 8 --nnodes ${NNODES}"
MOE="--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
 --expert-model-parallel-size ${EP} --expert-tensor-parallel-size ${ETP} --overlap-param-gather --overlap-grad-reduce"
exec torchrun ${DIST} pretrain_gpt.py --use-distributed-optimizer \
  --num-layers 56 --hidden-size 6144 --ffn-hidden-size 16384 --num-attention-heads 48 \
  --group-query-attention --num-query-groups 8 --seq-length=4096 --swiglu ${MOE} \
  --micro-batch-size=${MBS} --global-batch-size=${GBS} --bf16 \
  --tensor-model-parallel-size=${TP} --pipeline-model-parallel-size=${PP} \
  --num-layers-per-virtual-pipeline-stage=7 \
  --recompute-granularity full --recompute-method block --recompute-num-layers 2
