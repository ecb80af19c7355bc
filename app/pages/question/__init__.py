"""The question: the sidebar, the axes of a layout, where a saved plan starts."""
