"""Pages of the dashboard, one file each; `render` draws a page."""
