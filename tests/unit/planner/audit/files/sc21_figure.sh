#!/bin/bash
# Batch size options = [12, 24, 36].
GBS=24
MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 2 "
# Other params.
TP=$((64/8))
PP=12
MBS=1
NLS=96
HS=12288
NAH=96
DDP=local
NNODES=12
export JOB_NAME=results_${GBS}
. `pwd`/SC21_CONFIG.sh
. `pwd`/SBATCH.sh
exit 0
