#!/bin/bash
#SBATCH --time=02:00:00
set -eu -o pipefail
if [ "${BASH_VERSION%%.*}" -lt 4 ] || { [ "${BASH_VERSION%%.*}" -eq 4 ] && [ "${BASH_VERSION#*.}" -lt 2 ]; }; then
    printf "Unsupported %s\n" "${BASH}" >&2
    exit 1
fi
export GPU_TYPE=${GPU_TYPE:?GPU_TYPE is a required variable.}
export GPU_TYPE=${GPU_TYPE,,}
export DTYPE=${DTYPE:-bf16}
if [[ $DTYPE != "bf16" ]]; then
    exit 1
fi
if [[ $GPU_TYPE == "h100" ]]; then
    export DATA_PARALLEL_SHARD_DEGREE=${DATA_PARALLEL_SHARD_DEGREE:-128}
    export EXPERT_PARALLEL_DEGREE=${EXPERT_PARALLEL_DEGREE:-64}
    export PIPELINE_PARALLEL_DEGREE=${PIPELINE_PARALLEL_DEGREE:-8}
elif [[ $GPU_TYPE == "gb200" ]]; then
    export DATA_PARALLEL_SHARD_DEGREE=${DATA_PARALLEL_SHARD_DEGREE:-32}
    export EXPERT_PARALLEL_DEGREE=${EXPERT_PARALLEL_DEGREE:-32}
    export PIPELINE_PARALLEL_DEGREE=${PIPELINE_PARALLEL_DEGREE:-8}
else
    echo "unsupported"
    exit 1
fi
export SEQ_LEN=${SEQ_LEN:-4096}
export LOCAL_BATCH_SIZE=${LOCAL_BATCH_SIZE:-16}
PROFILE_ARGS=""
TRAIN_CMD="\
cd $TORCHTITAN_HOME; \
ulimit -c 0; \
LOCAL_RANK=\$SLURM_LOCALID; \
python -m torchtitan.train \
--job.config_file=$REPO/deepseek.toml \
--training.seq_len=$SEQ_LEN \
--parallelism.data_parallel_shard_degree=$DATA_PARALLEL_SHARD_DEGREE \
--parallelism.expert_parallel_degree=$EXPERT_PARALLEL_DEGREE \
--parallelism.pipeline_parallel_degree=$PIPELINE_PARALLEL_DEGREE \
--training.local_batch_size=$LOCAL_BATCH_SIZE$PROFILE_ARGS"
srun --container-image="$IMAGE" \
    --no-container-mount-home \
    bash -c "$TRAIN_CMD"
