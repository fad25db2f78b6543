"""`torch_xla.experimental.plugins`: devices are packages here."""

from torch_xla.absent import absent

_HOW = "a device is a package with an entry point of the group `torch_pjrt`: the page `your-accelerator`"
__getattr__ = absent(
    __name__,
    dict.fromkeys(
        (
            "DevicePlugin",
            "register_plugin",
            "register_installed_plugins",
            "use_dynamic_plugins",
            "using_dynamic_plugins",
            "default",
        ),
        _HOW,
    ),
)
