"""From flags, links and files to a request the planner understands."""
