"""Many independent calls of one function, spread over processes with Dask, their results handed back as they come."""

import logging
import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path

import torch
from tqdm.auto import tqdm

from nbkit.mesh.threads import keep_freed


def farm(function, calls, receive, batch=1, client=None, progress=True):
    """Call function(*arguments) for every {key: arguments} of `calls`; hand each batch {key: result} to `receive`.

    The results reach `receive` in this thread, in whatever order they are ready. A batch lost with its worker is made
    again. Only a few batches for each worker are under way at a time, so memory does not grow with `calls`.

    The function, picklable, runs in worker processes with one torch thread each; a `batch` of calls should take about a
    second. The `client` is a `dask.distributed.Client`, by default of a cluster of this machine's cores that lives as
    long as the call. `progress` shows a bar with the time left, where a person is there to see it.
    """
    from distributed import KilledWorker, as_completed

    keys = list(calls)
    batches = (keys[i : i + batch] for i in range(0, len(keys), batch))
    bar = tqdm(total=len(keys), disable=not (progress and is_watched()), leave=False, smoothing=0.05, unit="field")
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


def is_watched():
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
    """A client of as many processes as this machine has cores to give, as long as the block runs.

    Dask's own program starts them, not this process: its children would import the caller's script, which would run it
    again unless it is guarded.
    """
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    # The scheduler always listens somewhere for its dashboard; a port of its own choice cannot be taken already.
    quiet = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    # The processes find modules where this one does.
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    settings = {"PYTHONPATH": paths, "DASK_LOGGING__DISTRIBUTED": "critical"}
    with (
        LocalCluster(n_workers=0, silence_logs=logging.CRITICAL, **quiet) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        words = ["--nworkers", min(CPU_COUNT, tasks), "--nthreads", 1, "--no-dashboard", "--death-timeout", 60]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, *map(str, words)]
        # In a session of their own: Ctrl-C and a notebook's stop button are for the caller alone.
        with subprocess.Popen(command, env=os.environ | settings, start_new_session=True) as processes:
            try:
                while not client.nthreads():
                    if processes.poll() is not None:
                        raise RuntimeError("Worker processes could not be started; what they said stands above.")
                    time.sleep(0.02)
                yield client
            finally:
                processes.terminate()
