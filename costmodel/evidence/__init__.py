"""How many measured runs stand behind an estimate, by what it uses."""
