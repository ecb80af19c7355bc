"""What starts an engine: schedulers, manifests, servers; no torch."""
