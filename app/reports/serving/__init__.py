"""How serving plans are told: one fleet, several services, a fleet through a day."""
