"""The question: the bar and its panel, the axes of a layout, where a saved plan starts."""
