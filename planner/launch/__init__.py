"""What starts an engine: schedulers, manifests, servers, one file for each; no torch."""
