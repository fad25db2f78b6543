"""torch-pjrt's TPU device: the chips that libtpu drives."""
