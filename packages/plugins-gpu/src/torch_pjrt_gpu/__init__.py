"""torch-pjrt's GPU device: NVIDIA and AMD cards, by the PJRT plugins that JAX has for them."""
