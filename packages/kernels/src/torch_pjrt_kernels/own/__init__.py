"""Your own kernel, in Pallas or any JAX, as an operator of PyTorch's: `pallas_op`."""
