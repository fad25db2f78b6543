"""From a module of PyTorch to a folder that JAX runs without PyTorch, and back."""
