"""What a command does, apart from reading flags and writing answers."""
