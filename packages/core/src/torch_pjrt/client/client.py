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
from torch_pjrt.client import partition
from torch_pjrt.client.elsewhere import is_elsewhere_too, own_parts
from torch_pjrt.client.lowering_now import chips_of, lowered
from torch_pjrt.errors import CompileError, DeviceError, NoDevice
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.interrupts.signals import install
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.observe.counters import counters
from torch_pjrt.passes import RollLayers
from torch_pjrt.passes.runner import Pass
from torch_pjrt.plugin.capabilities import Capabilities
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls
from torch_pjrt.plugin.host import host
from torch_pjrt.plugin.jax_backend import donates, let_donate
from torch_pjrt.plugin.limits import objection
from torch_pjrt.plugin.processes import join
from torch_pjrt.session import session
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from torch_pjrt.observe.dumps import Dump


@dataclass(frozen=True, slots=True)
class Client:
    """A started device and what plugins say of it.

    device     the plugin's description.
    chip       where arrays are placed, unless a package spreads them over several (`client/partition.py`).
    chips      all that the device has in this process, `chip` first.
    lowerings  the core's rules with the plugins' laid over them.
    passes     in the order in which they run.
    pid        the process that started it: a forked child cannot use it.
    capabilities    what programs may contain; `donates`, whether they may take the memory of inputs.
    foreign_calls   custom calls that programs loaded from disk may have.
    """

    device: Device
    chip: jax.Device  # pyright: ignore[reportInvalidTypeForm]
    lowerings: LoweringTable
    passes: Sequence[Pass]
    pid: int
    capabilities: Capabilities
    donates: bool
    foreign_calls: Sequence[ForeignCalls] = ()
    chips: Sequence[jax.Device] = ()  # pyright: ignore[reportInvalidTypeForm]

    @property
    def is_here(self) -> bool:
        """Whether it has chips that run, and not only a compiler."""
        return self is not _here.acting

    def put(self, array: np.ndarray, sharding: Any = None) -> jax.Array:
        """`array` on the device. Its memory belongs to the device from now on: nobody may write to it."""
        where = sharding or self.place()
        with dtypes.x64(), telling_of_exhaustion(f"uploading {array.nbytes} bytes"):
            if is_elsewhere_too(where):
                return own_parts(array, where)
            return jax.device_put(array, where)

    def put_on_each(
        self, array: np.ndarray, chips: Sequence[Any], memory_kind: str | None = None
    ) -> list[jax.Array]:
        """`array` on each of some chips, as `put` does it, in memory of some kind, by JAX's name."""
        one = jax.sharding.SingleDeviceSharding
        with dtypes.x64(), telling_of_exhaustion(f"uploading {array.nbytes} bytes"):
            return [jax.device_put(array, one(chip, memory_kind=memory_kind)) for chip in chips]

    def place(self) -> Any:
        """Where an array goes that nobody has placed: a sharding, or the chip."""
        of_all = partition.chosen.partitioner
        return (of_all and self.is_here and of_all.default()) or self.chip

    def compile(
        self,
        function: Callable[..., Any],
        arguments: Any,
        donate: Sequence[int],
        dump: Dump | None = None,
        shardings: Any = None,
    ) -> tuple[Any, Any]:
        """Lower and compile: what is called with arrays in the order of `arguments`, and what JAX lowered.

        shardings   where its results lie, in order, None where XLA decides; not given: all on the chip.
        """
        with counters.timed("lower_s"):
            lowered = self.lower(function, arguments, donate, shardings)
        if dump is not None:
            dump.lowered(lowered)
        with counters.timed("compile_s"):
            compiled = self.compile_lowered(lowered)
        if dump is not None:
            dump.compiled(compiled)
        return compiled, lowered

    def lower(
        self,
        function: Callable[..., Any],
        arguments: Any,
        donate: Sequence[int],
        shardings: Any = None,
    ) -> Any:
        """The `jax.stages.Lowered` of the function; `arguments` have the shapes and dtypes of its own."""
        with quiet():
            return lowered(
                function,
                arguments,
                chips_of(arguments) or (self.chip,),
                self.prepare,
                donate_argnums=tuple(donate),
                keep_unused=True,
                # Says where to run for programs without inputs, which would go to JAX's default device.
                out_shardings=shardings or jax.sharding.SingleDeviceSharding(self.chip),
            )

    def prepare(self, lowered: Any) -> None:
        """Have the device, and who spreads arrays over chips, change what JAX lowered."""
        module = lowered.compiler_ir("stablehlo")
        self.device.prepare(module)
        if (of_all := partition.chosen.partitioner) is not None:
            of_all.prepare(module)

    def compile_lowered(self, lowered: Any) -> Any:
        """What XLA makes of it for this device; raises `CompileError` if it refuses."""
        limits = self.capabilities if self.capabilities.limited else None
        if limits and (has := objection(lowered.compiler_ir("stablehlo"), limits)) is not None:
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
                raise_if_exhausted(error, "compiling a program")
            raise CompileError(
                f"The device `{self.device.name}` refused a program.", saw=str(error)
            ) from error


# What JAX raises where a launch fails; once jitted functions run in C, it is the second.
LAUNCH_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def _leave(error: Exception, doing: str) -> None:
    """The error is raised as it is."""


# Raises what says more where the error means that there is no room: `client/memory.py` puts it here.
raise_if_exhausted: Callable[[Exception, str], None] = _leave


@contextmanager
def telling_of_exhaustion(doing: str) -> Iterator[None]:
    """An error in the block that means that there is no room is a `torch.OutOfMemoryError`."""
    try:
        yield
    except LAUNCH_ERRORS as error:
        raise_if_exhausted(error, doing)
        raise


class _Here(threading.local):
    """On this thread: a client of chips that are not there, while something is compiled for it."""

    acting: Client | None = None


class _Running:
    """The client of this process, once it has been started."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.starting = threading.RLock()
        self.here = _Here()


_running = session.own("the started device", _Running())
_here = _running.here


def client() -> Client:
    """The one client of this process; starts it on the first call.

    Raises `NoDevice` or `UnknownDevice` where there is nothing to start, and `DeviceError` in a process
    that was forked after the device had been started.

        >>> client().chip.platform
        'cpu'
    """
    if _here.acting is not None:
        return _here.acting
    found = _running.client
    if found is None:
        with _running.starting:
            found = _running.client = _running.client or _start()
    if found.pid != os.getpid():
        raise DeviceError(
            "This process was forked after the device had been started: the device cannot be used here.",
            hint="let DataLoader workers make CPU tensors, or start processes by 'spawn'",
        )
    return found


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
    return _running.client


def is_started() -> bool:
    """Whether the device has been started in this process or in one that it was forked from."""
    return _running.client is not None


def is_in_bad_fork() -> bool:
    """Whether this process was forked after the device had been started: it cannot be used here."""
    return (found := _running.client) is not None and found.pid != os.getpid()


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
    passes = suited(passes, capabilities)
    donates = _donates(chips[0].platform, capabilities)
    return Client(
        device,
        chips[0],
        lowerings,
        passes,
        os.getpid(),
        capabilities,
        donates,
        foreign_calls,
        tuple(chips),
    )


def suited(passes: Sequence[Pass], capabilities: Capabilities) -> Sequence[Pass]:
    """The passes without the one that makes loops, where the device's compiler takes none."""
    if capabilities.operations is not None and "while" not in capabilities.operations:
        return tuple(p for p in passes if not isinstance(p, RollLayers))
    return passes


def _fit_to(device: Device, capabilities: Capabilities) -> None:
    """Have dtypes be what the device can do; a notice where it cannot do what PyTorch's can."""
    wide = capabilities.has_64_bits
    dtypes.fit_to(device.name, has_64_bits=wide, lacks=capabilities.lacks_dtypes)
    if not wide:
        warnings.warn(dtypes.notice_of_halves(device.name), stacklevel=2)


def _donates(platform: str, capabilities: Capabilities) -> bool:
    if capabilities.donation is None:
        return donates(platform)
    if capabilities.donation:
        let_donate(platform)
    return capabilities.donation
