"""A notebook refuses parameters it does not have and values they cannot take."""

import matplotlib.pyplot as plt
import pytest

import nbkit as nb

CELL = "preset: str = 'demo'\nkmax: float = 0.3\nl_max: int = 2\nlive: bool = True\nout: str = ''\nseed: int = 0\n"
GOOD = {"preset": "demo", "kmax": 0.3, "l_max": 2, "live": True, "out": "", "seed": 0}
RULES = {"kmax": (0.05, 0.4), "l_max": (0, 1, 2)}


def begin(*cells, **changed):
    nb.notebook({"In": ["", "%matplotlib inline", "a slip (", CELL, *cells], **GOOD} | changed, **RULES)


def test_good_parameters_pass():
    begin("# Parameters\nkmax = 0.2\nl_max = 0\n", "await something", kmax=0.2, l_max=0)
    assert plt.rcParams["image.origin"] == "lower"


def test_a_whole_number_will_do_for_a_real_one():
    nb.notebook({"In": ["p: float = 1.0"], "p": 2})


def test_misspelled_parameters_are_refused_with_the_list():
    with pytest.raises(ValueError, match="No such parameter: kmaxx; this notebook has preset, kmax, l_max, live, out"):
        begin("# Parameters\nkmaxx = 0.2\n", "anything = 3")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"preset": "dmeo"}, "preset is 'dmeo'; allowed are 'demo', 'mini'"),
        ({"kmax": "0.3"}, "kmax is '0.3'; it must be a number 0.05 ... 0.4"),
        ({"kmax": 0.5}, "kmax is 0.5; it must be a number"),
        ({"kmax": float("nan")}, "kmax is nan; it must be a number"),
        ({"l_max": 3}, "l_max is 3; allowed are 0, 1, 2"),
        ({"l_max": True}, "l_max is True; allowed are 0, 1, 2"),
        ({"live": "true"}, "live is 'true'; it must be of type bool"),
        ({"out": 3}, "out is 3; it must be of type str"),
        ({"seed": -1}, "seed is -1; it must be a number 0"),
        ({"seed": 1.5}, "seed is 1.5; it must be a number 0"),
    ],
)
def test_impossible_values_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        begin(**change)
