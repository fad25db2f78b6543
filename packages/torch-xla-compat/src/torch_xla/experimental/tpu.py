"""The older place of `torch_xla._internal.tpu`."""

from torch_xla._internal.tpu import num_available_chips, num_available_devices, version

__all__ = ["num_available_chips", "num_available_devices", "version"]
