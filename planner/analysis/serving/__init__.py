"""Questions about fleets of servers that take several plans, or a plan and what is around it."""
