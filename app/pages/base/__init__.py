"""What every page is made of: its frame, widgets that the URL holds, sections, state without a widget."""
