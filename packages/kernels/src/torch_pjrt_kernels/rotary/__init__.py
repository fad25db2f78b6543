"""Rotary positions: `operator.py` is `rotary`, `rotary_tpu.py` its kernel for TPUs."""
