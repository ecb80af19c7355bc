"""What is asked of several plans: grids, differences, neighbourhoods, fleets; and the schedule of one."""
