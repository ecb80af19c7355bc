"""What keeps a run alive, starts it by another engine, and shows how it stands."""
