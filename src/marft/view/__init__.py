"""Looking at runs: what a run directory holds as JSON, served to a page on this machine or put into one file.

Reads run directories and nothing else; loads neither torch nor any model.
"""
