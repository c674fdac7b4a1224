"""Parameters of a notebook: papermill only warns of a misspelled one, so the notebook itself must refuse it."""

import ast

# How papermill begins the cell that it puts after the one tagged `parameters`.
INJECTED = "# Parameters"


def check_parameters(namespace, **allowed):
    """Raise if papermill set a name that is not a parameter, or if a parameter has a value that is not allowed.

    Parameters
    ----------
    namespace : `globals()` of the notebook.
    allowed : for each parameter a tuple of the values it may have, or a type, or a (low, high) `range_of` numbers.
    """
    listed = ", ".join(allowed)
    for cell in namespace.get("In", []):
        if cell.lstrip().startswith(INJECTED):
            unknown = [name for name in _assigned(cell) if name not in allowed]
            if unknown:
                raise ValueError(f"No such parameter: {', '.join(unknown)}; this notebook has {listed}.")
    for name, rule in allowed.items():
        if name not in namespace:
            raise ValueError(f"The parameter {name} is missing; this notebook has {listed}.")
        problem = _problem(namespace[name], rule)
        if problem:
            raise ValueError(f"{name} is {namespace[name]!r}; {problem}.")


class range_of:
    """Numbers from low to high, both included."""

    def __init__(self, low, high):
        self.low, self.high = low, high


def _problem(value, rule):
    if isinstance(rule, tuple):
        same = any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in rule)
        return None if same else f"allowed are {', '.join(map(repr, rule))}"
    if isinstance(rule, range_of):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return None if number and rule.low <= value <= rule.high else f"it must be a number {rule.low} ... {rule.high}"
    right = isinstance(value, rule) and isinstance(value, bool) == (rule is bool)
    return None if right else f"it must be of type {rule.__name__}"


def _assigned(source):
    targets = [t for node in ast.parse(source).body if isinstance(node, ast.Assign) for t in node.targets]
    return [t.id for t in targets if isinstance(t, ast.Name)]
