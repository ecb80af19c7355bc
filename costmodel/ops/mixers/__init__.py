"""What mixes the tokens of a layer, as operations: attention in its kinds, and recurrences."""
