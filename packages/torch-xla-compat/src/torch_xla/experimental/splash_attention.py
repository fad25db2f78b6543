"""`splash_attention`: attention to segments, windows and soft caps."""

from torch_xla.absent import absent

_HOW = "`torch_pjrt_kernels.flash_attention(window=, segments=, soft_cap=)` chooses the kernel by itself"
__getattr__ = absent(__name__, {"splash_attention": _HOW, "SplashAttentionConfig": _HOW})
