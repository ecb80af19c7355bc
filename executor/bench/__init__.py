"""This machine, measured."""
