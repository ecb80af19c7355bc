#!/bin/bash
#SBATCH --nodes=16
export TP=${TP:-4}
PP=8
VP=8
CONFIG_OVERRIDES="-tp $TP -pp $PP -cp 2 -vp $VP -ep 1 -mb 1 -gb 512"
python3 -m scripts.performance.llm.pretrain_llama3_405b --gpu h100 --num_gpus 128 --gpus_per_node 8 \
  --compute_dtype bf16 ${CONFIG_OVERRIDES} slurm --account $SBATCH_ACCOUNT
