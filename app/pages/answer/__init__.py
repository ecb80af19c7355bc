"""The answer to the question of the sidebar: headline, files to take home, pictures."""
