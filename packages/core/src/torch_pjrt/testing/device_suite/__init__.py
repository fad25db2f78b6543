"""Tests that a device should pass: run them with `--pjrt-device` (`testing/pytest_plugin.py`)."""
