"""From the words of `plan serve` to its requests."""
