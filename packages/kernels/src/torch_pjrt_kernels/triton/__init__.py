"""Kernels written in Triton: compiled for NVIDIA's cards, here or not, and called in programs."""
