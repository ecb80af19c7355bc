"""Readers, one file per format that tells which hosts there are and where they stand."""
