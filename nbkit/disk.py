"""Where things are kept: runs(), the one atomic write, locks, tensors in and out, the one cache."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import threading
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import save

_CHECKOUT = Path(__file__).resolve().parents[1]
# Marks, spectra and recoveries that come with the kit.
BUNDLED = Path(__file__).parent / "trained"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}


class OneSentence(Exception):
    """An error that says all there is to say: a notebook shows its sentence alone, without a traceback."""

    def _render_traceback_(self):
        return [f"\x1b[31m{self}\x1b[0m"]


def runs():
    """Suites, checkpoints and papermill outputs: $NBKIT_RUNS, or `runs/` of the checkout, or ~/.cache/nbkit."""
    if "NBKIT_RUNS" in os.environ:
        return Path(os.environ["NBKIT_RUNS"]).expanduser()
    return _CHECKOUT / "runs" if (_CHECKOUT / "notebooks").is_dir() else Path.home() / ".cache" / "nbkit"


def figures():
    """Publication figures: `figures/` of the checkout, or of `runs()` when the kit is installed without one."""
    return _CHECKOUT / "figures" if (_CHECKOUT / "notebooks").is_dir() else runs() / "figures"


@contextmanager
def replacing(path):
    """A passing name for a new file, which takes the place of `path` at the end of the block, once the disk has it.

    A crash at any moment leaves the old file or the new one, whole; a block that fails leaves the old one.
    The folder is made.
    """
    path = Path(path)
    with explain_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # What processes of this machine that are no more had begun to write in its place goes.
    name = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.\d+\.{re.escape(socket.gethostname())}\.part")
    for part in path.parent.iterdir():
        if (match := name.fullmatch(part.name)) and not psutil.pid_exists(int(match[1])):
            part.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.{socket.gethostname()}.part")
    try:
        with explain_full(path):
            yield part
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    # The rename itself is only safe from a power cut once the folder is on disk.
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def write_atomically(path, data):
    """Write bytes to a file as `replacing` does."""
    with replacing(path) as part:
        part.write_bytes(data)


def write_json(path, value):
    """As `write_atomically`, for numbers, words, lists and dicts."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def write_tensors(path, tensors, about):
    """Tensors by name and a JSON-able description, in one file: they cannot fall out of step."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(tensors, metadata={"nbkit": json.dumps(about), "checksum": _checksum(tensors)}))


def read_tensors(path, device="cpu"):
    """(tensors by name, description) of a file of `write_tensors`."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            about, checksum = ((file.metadata() or {}).get(name) for name in ("nbkit", "checksum"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint {path}.") from None
    except Exception as problem:
        raise ValueError(f"{path} is not a whole safetensors file ({problem}); delete it to start anew.") from problem
    if about is None:
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of nbkit.")
    if checksum not in (None, _checksum(tensors)):  # files of the first versions have none
        raise ValueError(f"{path} is damaged: its checksum is another; delete it to start anew.")
    return tensors, json.loads(about)


def _checksum(tensors):
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].cpu().reshape(-1).view(torch.uint8).numpy(), total)
    return str(total)


def read_json(path):
    """What `write_json` wrote, a dict."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as problem:
        raise ValueError(f"{path} is not whole JSON ({problem}); delete it to start anew.") from problem
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__} where settings are needed; delete it to start anew.")
    return value


def kept(kind, key, make, device="cpu"):
    """What make() gives, tensors by name: read if it was made before with the same key, by this machine or for the kit.

    The `kind` is a folder in `runs()`, and in what comes with the kit. The key is all that decides the value, for JSON:
    what the simulations are (their fingerprints), what the marks are (their identities), the settings, and a version of
    the code that makes it.
    """
    key = json.loads(json.dumps(key))
    name = f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.safetensors"
    path = next((path for path in (runs() / kind / name, BUNDLED / kind / name) if path.exists()), None)
    if path is None:
        path = runs() / kind / name
        write_tensors(path, make(), key)
    tensors, about = read_tensors(path, device)
    if about != key:
        raise ValueError(f"{path} holds something else than its name says; delete it and run again.")
    return tensors


def lock(path):
    """An open file that holds the only right to write `path`; the system takes it back when this process ends."""
    with explain_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f".{path.name}.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read() or "another process"
        file.close()
        if isinstance(error, BlockingIOError):
            raise BlockingIOError(f"{path} is being written by {owner}; wait until it is done and run again.") from None
        words = (
            f"{path} cannot be locked ({error.strerror}); set NBKIT_RUNS to a folder on a file system that has locks"
        )
        raise OSError(error.errno, words) from error
    with suppress(OSError):  # who it is helps others only; lack of room is said where it matters
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
    return file


@contextmanager
def described(path):
    """One sentence with the name of a file in place of whatever its contents are unfit for."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as problem:
        words = f"{problem} is missing" if isinstance(problem, KeyError) else " ".join(str(problem).split())
        words = words.replace(".__init__()", ":")
        raise ValueError(f"{path} cannot be used: {words}") from problem


@contextmanager
def explain_full(path):
    """One sentence in place of a write to `path` that failed for lack of room, or of the right to write there."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # HDF5 tells the number of a failed write only in words.
        words = re.search(r"errno = (\d+)", str(error))
        number = getattr(error, "errno", None) or (int(words[1]) if words else None)
        if number not in FULL:
            raise
        place = next(folder for folder in Path(path).absolute().parents if folder.exists())
        free = f"{os.strerror(number)}; {shutil.disk_usage(place).free / 1e6:.1f} MB free"
        raise OSError(
            number,
            f"{path} could not be written ({free}); what was finished before is safe: make room and run again, or set "
            "NBKIT_RUNS to another place",
        ) from error
