"""Requests of a load through the steps of replicas, event by event."""
