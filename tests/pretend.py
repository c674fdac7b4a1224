"""A GPU that is not there: tensors that say they are on "cuda", hold their numbers on the CPU, and refuse to be mixed.

Unlike those of `torch._subclasses.FakeTensorMode` (which cannot run backward without a CUDA build) they have values, so
that whole trainings run on them and can be compared. With shapes alone, `pretend(values=False)`, large steps are
counted at once.
"""

import gc
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CUDA, META = torch.device("cuda", 0), torch.device("meta")
ATEN, MEMORY = torch.ops.aten, 80 * 2**30
# What waits for the GPU: a number or a shape that Python needs to know.
WAITING = {ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.masked_select.default, ATEN.equal.default}


# What is lazy on a tensor that C++ knows is done at once here.
EAGER = {ATEN._conj.default: ATEN.conj_physical.default, ATEN._neg_view.default: ATEN.neg.default}
# Positions may lie on the CPU.
INDEXING = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default}


class OnGPU(torch.Tensor):
    """To C++ a tensor without values, to Python one on a GPU; `inner` has the values."""

    device, is_cuda, is_meta = property(lambda self: CUDA), property(lambda self: True), property(lambda self: False)

    @staticmethod
    def __new__(cls, inner):
        empty = torch.empty_strided(inner.shape, inner.stride(), dtype=inner.dtype, device=META)
        return torch.Tensor._make_subclass(cls, empty)

    def __init__(self, inner):
        self.inner = inner

    def tolist(self):
        return self.cpu().tolist()

    def __getitem__(self, where):
        return super().__getitem__(torch.tensor(where) if isinstance(where, list) else where)

    def new_tensor(self, values):
        return torch.tensor(values, dtype=self.dtype, device=CUDA)

    def __repr__(self):
        return f"OnGPU({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise RuntimeError(f"{function} outside pretend().")


class Machine(TorchDispatchMode):
    """Runs every operation where its tensors are; counts operations and waits of the GPU."""

    def __init__(self, values):
        super().__init__()
        self.values, self.counts = values, Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = {name: x for name, x in (options or {}).items() if name != "pin_memory"}
        tensors = [x for x in tree_flatten((arguments, options))[0] if isinstance(x, torch.Tensor)]
        here = [x for x in tensors if isinstance(x, OnGPU)]
        device = options.get("device")
        there = bool(here) if device is None else torch.device(device).type in ("cuda", "meta")
        if not here and not there:
            return function(*arguments, **options)
        moved = function in (ATEN._to_copy.default, ATEN.copy_.default)
        strange = [x for x in tensors if not isinstance(x, OnGPU) and x.dim() > 0]
        indexed = function in (
            ATEN.index.Tensor,
            ATEN.index_put.default,
            ATEN.index_put_.default,
            ATEN._index_put_impl_.default,
        )
        if here and strange and not moved and not (indexed and isinstance(arguments[0], OnGPU)):
            raise RuntimeError(f"{function} of tensors on cuda:0 and on cpu.")
        self.counts["operations"] += 1
        by_flags = indexed and any(x.dtype == torch.bool for x in here[1:])
        leaves = moved and (not there or (function is ATEN.copy_.default and not isinstance(arguments[0], OnGPU)))
        waits = function in WAITING or by_flags or leaves
        self.counts["waits"] += waits
        if waits and not self.values:  # a number, or a copy of so many
            return torch.ones(here[0].shape, dtype=here[0].dtype) if leaves else 1
        arguments_there, options_there = tree_map_only(OnGPU, lambda x: x.inner, (arguments, options))
        if device is not None:
            options_there["device"] = "meta" if there and not self.values else "cpu"
        result = EAGER.get(function, function)(*arguments_there, **options_there)
        if function._schema.is_mutable and isinstance(arguments[0], torch.Tensor):
            return arguments[0]
        return tree_map_only(torch.Tensor, OnGPU, result) if there else result


@contextmanager
def pretend(values=True):
    """A machine with one GPU; gives its counts of "operations" and "waits"."""
    machine = Machine(values)
    there = {"is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda device: None}
    there |= {"_lazy_init": lambda: None, "mem_get_info": lambda device=None: (MEMORY, MEMORY)}
    there |= {"get_device_properties": lambda device=None: SimpleNamespace(total_memory=MEMORY)}
    lift = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        pinned = patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor)
        with patch.multiple(torch.cuda, **there), pinned, machine:
            yield machine.counts
    finally:
        torch._C._set_only_lift_cpu_tensors(lift)


def held():
    """Bytes of all tensors on the machine."""
    storages = (x.inner.untyped_storage() for x in gc.get_objects() if type(x) is OnGPU)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
