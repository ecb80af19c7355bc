"""Answers laid out as tables, text and JSON."""
