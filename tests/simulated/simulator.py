"""The simulated accelerator (accelerator.cpp) as the torch device "simulated", and what tests ask it.

`load()` builds the library once for each version of torch and of the source, into a folder of the user's cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import types

import torch
from torch.utils import cpp_extension

from nbloader.device.pinning import HostMemory

SOURCE = pathlib.Path(__file__).with_name("accelerator.cpp")
DEVICES = 2


class NoCompiler(RuntimeError):
    """There is no C++ compiler."""


def built() -> pathlib.Path:
    """Compile the library, unless that was done before.

    Raises:
        NoCompiler: There is none, or torch came without its headers.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    library = cache / "nbloader-tests" / f"simulated-{torch.__version__}-{digest}.so"
    if library.exists():
        return library
    compiler = cpp_extension.get_cxx_compiler()
    headers = cpp_extension.include_paths()
    try:
        subprocess.run([compiler, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoCompiler(f"there is no C++ compiler: {compiler}") from error
    if not any(pathlib.Path(folder, "ATen").is_dir() for folder in headers):
        raise NoCompiler("torch was installed without its C++ headers")
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    paths = [f"-isystem{folder}" for folder in headers] + [f"-L{folder}" for folder in cpp_extension.library_paths()]
    subprocess.run(
        [compiler, *flags, *paths, str(SOURCE), "-o", str(unfinished), "-ltorch", "-ltorch_cpu", "-lc10"], check=True
    )
    unfinished.replace(library)  # at once: another process may be building, too
    return library


@functools.cache
def load():
    """Load the library, and make `torch.simulated` what `torch.cuda` is for CUDA."""
    library = ctypes.CDLL(str(built()))
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    for name, result, arguments in (
        ("speed", None, [ctypes.c_long] * 2),
        ("limits", None, [size] * 2),
        ("read", pointer, [pointer, size, ctypes.c_int, ctypes.c_int64]),
        ("result", None, [pointer, ctypes.c_char_p]),
        ("hold", pointer, [ctypes.c_int, ctypes.c_int64]),
        ("release", None, [pointer]),
        ("register", ctypes.c_int, [pointer, size]),
        ("unregister", ctypes.c_int, [pointer]),
        ("count", ctypes.c_long, [ctypes.c_char_p]),
        ("is_registered", ctypes.c_bool, [pointer]),
        ("capture", None, [ctypes.c_bool]),
    ):
        function = getattr(library, f"simulated_{name}")
        function.restype, function.argtypes = result, arguments
    torch.utils.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", _module(library))
    return library


def _module(library):
    def index_of(device):
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return library.simulated_current_device() if index is None else index

    def named(device):
        return torch.device("simulated", index_of(device))

    @contextlib.contextmanager
    def stream(chosen):
        before, old = library.simulated_current_device(), torch.accelerator.current_stream(chosen.device)
        library.simulated_set_device(chosen.device.index)
        torch.accelerator.set_stream(chosen)
        try:
            yield
        finally:
            torch.accelerator.set_stream(old)
            library.simulated_set_device(before)

    @contextlib.contextmanager
    def device(chosen):
        before = library.simulated_current_device()
        library.simulated_set_device(index_of(chosen))
        try:
            yield
        finally:
            library.simulated_set_device(before)

    module = types.ModuleType("torch.simulated")
    vars(module).update(
        Stream=lambda device=None: torch.Stream(device=named(device)),
        Event=lambda enable_timing=False: torch.Event(device="simulated", enable_timing=enable_timing),
        stream=stream,
        device=device,
        current_stream=lambda device=None: torch.accelerator.current_stream(named(device)),
        current_device=library.simulated_current_device,
        device_count=lambda: DEVICES,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
        synchronize=lambda device=None: torch.accelerator.synchronize(named(device)),
        mem_get_info=lambda _device: (1_000_000, 2_000_000),
        memory_allocated=lambda _device: count("used"),
        memory_reserved=lambda _device: count("reserved"),
        get_device_properties=lambda _device: types.SimpleNamespace(total_memory=1 << 31),
    )
    return module


def synchronize(index: int) -> None:
    """Wait until a device has done all of its work."""
    torch.accelerator.synchronize(torch.device("simulated", index))


def speed(*, copy: float = 0.0, kernel: float = 0.0) -> None:
    """Set the mean time of a copy and of a kernel, in milliseconds."""
    load().simulated_speed(round(1e3 * copy), round(1e3 * kernel))


def limits(*, device: int = 1 << 31, registered: int = 1 << 31) -> None:
    """Set the size of a device's memory and how much memory can be registered, in bytes."""
    load().simulated_limits(device, registered)


def count(name: str) -> int:
    """A counter of the library, see `simulated_count`."""
    return load().simulated_count(name.encode())


class Read:
    """A kernel that reads a tensor late, on the current stream of its device, and keeps no memory of it alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        stream = torch.accelerator.current_stream(tensor.device)
        self._like = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._handle = load().simulated_read(tensor.data_ptr(), tensor.nbytes, stream.device_index, stream.stream_id)

    def result(self) -> torch.Tensor:
        """Wait for the kernel, and return what it has read."""
        into = ctypes.create_string_buffer(max(1, self._like.nbytes))
        load().simulated_result(self._handle, into)
        ctypes.memmove(self._like.data_ptr(), into, self._like.nbytes)
        return self._like


@contextlib.contextmanager
def held(stream):
    """Work on a stream that lasts until the end of the block."""
    gate = load().simulated_hold(stream.device_index, stream.stream_id)
    try:
        yield
    finally:
        load().simulated_release(gate)


@contextlib.contextmanager
def capture():
    """What the device does during the capture of a graph: some calls are an error then, see `calls_in_capture`."""
    load().simulated_capture(True)
    try:
        yield
    finally:
        load().simulated_capture(False)


class Registers(HostMemory):
    """The functions that register memory, as those of the CUDA runtime."""

    def register(self, address: int, size: int, device: torch.device) -> None:
        with torch.get_device_module(device).device(device):
            code = load().simulated_register(address, size)
        if code == 2:
            raise MemoryError("out of memory")
        if code:
            raise OSError(f"error {code}")

    def unregister(self, address: int, device: torch.device) -> None:
        with torch.get_device_module(device).device(device):
            code = load().simulated_unregister(address)
        if code:
            raise OSError(f"error {code}")
