"""Weights, optimiser state and progress on disk: one safetensors file with JSON in its header, replaced atomically."""

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save


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


def optimizer_tensors(optimizer, names):
    """State of an AdamW as tensors by name; `names` gives each parameter's, in the order of the groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in zip(names, parameters, strict=True)
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(optimizer, names, tensors):
    """Put the state of `optimizer_tensors` back."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        prefix = f"optimizer.{name}."
        state = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
        if state:
            # AdamW keeps its step count on the CPU unless it is fused.
            optimizer.state[parameter] = {
                key: value if key == "step" and not optimizer.defaults["fused"] else value.to(parameter.device)
                for key, value in state.items()
            }


def weights(module, prefix):
    """State of a module as tensors by name, each with `prefix` before it."""
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}


def restore_weights(module, prefix, tensors):
    """Load what `weights` gave; every tensor must be there and fit."""
    start = len(prefix) + 1
    with torch.no_grad():
        module.load_state_dict({k[start:]: v for k, v in tensors.items() if k.startswith(f"{prefix}.")})
