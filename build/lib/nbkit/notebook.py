"""What every notebook begins with: its parameters checked, the look of its figures.

Papermill only warns of a misspelled parameter, and passes a wrong value on; so the notebook itself must refuse them.
"""

import ast

from nbkit.disk import OneSentence
from nbkit.show import style
from nbkit.universe.suite import PRESETS

# How papermill begins the cell that it puts after the one tagged `parameters`.
INJECTED = "# Parameters"
TYPES = {"bool": bool, "int": int, "float": float, "str": str}
# Rules of the parameters that many notebooks have.
USUAL = {"preset": tuple(PRESETS), "seed": (0.0, 2.0**31)}


class WrongParameter(OneSentence, ValueError):
    """A parameter of a notebook that is unknown or has an impossible value."""


def notebook(namespace, **allowed):
    """Refuse parameters that are unknown or have an impossible value, and set the look of the figures.

    Parameters
    ----------
    namespace : `globals()` of the notebook; its parameters are what the cell with annotations assigns.
    allowed : by name, the values a parameter may have; of numbers, two floats are the ends of a range. All others may
        have any value of the type they are annotated with.
    """
    cells = [_body(cell) for cell in namespace["In"]]
    annotated = next(filter(None, ([node for node in body if isinstance(node, ast.AnnAssign)] for body in cells)), [])
    types = {node.target.id: TYPES[node.annotation.id] for node in annotated}
    injected = [cell for cell in namespace["In"] if cell.lstrip().startswith(INJECTED)]
    if unknown := [name for cell in injected for name in _assigned(cell) if name not in types]:
        raise WrongParameter(f"No such parameter: {', '.join(unknown)}; this notebook has {', '.join(types)}.")
    for name, kind in types.items():
        if problem := _problem(namespace[name], kind, allowed.get(name, USUAL.get(name))):
            raise WrongParameter(f"{name} is {namespace[name]!r}; {problem}.")
    style()


def _body(cell):
    try:
        return ast.parse(cell).body
    except SyntaxError:  # a magic, or a slip of whoever types: not the cell that is looked for
        return []


def _problem(value, kind, rule):
    """What is wrong with a value, or None."""
    right = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    is_range = rule is not None and len(rule) == 2 and all(isinstance(end, float) for end in rule)
    if is_range:
        return None if right and rule[0] <= value <= rule[1] else f"it must be a number {rule[0]:g} ... {rule[1]:g}"
    if rule is not None:
        return None if right and value in rule else f"allowed are {', '.join(map(repr, rule))}"
    return None if right else f"it must be of type {kind.__name__}"


def _assigned(cell):
    targets = [t for node in _body(cell) if isinstance(node, ast.Assign) for t in node.targets]
    return [t.id for t in targets if isinstance(t, ast.Name)]
