"""The release of `torch_xla` whose names these are, and whose they are: libraries compare the numbers."""

__version__ = "2.9.0+pjrt"
__xla_gitrev__ = "torch-pjrt"
