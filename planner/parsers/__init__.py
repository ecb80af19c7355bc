"""What the engines' own parsers make of what is written for them, each in an interpreter that has it."""
