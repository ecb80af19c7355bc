"""A plan run to its last token: its answer, and what of it an engine and a scheduler are told."""
