"""Every error that torch-pjrt raises of its own accord.

TorchPjrtError
├── DeviceError (RuntimeError)          the device cannot be had or used
│   ├── NoDevice                        no plugin offers a device that works here
│   ├── UnknownDevice                   `PJRT_DEVICE` names a device that nobody offers
│   ├── BackendTaken                    another package owns PyTorch's PrivateUse1 backend
│   └── DeviceFull                      no room left on the device; raised as a `torch.OutOfMemoryError` too
├── PluginError (RuntimeError)          what plugins say does not fit together
│   ├── DuplicateDevice                 two plugins claim one device name
│   ├── DuplicateLowering               two rules for one operator in one table
│   └── DuplicatePass                   two passes of one name
├── LoweringError (RuntimeError)        an operator cannot become a program
│   ├── MissingLowering (NotImplementedError)   no rule, no decomposition
│   └── WrongLowering                   a rule gave another shape or dtype than PyTorch's
├── AbsentOperator (NotImplementedError)        an operator is called that this PyTorch lacks
├── BrokenModule (RuntimeError)         a module of ours cannot be imported
├── InvalidGraph (ValueError)           a pass returned a graph that cannot run
├── CompileError (RuntimeError)         XLA refused a program
├── NonFiniteValue (RuntimeError)       an operator made a NaN or an infinity, and `check_nans()` is on
├── LaunchRefused (RuntimeError)        a program was not launched; what was recorded is kept
│   └── TooManyPrograms                 one more program would be more than `max_programs`
├── CaptureError (RuntimeError)         a captured step cannot be replayed as it was recorded
├── DonatedTensor (RuntimeError)        a tensor is used whose memory was given to a compiled function
├── LostValue (RuntimeError)            the program that would have made a tensor's value failed
├── MissingPackage (ImportError)        a package that is needed is not installed
├── UnsupportedError (NotImplementedError)      PyTorch offers it, a Python backend cannot
└── SettingError (ValueError)           an environment variable has a value we cannot read

An error's text has up to four lines: what happened, `saw`, `expected`, `hint`. Errors that are
PyTorch's own (a wrong shape, a wrong dtype) are raised by PyTorch and are not listed here.
"""

from __future__ import annotations


class TorchPjrtError(Exception):
    """The base of all errors of this package."""

    def __init__(
        self,
        happened: str,
        *,
        saw: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.happened = happened
        self.saw = saw
        self.expected = expected
        self.hint = hint
        lines = [happened]
        lines += [f"  saw: {saw}"] if saw else []
        lines += [f"  expected: {expected}"] if expected else []
        lines += [f"  hint: {hint}"] if hint else []
        super().__init__("\n".join(lines))


class DeviceError(TorchPjrtError, RuntimeError):
    """The device cannot be had or used."""


class NoDevice(DeviceError):
    """No installed plugin offers a device that works on this machine."""


class UnknownDevice(DeviceError):
    """`PJRT_DEVICE` names a device that no installed plugin offers."""


class BackendTaken(DeviceError):
    """Another package owns PyTorch's one PrivateUse1 backend in this process."""


class DeviceFull(DeviceError):
    """The device has no room for what it should make. What is raised is also a `torch.OutOfMemoryError`."""


class PluginError(TorchPjrtError, RuntimeError):
    """What the installed plugins say does not fit together."""


class DuplicateDevice(PluginError):
    """Two plugins claim one device name."""


class DuplicateLowering(PluginError):
    """One table has two rules for one operator."""


class DuplicatePass(PluginError):
    """Two passes have one name."""


class LoweringError(TorchPjrtError, RuntimeError):
    """An operator cannot become part of a program."""


class MissingLowering(LoweringError, NotImplementedError):
    """An operator has neither a rule nor a decomposition."""


class WrongLowering(LoweringError):
    """A rule gave a result whose shape or dtype is not PyTorch's."""


class AbsentOperator(TorchPjrtError, NotImplementedError):
    """An operator is called that the installed PyTorch does not have."""


class BrokenModule(TorchPjrtError, RuntimeError):
    """A module of torch-pjrt, which is imported when something in it is first used, cannot be imported."""


class InvalidGraph(TorchPjrtError, ValueError):
    """A graph reads what nothing makes, makes a value twice, or lists an unknown output."""


class CompileError(TorchPjrtError, RuntimeError):
    """XLA or the device refused a program."""


class NonFiniteValue(TorchPjrtError, RuntimeError):
    """An operator made a NaN or an infinity while `check_nans()` is on."""


class LaunchRefused(TorchPjrtError, RuntimeError):
    """A program was not made or not launched, for another reason than its own.

    What was recorded is kept: reading a tensor again tries again.
    """


class TooManyPrograms(LaunchRefused):
    """One more program would be more than `torch_pjrt.config.max_programs`.

    What was recorded is kept: with a higher limit, reading a tensor again computes it.
    """


class CaptureError(TorchPjrtError, RuntimeError):
    """A step that was given to `torch_pjrt.capture` does what a replay would not do."""


class DonatedTensor(TorchPjrtError, RuntimeError):
    """A tensor is used that a compiled function with the option `donate` has taken as its argument."""


class LostValue(TorchPjrtError, RuntimeError):
    """A tensor is used whose value was to come from a program that failed."""


class MissingPackage(TorchPjrtError, ImportError):
    """What was asked for is in a package that is not installed."""


class UnsupportedError(TorchPjrtError, NotImplementedError):
    """PyTorch offers it, but a backend written in Python cannot provide it."""


class SettingError(TorchPjrtError, ValueError):
    """An environment variable has a value that cannot be read."""
