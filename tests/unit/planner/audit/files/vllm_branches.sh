#!/usr/bin/env bash
PARALLEL_ARGS=(--tensor-parallel-size "$TP" --data-parallel-size 1)
if [ "$DP_ATTENTION" = "true" ]; then
    PARALLEL_ARGS=(--tensor-parallel-size 1 --data-parallel-size "$TP")
fi
VLLM_CMD=(
    vllm serve "$MODEL_PATH" --served-model-name "$MODEL"
    --max-model-len 1048576
    "${PARALLEL_ARGS[@]}"
)
printf '%q ' "${VLLM_CMD[@]}" | tee command.txt
"${VLLM_CMD[@]}" > "$SERVER_LOG" 2>&1 &
