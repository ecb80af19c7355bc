MODEL_ARGS=(
   --disable-bias-linear
   --num-layers 48
   --hidden-size 2048
   --ffn-hidden-size 6144
   --num-attention-heads 32
   --moe-layer-freq "([1]*48)"
)
