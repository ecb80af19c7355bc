"""GPUs as data: datasheets, prices, and the names devices report."""
