"""What starts a training job: engines, schedulers, manifests, folders; no torch."""
