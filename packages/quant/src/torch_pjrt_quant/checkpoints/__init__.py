"""Checkpoints that other tools have quantized, as layers of ours."""
