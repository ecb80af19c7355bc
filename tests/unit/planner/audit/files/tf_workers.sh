#!/bin/bash
export TF_CONFIG='{"cluster": {"worker": ["host1:12345", "host2:12345", "host3:12345", "host4:12345"]}, "task": {"type": "worker", "index": 0}}'
python train.py --batch_size 256 --mixed_precision bfloat16 --distribution_strategy multi_worker_mirrored --num_gpus 8
