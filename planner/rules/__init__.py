"""Which layouts are legal: named rules, each with its numbers."""
