"""A notebook refuses parameters it does not have and values they cannot take."""

import pytest

from nbkit.notebook import check_parameters, range_of

RULES = {"preset": ("demo", "mini"), "kmax": range_of(0.05, 0.4), "l_max": (0, 1, 2), "live": bool, "out": str}
GOOD = {"preset": "demo", "kmax": 0.3, "l_max": 2, "live": True, "out": ""}


def test_good_parameters_pass():
    check_parameters({"In": ["", "kmax = 0.3", "# Parameters\nkmax = 0.2\nl_max = 0\n"], **GOOD}, **RULES)


def test_misspelled_parameters_are_refused_with_the_list():
    cells = ["", "kmax = 0.3", "# Parameters\nkmaxx = 0.2\n", "anything = 3"]
    with pytest.raises(ValueError, match="No such parameter: kmaxx; this notebook has preset, kmax, l_max, live, out"):
        check_parameters({"In": cells, **GOOD}, **RULES)


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
    ],
)
def test_impossible_values_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        check_parameters({**GOOD, **change}, **RULES)
