"""What no layout of the space can beat, stage by stage of the funnel."""
