"""A third party's plugin of torch-pjrt: one device, one lowering for it, one pass."""
