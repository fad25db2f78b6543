"""`torch_pjrt.DeviceLoader`: batches of any loader, brought to the device while the last one is computed on.

A thread takes batches from the loader and starts their transfer; tensors are made of them on the thread
that reads, since recording belongs to it.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import torch

from torch_pjrt.data.modes import modes_here
from torch_pjrt.data.ownership import is_free, visit
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.run.batches import begin_step, run_between_steps
from torch_pjrt.session import session

# Where a tensor goes: a sharding of JAX's, a value that is there already, or None.
Place = Callable[[torch.Tensor], Any]
# What the thread hands over: a batch or `_END`, or an error, and the loader's state behind it.
_Item = tuple[Any, BaseException | None, Any]
_END = object()
_WAIT_S = 0.05  # how long a thread that was told to stop may not notice
_MOST_WAIT_S = 1.0  # for a loader that takes longer to give its next batch, nobody waits
# The threads of loops that have not ended, and what tells each to stop.
_loops: dict[threading.Thread, threading.Event] = session.own("threads of loaders", {})


class DeviceLoader:
    """The batches of `loader`, on `device`; `prefetch` of them are on their way while one is used.

        >>> loader = [(torch.ones(2), torch.zeros(2))]
        >>> for x, y in torch_pjrt.DeviceLoader(loader):
        ...     print(x.device, y.device)
        pjrt:0 pjrt:0

    loader    any iterable: a `DataLoader`, a list, an object with `__iter__`; read anew for each epoch.
    device    "pjrt", or any device of PyTorch (then batches are moved with `.to`, in turn).
    place     says of each tensor the `jax.sharding.Sharding` that it goes to, or None: where others go. Or
              it uploads it itself, and gives the `torch_pjrt.extend.Value`.
    prefetch  so many batches more than the one in use take memory on the device; `ValueError` below 1.

    Tensors in tuples, lists, named tuples, mappings and dataclasses are moved, other things left as they are;
    what has a `to` of its own (`PackedSequence`, a tokenizer's batch) is asked to move itself. A batch
    that nobody else holds goes to the device without another copy on the host. An error of the loader is
    raised where its batch would have come, with its traceback. Leaving the loop ends the thread. The thread
    has the modes of the one that reads, when that asks for the first batch: gradients, autocast, default
    device. Attributes that are not of this class (`dataset`, `sampler`, ...) are the loader's.

    If the loader has `state_dict`, so has this: what the loader's was when it gave the batch that was
    received last, whatever has been fetched since; it is asked for with each batch. `load_state_dict` is
    the loader's.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str = "pjrt",
        prefetch: int = 2,
        *,
        place: Place | None = None,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must be at least 1, saw {prefetch}")
        self.loader = loader
        self.device = torch.device(device)
        self.prefetch = prefetch
        self.place = place
        self._state: Any = None  # behind the batch that was received last
        self._loop: object = None  # the loop that has begun last

    def __len__(self) -> int:
        """The loader's; `TypeError` if it has none."""
        return len(self.loader)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader or one of its samplers which epoch it is; `AttributeError` if none asks."""
        self._state = None
        loader: Any = self.loader
        samplers: list[Any] = [
            getattr(loader, n, None) for n in ("sampler", "batch_sampler", "dataset")
        ]
        for one in (loader, *samplers):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
                return
        raise AttributeError(f"`{type(loader).__name__}` has no `set_epoch`, nor has its sampler")

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "_state"):  # not yet there: copying, unpickling
            raise AttributeError(name)
        found = getattr(self.loader, name)
        # Only where the loader has them, so that `hasattr` says the truth.
        return {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}.get(
            name, found
        )

    def _state_dict(self) -> Any:
        """The loader's, as of the batch that was received last."""
        loader: Any = self.loader
        return copy.deepcopy(loader.state_dict() if self._state is None else self._state)

    def _load_state_dict(self, state: Any) -> None:
        """Have the loader go on there; a loop that runs has no say in the state any more."""
        self._state, self._loop = None, None
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        # On this thread: worker processes start here, and shuffling draws its seed with the first batch.
        source = iter(self.loader)
        self._state = None
        if self.device.type != "pjrt":
            return (_moved(batch, self.device) for batch in source)
        torch.pjrt.init()  # type: ignore[attr-defined]
        self._state = _state_of(self.loader)
        loop = self._loop = object()
        return self._read(source, loop)

    def _read(self, source: Iterator[Any], loop: object) -> Iterator[Any]:
        first = list(_take(source))
        if not first:
            self._note(_state_of(self.loader), loop)
            return
        stop = threading.Event()
        sent: queue.Queue[_Item] = queue.Queue(self.prefetch)
        thread = threading.Thread(
            target=_send_all,
            args=(chain(first, source), self.loader, _Sender(self.place), sent, stop, modes_here()),
            name="torch_pjrt.DeviceLoader",
            daemon=True,
        )
        del first, source
        try:
            with quiet():
                thread.start()
                _loops[thread] = stop
                _end_at_exit()
            while True:
                run_between_steps()
                batch, error, state = _next(sent, thread)
                try:
                    if error is not None:
                        raise error
                finally:
                    del error  # its traceback holds this frame
                self._note(state, loop)
                if batch is _END:
                    return
                begin_step()
                received = _received(batch, self.device)
                del batch
                yield received
                del received
        finally:
            with quiet():  # an interrupt comes when the thread knows
                stop.set()
            if thread.ident is not None:
                thread.join(_MOST_WAIT_S)
            _loops.pop(thread, None)

    def _note(self, state: Any, loop: object) -> None:
        """The state behind what a loop gives, unless another one has begun."""
        if self._loop is loop:
            self._state = state


def _end_at_exit() -> None:
    """Have the threads ended before the interpreter is, and before JAX's client, which has started by now.

    A thread that is in C++ when the interpreter ends would abort the process.
    """
    atexit.unregister(_end_loops)
    atexit.register(_end_loops)


def _end_loops() -> None:
    for stop in list(_loops.values()):
        stop.set()
    for thread in list(_loops):
        thread.join(_MOST_WAIT_S)


def _state_of(loader: Any) -> Any:
    """A copy of the loader's state; None if it has none.

    Nor has a wrapper any whose `state_dict` asks a loader that lacks it, as Accelerate's does.
    """
    asked = getattr(loader, "state_dict", None)
    if asked is None:
        return None
    try:
        return copy.deepcopy(asked())
    except AttributeError:
        return None


def _take(source: Iterator[Any]) -> Iterator[Any]:
    """The first batch, if there is one."""
    for batch in source:
        yield batch
        return


@dataclasses.dataclass(slots=True)
class _Sent:
    """A tensor under way: its value on the device, and the spec of the tensor to be made of it."""

    value: Any
    spec: Any


@dataclasses.dataclass(slots=True)
class _Later:
    """Something that is to be moved on the reader's thread."""

    thing: Any


def _send_all(
    source: Iterator[Any],
    loader: Iterable[Any],
    send: _Sender,
    sent: queue.Queue[_Item],
    stop: threading.Event,
    modes: Callable[[], AbstractContextManager[Any]],
) -> None:
    """The thread: put every batch on its way, until the loader or the reader ends."""
    try:
        with modes():
            while not stop.is_set():
                box = list(_take(source))
                state = _state_of(loader)
                if not box:
                    _put((_END, None, state), sent, stop)
                    return
                [batch] = visit(box, True, send)
                _put((batch, None, state), sent, stop)
                del batch
    except BaseException as error:
        _put((None, error, None), sent, stop)
    finally:
        del source  # here, so that a generator's own `finally` has run when the reader goes on


def _next(sent: queue.Queue[_Item], thread: threading.Thread) -> _Item:
    """What the thread hands over next."""
    while True:
        try:
            return sent.get(timeout=_MOST_WAIT_S)
        except queue.Empty:
            if not thread.is_alive() and sent.empty():
                raise RuntimeError(
                    "The thread of the DeviceLoader has ended without a word: this process is a fork of "
                    "the one that began the loop, or something has ended the thread."
                ) from None


def _put(
    item: _Item,
    sent: queue.Queue[_Item],
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        try:
            sent.put(item, timeout=_WAIT_S)
        except queue.Full:
            continue
        return


class _Sender:
    """Puts the tensors of a batch on their way, to where `place` says."""

    def __init__(self, place: Place | None) -> None:
        self.place = place

    def __call__(self, x: Any, alone: bool) -> Any:
        """`x` with its tensors put on their way."""
        if isinstance(x, torch.Tensor):
            return self._send(x, alone)
        if hasattr(x, "to") and callable(x.to):
            return _Later(x)
        return _rebuilt(x, lambda parts: visit(parts, alone, self))

    def _send(self, tensor: torch.Tensor, alone: bool) -> Any:
        from torch_pjrt.graph.tape import Value
        from torch_pjrt.tensor.storage.transfer import spec_on_device, upload

        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not plain or tensor.device.type != "cpu" or tensor.requires_grad:
            return _Later(tensor)
        sharding = None if self.place is None else self.place(tensor)
        if isinstance(sharding, Value):
            return _Sent(sharding, sharding.spec)
        value = upload(tensor, copy=not (alone and is_free(tensor)), sharding=sharding)
        return _Sent(value, spec_on_device(tensor))


def _received(x: Any, device: torch.device) -> Any:
    """What was sent, as tensors."""
    from torch_pjrt.tensor.storage.buffer import wrap_sized

    if isinstance(x, _Sent):
        return wrap_sized(x.value, x.spec)
    if isinstance(x, _Later):
        return _moved(x.thing, device)
    return _rebuilt(x, lambda parts: [_received(part, device) for part in parts])


def _moved(x: Any, device: torch.device) -> Any:
    """`x` on the device, by its own `to` or that of its parts."""
    if isinstance(x, torch.Tensor):
        return x.to(device, non_blocking=True)
    if hasattr(x, "to") and callable(x.to):
        return x.to(device)
    return _rebuilt(x, lambda parts: [_moved(part, device) for part in parts])


def _rebuilt(x: Any, change: Callable[[Iterable[Any]], list[Any]]) -> Any:
    """A container like `x` of its changed parts; anything else as it is."""
    if isinstance(x, Mapping):
        changed = dict(zip(x, change(x.values()), strict=True))
        try:
            return type(x)(changed)  # type: ignore[call-arg]
        except TypeError:  # a mapping that is made otherwise
            return changed
    if isinstance(x, tuple):
        parts = change(x)
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, list):
        return type(x)(change(x))
    if dataclasses.is_dataclass(x) and not isinstance(x, (type, _Sent, _Later)):
        names = [f.name for f in dataclasses.fields(x) if f.init]
        parts = change([getattr(x, name) for name in names])
        return dataclasses.replace(x, **dict(zip(names, parts, strict=True)))
    return x
