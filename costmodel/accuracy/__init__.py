"""Predictions beside measurements: tables of runs, errors, anchors."""
