"""Attention to a cache in pages, for serving: `reference.py`, `by_steps.py` for any device, `operator.py`."""
