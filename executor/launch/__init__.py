"""The processes of a run: who may start them, where they meet, what they know, how they end."""
