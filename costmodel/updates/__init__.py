"""What a step trains and how it changes it: adapters and optimizers."""
