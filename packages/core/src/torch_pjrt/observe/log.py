"""The logger `torch_pjrt`: what `TORCH_PJRT_LOG` asks for, as it happens."""

from __future__ import annotations

import logging

from torch_pjrt.settings import settings

logger = logging.getLogger("torch_pjrt")


def log(kind: str, text: str) -> None:
    """Log `text` if `kind` is among `settings.log`; to stderr where the program has no handlers."""
    if kind not in settings.log:
        return
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("torch_pjrt: %(message)s"))
        logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO) and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.info(text)
