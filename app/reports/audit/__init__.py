"""What an audit says: the job as files have it, what is wrong, what it should take, what helps."""
