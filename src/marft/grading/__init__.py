"""Graders that can be trusted: answers to mathematics, and the deadline every grade has."""
