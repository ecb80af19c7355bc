"""One file per sub-command of `plan`."""
