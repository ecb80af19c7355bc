"""Token files as samples by number: opened, checked, blended."""
