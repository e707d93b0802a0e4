"""A small language model for studies: made in minutes from generated word problems, and a world to train teams in."""
