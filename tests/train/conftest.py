"""One thread, caches of its own, short searches: small trainings are then the same to the last bit."""

import pytest
import torch
from training_process import shorten

from nbkit.train import search


@pytest.fixture(scope="package", autouse=True)
def short_and_alone(tmp_path_factory):
    threads, steps, scales = torch.get_num_threads(), search.InformationSearch.steps, search.SCALES
    torch.set_num_threads(1)
    shorten()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBKIT_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield
    search.InformationSearch.steps, search.SCALES = steps, scales
    torch.set_num_threads(threads)
