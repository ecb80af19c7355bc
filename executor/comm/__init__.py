"""Process groups, sharded tensors, and the collectives between them."""
