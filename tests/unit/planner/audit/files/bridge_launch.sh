usage()
{
cat << EOF
usage: bash ./launcher.sh [config-override  [config-override ...]]
EOF
}
parse_args() {
  while [[ "$1" != "" ]]; do
    case $(grep -o "=" <<< "$1" | wc -l) in
        1  )
        config_overrides+=("$1")
        ;;
        * )
            usage
            exit 1
    esac
    shift
  done
}
config_overrides=()
parse_args "$@"
if [[ -z "${config_overrides[*]}" ]]; then
  echo "none"
fi
worker_command=$(cat <<- EOM
  if [ "\$RANK" -eq "0" ]; then
    sleep 3 ;
  fi ;
  cd /opt/Megatron-Bridge ;
  numactl \
    --cpunodebind=\$((LOCAL_RANK/4)) \
    nsys profile \
    -t nvtx,cuda \
    -o "/logs/$JOB_IDENTIFIER/rank-\$RANK" \
  nice -10 \
  python scripts/performance/run_script.py \
    --gpu h100 \
    --model_family_name llama \
    --model_recipe_name llama3_70b \
    --num_gpus 32 \
    --gpus_per_node 8 \
    --compute_dtype fp8_cs \
    --global_batch_size 1024 \
    --micro_batch_size 1 \
    --tensor_model_parallel_size 2 \
    --pipeline_model_parallel_size 1 \
    --context_parallel_size 1 \
    --virtual_pipeline_model_parallel_size None \
    --expert_model_parallel_size 1 \
    --max_steps 50 \

EOM
)
echo "$worker_command" > worker_command.sh
torchrun \
--nproc-per-node="8" \
--nnodes="4" \
--node_rank="${JOB_COMPLETION_INDEX}" \
--no-python bash worker_command.sh
