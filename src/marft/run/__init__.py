"""Everything about one run on disk and on screen: its directory, metrics, checkpoints, statistics and live display."""
