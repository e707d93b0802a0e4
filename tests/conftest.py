"""One thread that sleeps while it waits, and no network: tests share the machine. Builders are in `builders.py`."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
