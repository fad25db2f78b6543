"""The one file for JAX's internals: PJRT clients of our own, beside those that JAX manages.

A client that is made here is unknown to JAX's list of backends: `jax.devices()`, the default
backend and `JAX_PLATFORMS` stay as the user has them, and it makes no difference whether JAX has
been used before. Arrays are placed on the chips of such a client explicitly, and programs follow
their arrays.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch_pjrt.errors import DeviceError
from torch_pjrt.options import Options, client_options

if TYPE_CHECKING:
    import jax

    from torch_pjrt.plugin.processes import Processes

# A time limit of the coordinator's in seconds that is never reached.
_NEVER = 10_000_000

# The entry points by which JAX finds PJRT plugins.
JAX_GROUP = "jax_plugins"


def separate_cpu_chips() -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of a new XLA CPU client, which shares nothing with `jax.devices("cpu")`.

    For `Device.start` of a device that stands in for hardware, in tests above all. Each call makes
    another client; a chip keeps its client alive. The chips' platform is "cpu".

        >>> [chip.platform for chip in separate_cpu_chips()]
        ['cpu']
    """
    from jax._src import xla_bridge

    return xla_bridge.make_cpu_client().local_devices()


def cpu_chips() -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of JAX's own CPU client; of a new one, where JAX's was made before the process joined a run.

    Raises what JAX raises where JAX_PLATFORMS leaves the CPU out.

        >>> cpu_chips()[0].platform
        'cpu'
    """
    import jax

    is_alone = started_by_jax("cpu") is not None and jax.process_count("cpu") == 1
    if is_alone and jax.distributed.is_initialized():
        return separate_cpu_chips()
    return jax.local_devices(backend="cpu")


def library_chips(name: str, path: str, defaults: Options | None = None) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of a new client of the PJRT plugin in the shared library at `path`.

    name      what XLA calls the plugin; one that this process has loaded already is not loaded again.
    defaults  options of the client, under those of TORCH_PJRT_CLIENT_OPTIONS.

    Raises `DeviceError` if the library cannot be loaded.

        >>> library_chips("mine", "/opt/mine/libpjrt_mine.so", {"queues": 2})
        Traceback (most recent call last):
        torch_pjrt.errors.DeviceError: The library of the device `mine` could not be loaded.
          saw: /opt/mine/libpjrt_mine.so: ...
          expected: a shared library with the function GetPjrtApi
    """
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    if not xla_client.pjrt_plugin_loaded(name):
        try:
            xla_client.load_pjrt_plugin_dynamically(name, path)
        except Exception as error:
            raise DeviceError(
                f"The library of the device `{name}` could not be loaded.",
                saw=f"{path}: {_first_line(error)}",
                expected="a shared library with the function GetPjrtApi",
            ) from error
    return _chips_of_c_api(name, client_options(defaults))


def platform_chips(platform: str, defaults: Options | None = None) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of a platform that one of JAX's own plugins brings: "cuda", for example.

    Of JAX's client, if JAX has started one for the platform; else of a new client with `defaults` and
    TORCH_PJRT_CLIENT_OPTIONS, of which JAX knows nothing. No other platform is started. Raises
    `DeviceError` where no plugin brings the platform, with what its plugin said.

        >>> platform_chips("mine")
        Traceback (most recent call last):
        torch_pjrt.errors.DeviceError: JAX has no platform `mine`.
          saw: platforms ...
          hint: install JAX's plugin for it, of the version of jaxlib
    """
    from jax._src import xla_bridge

    if (started := started_by_jax(platform)) is not None:
        return started.local_devices()
    complaints = _discovered()
    if platform not in xla_bridge._backend_factories:
        raise DeviceError(
            f"JAX has no platform `{platform}`.",
            saw="; ".join(_complaints_about(platform) or complaints)
            or f"platforms {', '.join(xla_bridge._backend_factories)}",
            hint="install JAX's plugin for it, of the version of jaxlib",
        )
    registration = xla_bridge._backend_factories[platform]
    if getattr(registration, "c_api", None) is None:  # it makes its clients itself
        client = registration.factory()
        if client is None:
            raise DeviceError(f"JAX could not start the platform `{platform}`.")
        return client.local_devices()
    return _chips_of_c_api(platform, client_options(defaults))


def started_by_jax(platform: str) -> Any:
    """JAX's own client for the platform; None where JAX has not started one. Starts nothing."""
    from jax._src import xla_bridge

    return xla_bridge._backends.get(platform) if xla_bridge._backends else None


def platforms_of_plugins() -> Sequence[str]:
    """The platforms that JAX's plugins have registered. Loads the plugins, starts no client.

    >>> "cpu" in platforms_of_plugins()  # JAX's own
    False
    """
    from jax._src import xla_bridge

    _discovered()
    registered = xla_bridge._backend_factories
    return [name for name in registered if name not in ("cpu", "tpu")]


def jax_plugins() -> Sequence[EntryPoint]:
    """The installed PJRT plugins for JAX, by entry point. Imports neither them nor JAX."""
    found = {e.value: e for e in entry_points(group=JAX_GROUP)}
    return sorted(found.values(), key=lambda e: e.name)


def join_run(port: int, near_port: int, processes: Processes, timeout: int) -> None:
    """Make JAX part of a run of several processes, as `jax.distributed.initialize()` does.

    port       of the coordinator, which the first process starts.
    near_port  of this host, by which the coordinator is reached.
    timeout    how long to wait for the others, in seconds.

    Other than JAX's own function, this leaves it to us to find processes that are gone, never waits at exit,
    and does not end the process where the coordinator goes.
    """
    import atexit
    import ctypes

    from jax._src import distributed
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    run = distributed.global_state
    if processes.index == 0:
        run.service = _jax.get_distributed_runtime_service(
            f"[::]:{port}", processes.count, heartbeat_timeout=_NEVER, shutdown_timeout=1
        )
        # Others may need it when this process ends: it is never taken down, only gone.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(run.service))
    run.client = found = _jax.get_distributed_runtime_client(
        f"127.0.0.1:{near_port}",
        processes.index,
        init_timeout=timeout,
        heartbeat_timeout=_NEVER,
        shutdown_timeout=1,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    found.connect()
    run.process_id, run.num_processes = processes.index, processes.count
    run.coordinator_address = processes.coordinator
    if processes.local_chips is not None:
        import jax

        visible = ",".join(map(str, processes.local_chips))
        jax.config.update("jax_cuda_visible_devices", visible)
        jax.config.update("jax_rocm_visible_devices", visible)

    def leave() -> None:
        """JAX would wait for the others here."""
        run.service = run.client = None

    atexit.register(leave)


def compile_only_chips(platform: str, name: str = "", **options: Any) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
    """The chips of hardware that is not here: programs can be compiled for them, and not run.

    platform  as JAX names it: "tpu", "cuda".
    name      of a topology, as its plugin names it: "v5e:2x4".
    options   of the plugin, for this topology.

    Raises what the platform's plugin raises where it is not installed, or knows no such topology.

        >>> compile_only_chips("cpu")
        Traceback (most recent call last):
        NotImplementedError: ...
    """
    from jax.experimental import topologies

    return topologies.get_topology_desc(name, platform=platform, **options).devices


def counted_by_cpu(compiled: Any) -> Mapping[str, float]:
    """XLA's count of a compiled program's operations, made by the CPU client for compilers that make none."""
    from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

    [module] = compiled.runtime_executable().hlo_modules()
    return _jax.hlo_module_cost_analysis(separate_cpu_chips()[0].client, module)


def gpu_options() -> dict[str, Any]:
    """JAX's own options of a client for GPUs, which its environment variables set.

    >>> sorted(gpu_options())
    [...'allocator'...]
    """
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    return dict(xla_client.generate_pjrt_gpu_plugin_options())


def call_in_c(compiled: Any) -> Any:
    """The function in C by which a compiled program that has run is called; None where JAX has none."""
    call = getattr(compiled, "_call", None)
    return None if isinstance(call, FunctionType) else call


def donates(platform: str) -> bool:
    """Whether JAX passes on to this platform that an argument's memory may be reused."""
    from jax._src.interpreters import mlir

    return platform in mlir._platforms_with_donation


def let_donate(platform: str) -> None:
    """Have JAX pass it on, for a platform that it does not know."""
    from jax._src.interpreters import mlir

    if platform not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(platform)


def _chips_of_c_api(name: str, options: Options) -> Sequence[Any]:
    """The chips of a new client of a loaded plugin; part of the run of several processes, if JAX is."""
    from jax._src import distributed
    from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

    if not xla_client.pjrt_plugin_initialized(name):
        xla_client.initialize_pjrt_plugin(name)
    run = distributed.global_state
    if run.client is None:
        return xla_client.make_c_api_client(name, dict(options), None).local_devices()
    process: Mapping[str, Any] = {"node_id": run.process_id, "num_nodes": run.num_processes}
    return xla_client.make_c_api_client(name, {**process, **options}, run.client).local_devices()


def _discovered() -> list[str]:
    """Have JAX load its plugins, as it does before it starts; what it logged about those that failed."""
    from jax._src import xla_bridge

    with _logged_by_jax() as records:
        xla_bridge._discover_and_register_pjrt_plugins()
    return [_complaint(record) for record in records]


def _complaints_about(platform: str) -> list[str]:
    """What JAX's plugins for the platform say when they are asked again: JAX only logs it, once."""
    complaints = []
    for entry_point in jax_plugins():
        if platform in entry_point.name or platform in entry_point.value:
            try:
                importlib.import_module(entry_point.module).initialize()
            except Exception as error:
                complaints.append(f"{entry_point.name}: {_first_line(error)}")
    return complaints


@contextmanager
def _logged_by_jax() -> Iterator[list[logging.LogRecord]]:
    """What JAX logs as an error while the block runs."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("jax._src.xla_bridge")
    keep = Keep(logging.ERROR)
    logger.addHandler(keep)
    try:
        yield records
    finally:
        logger.removeHandler(keep)


def _complaint(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return f"{record.getMessage()}: {_first_line(error)}" if error else record.getMessage()


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
