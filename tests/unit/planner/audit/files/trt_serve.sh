#!/usr/bin/env bash
source "$(dirname "$0")/../../benchmark_lib.sh"
check_env_vars \
    MODEL \
    TP \
    CONC \
    EP_SIZE
if [[ -n "$SLURM_JOB_ID" ]]; then
  echo "JOB $SLURM_JOB_ID running"
fi
if [[ $CONC -ge 64 ]]; then
    DELAY="true"
fi
cat > options.yml << EOF
cuda_graph_config:
    enable_padding: true
EOF
MAX_MODEL_LEN=$(( MAX_MODEL_LEN > 8192 ? MAX_MODEL_LEN : 8192 ))
mpirun -n 1 --oversubscribe --allow-run-as-root \
    trtllm-serve $MODEL --port=8888 \
    --backend=pytorch \
    --max_seq_len=$MAX_MODEL_LEN \
    --tp_size=$TP --ep_size=$EP_SIZE \
    > server.log 2>&1 &
