"""Pictures of what was measured: a job beside the best plan, a band before and after own runs, many runs."""
