"""What a layout costs: FLOPs, bytes, seconds, memory and money, each as a breakdown that sums."""
