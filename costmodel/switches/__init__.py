"""Switches of training engines: records of what each is, and profiles that have values of them."""
