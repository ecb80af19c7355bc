"""The search for the best layout, and the rules that say which layouts are legal."""
