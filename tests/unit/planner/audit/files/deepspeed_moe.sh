#!/bin/bash
DIR=`pwd`
SEQ_LEN=2048
## GPT-3 XL 1.3B
MODEL_SIZE=1.3
NUM_LAYERS=24
HIDDEN_SIZE=2048
NUM_ATTN_HEADS=16
GLOBAL_BATCH_SIZE=512
# GLOBAL_BATCH_SIZE=1024
TRAIN_TOKENS=300000000000
TRAIN_ITERS=$(( ${TRAIN_TOKENS} * 3 / ${GLOBAL_BATCH_SIZE} / ${SEQ_LEN} ))
BATCH_SIZE=4
MP_SIZE=1
PP_SIZE=1
NUM_GPUS=64
## Number of experts. EP_SIZE 1 means dense model without MoE
EP_SIZE=128
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then
    EP_PARALLEL_SIZE=$NUM_GPUS
else
    EP_PARALLEL_SIZE=$EP_SIZE
fi
ACTIVATION_CHECKPOINT="true"
current_time=$(date "+%Y.%m.%d-%H.%M.%S")
NAME="gpt-${MODEL_SIZE}B-gpus-${NUM_GPUS}"
if [[ $EP_SIZE -gt 1 ]]; then
    NAME="${NAME}-ep-${EP_SIZE}"
fi
mkdir -p "output/${NAME}"
megatron_options=" \
        --tensor-model-parallel-size ${MP_SIZE} \
        --moe-expert-parallel-size ${EP_PARALLEL_SIZE} \
        --num-experts ${EP_SIZE} \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --seq-length ${SEQ_LEN} \
        --train-iters ${TRAIN_ITERS} \
        --fp16"
if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
megatron_options="${megatron_options} \
        --checkpoint-activations"
fi
config_json="ds_config_gpt_${NAME}.json"
sed "s/CONFIG_BATCH_SIZE/${GLOBAL_BATCH_SIZE}/" ds_config_gpt_TEMPLATE.json \
    | sed "s/CONFIG_MBSIZE/${BATCH_SIZE}/" \
	  > ${config_json}
deepspeed_options=" \
		    --deepspeed \
		    --deepspeed_config ${config_json} \
		    --pipeline-model-parallel-size ${PP_SIZE}"
if [[ $EP_SIZE -gt 1 ]]; then
deepspeed_options="${deepspeed_options} \
        --no-pipeline-parallel"
fi
run_cmd="deepspeed ${DIR}/../../pretrain_gpt.py ${megatron_options} ${deepspeed_options} &> output/${NAME}_${current_time}.log"
echo ${run_cmd}
eval ${run_cmd}
set +x
