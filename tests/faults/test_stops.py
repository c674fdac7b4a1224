"""Jobs that are killed, stopped, started twice or left without room: nothing is lost, and the end is the same bits."""

import re
import signal
from functools import cache

import pytest
from harness import JOBS, QUICK, TALLY, Attempts, N, write_data


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """{job: its Attempts}, each prepared once."""
    folder = tmp_path_factory.mktemp("faults")
    data = folder / "data"
    data.mkdir()
    write_data(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBKIT_FAULTS_DATA", str(data))
        yield cache(lambda job: Attempts(job, folder))


SIGNALS = [(signal.SIGKILL, job) for job in JOBS]
SIGNALS += [(each, job) for each in (signal.SIGTERM, signal.SIGINT) for job in (JOBS if N > 1 else JOBS[:1])]


@pytest.mark.parametrize(("number", "job"), SIGNALS, ids=lambda each: getattr(each, "__name__", None) or each.name)
def test_stopped_at_any_moment(number, job, attempts):
    """After the last signal, finishing gives what an undisturbed run gives, bit for bit."""
    tried = attempts(job)
    tried.root, stopped, runs = tried.fresh(), 0, 0
    while stopped < N:
        stopped, runs = stopped + tried.stop(number), runs + 1
        assert runs < 20 * N, f"{number.name} came in time in {stopped} of {runs} runs"
    tried.finish()
    TALLY[number.name, job.__name__] += stopped


@pytest.mark.parametrize("job", QUICK, ids=lambda job: job.__name__)
def test_no_room(job, attempts):
    """Files cannot grow beyond a size that differs from run to run; after room was made it goes on."""
    tried = attempts(job)
    tried.root, refused = tried.fresh(), 0
    while refused < N:
        child = tried.start(room=tried.random.randrange(100, tried.largest))
        if tried.check(child):
            tried.root = tried.fresh()
            continue
        words = tried.said()
        assert re.search(r"could not be written \(File too large; .* MB free\); .* make room", words), words
        assert "\n" not in words
        refused += 1
    tried.finish()
    TALLY["no room", job.__name__] += refused


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_two_at_once(job, attempts):
    """Both come to the right end, or one says who is at it."""
    tried = attempts(job)
    for _ in range(max(1, N // 5)):
        tried.root = tried.fresh()
        first, second = tried.start(), tried.start()
        ends = [tried.check(child) for child in (first, second)]
        assert any(ends), tried.said()
        assert all(ends) or re.search(r"is being written by process \d+ on .*; wait", tried.said()), tried.said()
        tried.finish()
        TALLY["two at once", job.__name__] += 1
