"""Many independent calls of one function, spread over processes with Dask, their results handed back as they come."""

import logging
import os
import sys
from contextlib import contextmanager, nullcontext
from itertools import islice

import torch
from tqdm.auto import tqdm

from nbkit.mesh.threads import keep_freed

# Ctrl-C and a notebook's stop button reach every process; only the caller's has to answer.
DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"


def farm(function, calls, receive, batch=1, client=None, progress=True):
    """Call function(*arguments) for every {key: arguments} of `calls`; hand each batch {key: result} to `receive`.

    The results reach `receive` in this thread, in whatever order they are ready. A batch lost with its worker is made
    again. Only a few batches for each worker are under way at a time, so memory does not grow with `calls`.

    Parameters
    ----------
    function : picklable; runs in worker processes, with one torch thread each.
    batch : calls in one task: enough that a task takes about a second.
    client : a `dask.distributed.Client`; by default a cluster of this machine's cores that lives as long as the call.
    progress : show a bar with the time left, where a person is there to see it.
    """
    from distributed import KilledWorker, as_completed

    keys = list(calls)
    batches = (keys[i : i + batch] for i in range(0, len(keys), batch))
    bar = tqdm(total=len(keys), disable=not (progress and watched()), leave=False, smoothing=0.05, unit="field")
    with bar, _local_client(-(-len(keys) // batch)) if client is None else nullcontext(client) as client:
        ready, under_way = as_completed(loop=client.loop, with_results=True), {}

        def hand_out():
            # Asked anew each time: the workers of a batch system come and go.
            room = max(8, 3 * sum(client.nthreads().values())) - len(under_way)
            for some in islice(batches, max(room, 0)):
                arguments = [calls[key] for key in some]
                future = client.submit(_results, function, arguments, os.getpid(), pure=False)
                under_way[future] = some
                ready.add(future)

        try:
            hand_out()
            for future, results in ready:
                if future.cancelled():
                    raise RuntimeError("The Dask cluster went away; what was received is kept: run again to finish.")
                some = under_way.pop(future)
                hand_out()
                receive(dict(zip(some, results, strict=True)))
                bar.update(len(some))
        except KilledWorker as error:
            raise RuntimeError(
                "Workers died again and again at the same task, most likely for lack of memory; pass a client with "
                "fewer workers or more memory for each, and run again to finish."
            ) from error
        finally:
            client.cancel(list(under_way))


def watched():
    """True in a terminal or a live notebook; False in papermill, nbval, CI and pipes."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return sys.stderr.isatty()
    # A live notebook can always be asked for input; those who run one headless say that they cannot.
    return bool(getattr(kernel, "_allow_stdin", False))


def _results(function, arguments, home):
    # In the caller's own process (a client without worker processes) the number of threads is not ours to change.
    if os.getpid() != home:
        torch.set_num_threads(1)
        keep_freed()  # Dask asks its workers to hand every array back to the system
    return [function(*each) for each in arguments]


@contextmanager
def _local_client(tasks):
    """A client of as many processes as this machine has cores to give."""
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    # The scheduler always listens somewhere for its dashboard; a port of its own choice cannot be taken already.
    quiet = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}, "preload": [DEAF]}
    with (
        _script_not_run_by_workers(),
        LocalCluster(
            n_workers=min(CPU_COUNT, tasks),
            threads_per_worker=1,
            processes=True,
            silence_logs=logging.CRITICAL,
            **quiet,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def _script_not_run_by_workers():
    """New processes import the caller's script, which would run it again unless it is guarded; spare them that."""
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update({"__spec__": None, **hidden})
