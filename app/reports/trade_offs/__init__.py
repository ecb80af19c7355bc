"""What more of one thing costs of another: limits against GPUs, speed of a user against that of a GPU."""
