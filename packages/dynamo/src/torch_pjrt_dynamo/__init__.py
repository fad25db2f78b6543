"""`torch.compile(backend="pjrt")`: compiled graphs as single nodes of the lazy tape."""
