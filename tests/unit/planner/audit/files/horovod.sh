#!/bin/bash
horovodrun -np 32 -H server1:8,server2:8,server3:8,server4:8 --fp16-allreduce --fusion-threshold-mb 64 \
  python train_bert.py --batch-size 32 --epochs 3 --fp16-allreduce --use-adasum
