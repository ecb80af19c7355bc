"""What a row of a table of measured runs says: its cells, model, layout and recipe, and what cannot be."""
