"""Questions about a whole run: its phases, the shape of its campaign, how it goes beside its plan."""
