#!/bin/bash
export WANDB_MODE=offline
NUM_GPUS=8
NNODES=${NNODES:-2}
PER_DEVICE=4
GRAD_ACC=$((512 / PER_DEVICE / NUM_GPUS / NNODES))
deepspeed --num_gpus=$NUM_GPUS --num_nodes=$NNODES --master_port=29501 \
  run_clm.py \
  --deepspeed configs/ds_config_zero3.json \
  --model_name_or_path meta-llama/Llama-3.1-8B \
  --dataset_name wikitext \
  --block_size 4096 \
  --per_device_train_batch_size $PER_DEVICE \
  --gradient_accumulation_steps $GRAD_ACC \
  --bf16 True --tf32 True \
  --gradient_checkpointing True \
  --do_train --learning_rate 2e-5
