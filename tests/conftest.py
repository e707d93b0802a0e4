"""One thread that sleeps while it waits, and no network: tests share the machine. Builders are in `builders.py`."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
