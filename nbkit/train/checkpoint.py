"""Weights, optimiser state and progress on disk: one safetensors file with JSON in its header, replaced atomically."""

import torch


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
