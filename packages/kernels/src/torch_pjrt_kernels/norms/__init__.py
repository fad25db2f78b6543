"""Normalization of rows: `operator.py` is `rms_norm`, `rms_norm_tpu.py` its kernel for TPUs."""
