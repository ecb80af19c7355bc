"""How people meet the planner: command line, figures, dashboard."""
