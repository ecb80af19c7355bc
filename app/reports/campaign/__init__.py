"""A campaign in words: its answer, and where its time goes."""
