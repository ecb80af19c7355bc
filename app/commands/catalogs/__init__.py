"""Commands that list what a question can name."""
