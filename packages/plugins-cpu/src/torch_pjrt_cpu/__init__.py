"""torch-pjrt's CPU device: the XLA CPU client that comes with jaxlib."""
