"""Where Streamlit starts: a folder without a `pages` beside it, which Streamlit would take for its own."""
