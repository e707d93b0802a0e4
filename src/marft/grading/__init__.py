"""Graders that can be trusted: deadlines in child processes, answers to mathematics, programs in a sandbox."""
