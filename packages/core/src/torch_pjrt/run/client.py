"""The device at work: started once, on first use, from what the plugins offer."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.errors import CompileError, DeviceError, NoDevice
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.observe.counters import counters
from torch_pjrt.passes.runner import Pass
from torch_pjrt.plugin.capabilities import Capabilities
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls
from torch_pjrt.plugin.host import host
from torch_pjrt.plugin.jax_backend import donates, let_donate
from torch_pjrt.plugin.processes import join
from torch_pjrt.run.quiet import quiet
from torch_pjrt.run.signals import install
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from torch_pjrt.observe.dumps import Dump


@dataclass(frozen=True, slots=True)
class Client:
    """A started device and what plugins say of it.

    device     the plugin's description.
    chip       where arrays are placed.
    lowerings  the core's rules with the plugins' laid over them.
    passes     in the order in which they run.
    pid        the process that started it: a forked child cannot use it.
    capabilities    what programs may contain; `donates`, whether they may take the memory of inputs.
    foreign_calls   custom calls that programs loaded from disk may have.
    """

    device: Device
    chip: jax.Device
    lowerings: LoweringTable
    passes: Sequence[Pass]
    pid: int
    capabilities: Capabilities
    donates: bool
    foreign_calls: Sequence[ForeignCalls] = ()

    @property
    def is_here(self) -> bool:
        """Whether it has chips that run, and not only a compiler."""
        return self is not _here.acting

    def put(self, array: np.ndarray) -> jax.Array:
        """`array` on the device. Its memory belongs to the device from now on: nobody may write to it."""
        with dtypes.x64():
            try:
                return jax.device_put(array, self.chip)
            except jax.errors.JaxRuntimeError as error:
                _raise_if_exhausted(error, f"uploading {array.nbytes} bytes")
                raise

    def compile(
        self,
        function: Callable[..., Any],
        arguments: Any,
        donate: Sequence[int],
        dump: Dump | None = None,
    ) -> tuple[Any, Any]:
        """Lower and compile: what is called with arrays in the order of `arguments`, and what JAX lowered."""
        with counters.timed("lower_s"):
            lowered = self.lower(function, arguments, donate)
        if dump is not None:
            dump.lowered(lowered)
        with counters.timed("compile_s"):
            compiled = self.compile_lowered(lowered)
        if dump is not None:
            dump.compiled(compiled)
        return compiled, lowered

    def lower(self, function: Callable[..., Any], arguments: Any, donate: Sequence[int]) -> Any:
        """The `jax.stages.Lowered` of the function; `arguments` have the shapes and dtypes of its own."""
        jitted = jax.jit(
            function,
            donate_argnums=tuple(donate),
            keep_unused=True,
            # Says where to run for programs without inputs, which would go to JAX's default device.
            out_shardings=jax.sharding.SingleDeviceSharding(self.chip),
        )
        with quiet():
            lowered = jitted.lower(*arguments)
        self.device.prepare(lowered.compiler_ir("stablehlo"))
        return lowered

    def compile_lowered(self, lowered: Any) -> Any:
        """What XLA makes of it for this device; raises `CompileError` if it refuses."""
        if self.capabilities.limited:
            from torch_pjrt.compile.limits import objection

            if (has := objection(lowered.compiler_ir("stablehlo"), self.capabilities)) is not None:
                raise CompileError(
                    f"A program has what the device `{self.device.name}` lacks.",
                    saw=has,
                    hint="TORCH_PJRT_DUMP=folder writes the program out",
                )
        try:
            options = {**self.device.compile_options(), **settings.compile_options}
            return lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            if self.is_here:
                _raise_if_exhausted(error, "compiling a program")
            raise CompileError(
                f"The device `{self.device.name}` refused a program.", saw=str(error)
            ) from error


def _raise_if_exhausted(error: jax.errors.JaxRuntimeError, doing: str) -> None:
    from torch_pjrt.run.memory import raise_if_exhausted  # which asks for the client

    raise_if_exhausted(error, doing)


class _Here(threading.local):
    """On this thread: a client of chips that are not there, while something is compiled for it."""

    acting: Client | None = None


_here = _Here()
_client: Client | None = None
_starting = threading.RLock()


def client() -> Client:
    """The one client of this process; starts it on the first call.

    Raises `NoDevice` or `UnknownDevice` where there is nothing to start, and `DeviceError` in a process
    that was forked after the device had been started.
    """
    global _client
    if _here.acting is not None:
        return _here.acting
    if _client is None:
        with _starting:
            _client = _client or _start()
    if _client.pid != os.getpid():
        raise DeviceError(
            "This process was forked after the device had been started: the device cannot be used here.",
            hint="let DataLoader workers make CPU tensors, or start processes by 'spawn'",
        )
    return _client


@contextmanager
def acting_as(other: Client) -> Iterator[None]:
    """While the block runs, rules and passes see another client on this thread: one without chips."""
    _here.acting = other
    try:
        yield
    finally:
        _here.acting = None


def started() -> Client | None:
    """The client of this process, if it has been started."""
    return _client


def is_started() -> bool:
    """Whether the device has been started in this process or in one that it was forked from."""
    return _client is not None


def is_in_bad_fork() -> bool:
    """Whether this process was forked after the device had been started: it cannot be used here."""
    return _client is not None and _client.pid != os.getpid()


def _start() -> Client:
    """The chosen device, started. One that nobody asked for by name and that fails is passed over."""
    install()
    while True:
        choice = host().choice()
        try:
            return _started(choice.offer.device)
        except DeviceError as error:
            if choice.named:
                raise
            host().give_up_on(choice.offer.device, f"{error.happened} {error.saw or ''}".strip())
            try:
                instead = host().choice().offer.device.name
            except NoDevice:
                raise error from None
            warnings.warn(f"{error}\n  instead: the device `{instead}` is used", stacklevel=2)


def _started(device: Device) -> Client:
    lowerings, passes = host().lowerings(device), host().passes(device)
    foreign_calls = host().foreign_calls(device)
    try:
        join(device.processes())
        chips = device.start()
    except Exception as error:
        saw = f"{type(error).__name__}: {error}"
        hint = "`python -m torch_pjrt devices` lists the devices; PJRT_DEVICE=NAME chooses another"
        if isinstance(error, DeviceError):  # it has said what it saw, and what to do
            saw, hint = f"{error.happened} {error.saw or ''}".strip(), error.hint or hint
        raise DeviceError(
            f"The device `{device.name}` could not be started.", saw=saw, hint=hint
        ) from error
    if not chips:
        raise DeviceError(f"The device `{device.name}` started, but it has no chips.")
    capabilities = device.capabilities()
    _fit_to(device, capabilities)
    donates = _donates(chips[0].platform, capabilities)
    return Client(
        device, chips[0], lowerings, passes, os.getpid(), capabilities, donates, foreign_calls
    )


def _fit_to(device: Device, capabilities: Capabilities) -> None:
    """Have dtypes and settings be what the device can do; a notice where it cannot do what PyTorch's can."""
    wide = capabilities.has_64_bits
    dtypes.fit_to(device.name, has_64_bits=wide, lacks=capabilities.lacks_dtypes)
    if not wide:
        warnings.warn(dtypes.notice_of_halves(device.name), stacklevel=2)
    if capabilities.operations is not None and "while" not in capabilities.operations:
        settings.roll_layers = "off"


def _donates(platform: str, capabilities: Capabilities) -> bool:
    if capabilities.donation is None:
        return donates(platform)
    if capabilities.donation:
        let_donate(platform)
    return capabilities.donation
