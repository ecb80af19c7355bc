"""A fleet of a serving plan rehearsed without GPUs: servers that sleep where engines would compute."""
