"""PyTorch's own device-generic tests on a device: `python -m torch_pjrt.testing.pytorch_suite`.

Device-generic tests are those that `instantiate_device_type_tests` makes for each device type: of files of a
checkout of PyTorch's `test/` folder that matches the installed PyTorch, or of the files in `carried/`, which
use the databases that the wheel has in `torch.testing._internal` and need no checkout.
"""
