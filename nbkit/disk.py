"""Where things are kept, the one atomic write, the one cache."""

import hashlib
import json
import os
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save

_CHECKOUT = Path(__file__).resolve().parents[1]
# Marks, spectra and recoveries that come with the kit.
BUNDLED = Path(__file__).parent / "trained"


def runs():
    """Suites, checkpoints and papermill outputs: $NBKIT_RUNS, or `runs/` of the checkout, or ~/.cache/nbkit."""
    if "NBKIT_RUNS" in os.environ:
        return Path(os.environ["NBKIT_RUNS"]).expanduser()
    return _CHECKOUT / "runs" if (_CHECKOUT / "notebooks").is_dir() else Path.home() / ".cache" / "nbkit"


def figures():
    """Publication figures: `figures/` of the checkout, or of `runs()` when the kit is installed without one."""
    return _CHECKOUT / "figures" if (_CHECKOUT / "notebooks").is_dir() else runs() / "figures"


def write_atomically(path, data):
    """Replace `path` by these bytes so that a crash at any moment leaves the old file or the new one, whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    # The rename itself is only safe from a power cut once the folder is on disk.
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def write_json(path, value):
    """As `write_atomically`, for numbers, words, lists and dicts."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def write_tensors(path, tensors, about):
    """Tensors by name and a JSON-able description, in one file: they cannot fall out of step."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(tensors, metadata={"nbkit": json.dumps(about)}))


def read_tensors(path, device="cpu"):
    """(tensors by name, description) of a file of `write_tensors`."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            about = (file.metadata() or {}).get("nbkit")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no checkpoint {path}.") from None
    except Exception as problem:
        raise ValueError(f"{path} is not a whole safetensors file ({problem}); delete it to start anew.") from problem
    if about is None:
        raise ValueError(f"{path} is a safetensors file, but not a checkpoint of nbkit.")
    return tensors, json.loads(about)


def kept(kind, key, make, device="cpu"):
    """What make() gives, tensors by name: read if it was made before with the same key, by this machine or for the kit.

    Parameters
    ----------
    kind : folder in `runs()`, and in what comes with the kit.
    key : all that decides the value, for JSON: what the simulations are (their fingerprints), what the marks are (their
        identities), the settings, and a version of the code that makes it.
    make : called without arguments if there is nothing yet.
    device : where the tensors are wanted.
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
