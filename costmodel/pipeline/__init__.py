"""Pipeline stages: schedules, bubbles, microbatches in flight, the event simulation."""
