"""torchvision: operators on boxes, on the device."""
