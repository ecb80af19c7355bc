"""The answer to the question: headline, files to take home, pictures."""
