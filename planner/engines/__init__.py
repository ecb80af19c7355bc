"""What engines can be told: contracts, from which come rules, writers and readers."""
