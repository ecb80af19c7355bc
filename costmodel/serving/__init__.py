"""Serving: memory, step times, the request queue, and latency."""
