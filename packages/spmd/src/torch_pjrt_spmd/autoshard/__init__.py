"""Finds how to spread a model or a training step over a mesh by itself."""
