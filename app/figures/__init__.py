"""Pictures of a plan: pure functions that return plotly figures, for the dashboard and for notebooks.

Every figure carries its own one-sentence reading in ``figure.layout.meta["alt"]``: its caption, and what a
screen reader says. Colours can be told apart without seeing red from green, and never mean anything alone.
"""
