"""What a launch file of another engine says, read without running it, and what could be better."""
