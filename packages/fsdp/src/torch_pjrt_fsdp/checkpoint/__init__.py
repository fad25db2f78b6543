"""Checkpoints: saved while training goes on, complete or not there, loaded onto any mesh.

The modules that the writing process imports (`storage`, `writing`, `writer`) import no PyTorch.
"""
