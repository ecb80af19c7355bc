"""What a job can be split over: the axes, and what each of them splits, divides, sends and is called."""
