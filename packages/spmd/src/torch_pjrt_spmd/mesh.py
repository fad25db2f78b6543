"""Meshes: the chips of the device in rows and columns, with a name for each direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_pjrt.errors import SettingError
from torch_pjrt.extend import client, target_chips
from torch_pjrt_spmd.run_chips import run_chips
from torch_pjrt_spmd.taking_over import take_over

if TYPE_CHECKING:
    import jax
    from torch.distributed.device_mesh import DeviceMesh

    from torch_pjrt_spmd.sub_mesh import SubMesh


@dataclass(frozen=True)
class Mesh:
    """The chips that this process drives, or all processes of its run, as an array of named axes.

    shape       how many chips lie along each axis.
    axis_names  of each axis its name, to be used in specs.
    devices     which chips, by their index among all of the run, those of the first process first, in
                row-major order. None: the first ones, on hardware with a topology so arranged that
                neighbours on an axis are near.
    target      hardware that is not here, `v5e:4x4`: its chips, instead of this process's. See `for_target`.

    Raises `SettingError` for axes and names of different numbers, names that come twice, a chip that comes
    twice or is not there, and a shape that asks for other chips than `devices` names.

        mesh = Mesh((2, 4), ("data", "model"))
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    devices: tuple[int, ...] | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "axis_names", tuple(self.axis_names))
        if len(self.shape) != len(self.axis_names):
            raise SettingError(
                "A mesh has a name for each axis.",
                saw=f"shape {self.shape}, names {self.axis_names}",
            )
        if len(set(self.axis_names)) < len(self.axis_names) or not all(
            isinstance(name, str) and name for name in self.axis_names
        ):
            raise SettingError(
                "The names of a mesh's axes are texts, each another one.", saw=repr(self.axis_names)
            )
        if self.devices is not None:
            object.__setattr__(self, "devices", tuple(map(int, self.devices)))
        self._check_chips()
        # Here, and not only where something is marked: that may be in a function that is compiled.
        take_over()

    def _check_chips(self) -> None:
        there = len(self._chips())
        if self.devices is None:
            if self.size > there or min(self.shape, default=1) < 1:
                raise SettingError(
                    f"A mesh of {self.shape} needs {self.size} chips.",
                    saw=f"`{self.target}`"
                    if self.target
                    else f"{there} of `{client().device.name}` in this run",
                    hint="XLA_FLAGS=--xla_force_host_platform_device_count=8 makes the CPU eight, for tests; "
                    'Mesh.for_target("v5e:4x4", ...) is one of chips that are not here',
                )
        elif len(self.devices) != self.size or len(set(self.devices)) < self.size:
            raise SettingError(
                f"A mesh of {self.shape} needs {self.size} chips, each another one.",
                saw=repr(self.devices),
            )
        elif not all(0 <= i < there for i in self.devices):
            raise SettingError(
                "A mesh names a chip that is not there.",
                saw=repr(self.devices),
                expected=f"numbers from 0 to {there - 1}",
            )

    def _chips(self) -> Sequence[Any]:
        """Those of which it has some."""
        return run_chips() if self.target is None else target_chips(self.target)

    @property
    def size(self) -> int:
        """How many chips it has."""
        return prod(self.shape)

    def axis_size(self, name: str) -> int:
        """How many chips lie along the axis. `KeyError` for a name that no axis has."""
        return self.sizes[name]

    @property
    def sizes(self) -> dict[str, int]:
        """Of each axis how many chips lie along it, in order."""
        return dict(zip(self.axis_names, self.shape, strict=True))

    @property
    def root(self) -> Mesh:
        """Itself; of a `SubMesh` the mesh that it is of."""
        return self

    def __getitem__(self, axis_names: str | tuple[str, ...]) -> Mesh | SubMesh:
        """Some of its axes, as of PyTorch's `DeviceMesh`: a `SubMesh`, or the mesh itself if that is all.

        `SettingError` for a name that no axis has, and for names in another order than the mesh's.
        """
        from torch_pjrt_spmd.sub_mesh import SubMesh

        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        return self if names == self.axis_names else SubMesh(self, names)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Which chips, by their index, in row-major order."""
        return _usual_order(self.shape, self.target) if self.devices is None else self.devices

    @cached_property
    def jax_mesh(self) -> jax.sharding.Mesh:
        """The same as JAX's mesh."""
        import jax

        chips = self._chips()
        array = np.array([chips[i] for i in self.order], object).reshape(self.shape)
        auto = (jax.sharding.AxisType.Auto,) * len(self.shape)
        return jax.sharding.Mesh(array, self.axis_names, axis_types=auto)

    @classmethod
    def for_target(cls, target: str, shape: Sequence[int], axis_names: Sequence[str]) -> Mesh:
        """A mesh of chips that are not here, for `torch_pjrt.compile_for(target, ...)`; it may be larger.

        What is marked for it is noted and not moved: the marks hold for that target only. Raises as a mesh
        of this process does, and `UnknownDevice` or `DeviceError` as `compile_for`.

            mesh = Mesh.for_target("v5e:4x4", (4, 4), ("data", "model"))
        """
        return cls(tuple(shape), tuple(axis_names), target=target)

    @classmethod
    def from_jax(cls, mesh: jax.sharding.Mesh) -> Mesh:
        """The mesh of a JAX mesh. `SettingError` for one with chips that this device has not."""
        numbers = {chip: i for i, chip in enumerate(run_chips())}
        chips = list(mesh.devices.flat)
        if not all(chip in numbers for chip in chips):
            raise SettingError(
                "The JAX mesh has chips that are not this device's.",
                saw=repr(mesh),
                expected=f"chips of `{client().device.name}` in this run",
            )
        return cls._ordered(
            mesh.devices.shape, mesh.axis_names, tuple(numbers[chip] for chip in chips)
        )

    @classmethod
    def from_device_mesh(cls, mesh: DeviceMesh) -> Mesh:
        """The mesh of PyTorch's `DeviceMesh`, whose ranks are chips; axes without a name are `dim_0`, ..."""
        names = mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(mesh.mesh.ndim))
        return cls._ordered(tuple(mesh.mesh.shape), names, tuple(mesh.mesh.flatten().tolist()))

    @classmethod
    def hybrid(
        cls, ici_shape: tuple[int, ...], dcn_shape: tuple[int, ...], axis_names: tuple[str, ...]
    ) -> Mesh:
        """A mesh over slices of chips that a slower network joins.

        ici_shape   how many chips of one slice lie along each axis.
        dcn_shape   how many slices lie along each axis; the mesh has `ici * dcn` chips along it, those of
                    a slice beside each other.

        Slices are what the hardware calls so, else hosts, and where all chips are one (virtual ones, say)
        consecutive blocks of as many chips as a slice has. Raises `SettingError` for shapes of different
        lengths, for other slices than there are, and as the class does.

            mesh = Mesh.hybrid((1, 4), (2, 1), ("data", "model"))  # `model` within a slice, `data` across
        """
        from torch_pjrt_spmd.hybrid import hybrid_order

        order = hybrid_order(run_chips(), tuple(ici_shape), tuple(dcn_shape))
        shape = tuple(ici * dcn for ici, dcn in zip(ici_shape, dcn_shape, strict=True))
        return cls._ordered(shape, axis_names, order)

    @classmethod
    def _ordered(
        cls, shape: tuple[int, ...], axis_names: tuple[str, ...], order: tuple[int, ...]
    ) -> Mesh:
        """Equal to the mesh without `devices` where that has the chips in this order."""
        fits = 0 < prod(shape) <= len(run_chips())
        usual = fits and order == _usual_order(tuple(map(int, shape)), None)
        return cls(shape, axis_names, None if usual else order)

    def to_device_mesh(self) -> DeviceMesh:
        """The same as PyTorch's `DeviceMesh`, for this package's functions and for its sizes and names.

        It has no process groups: what PyTorch's own functions would do between processes raises.
        """
        from torch_pjrt_spmd.one_process_mesh import OneProcessMesh

        return OneProcessMesh(self)

    def written(
        self,
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...] | str | None]:
        """Its shape, names and chips as plain tuples, for annotations; the chips may be those of a target."""
        return self.shape, self.axis_names, self.target or self.devices


@lru_cache
def _usual_order(shape: tuple[int, ...], target: str | None) -> tuple[int, ...]:
    """The first chips, by their index, as they lie on a mesh of this shape that names none."""
    from jax.experimental import mesh_utils

    chips = list(run_chips() if target is None else target_chips(target))
    numbers = {chip: i for i, chip in enumerate(chips)}
    # Two axes may share a direction of the hardware: (4, 2, 2) on 4 x 4 chips.
    try:
        array = mesh_utils.create_device_mesh(
            shape, chips[: prod(shape)], allow_split_physical_axes=True
        )
    except (
        AssertionError,
        NotImplementedError,
    ):  # JAX knows no good order: TPUs with two cores a chip
        return tuple(range(prod(shape)))
    return tuple(numbers[chip] for chip in array.flat)
