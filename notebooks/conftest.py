"""What `pytest --nbval` needs: the kernel of this environment, and only the numbered notebooks of the kit."""

import json


def pytest_configure(config):
    # The stored kernel name could resolve to another environment's kernel; the tests must run in this one.
    if hasattr(config.option, "nbval_current_env"):
        config.option.nbval_current_env = True


def pytest_ignore_collect(collection_path, config):
    """Leave out papermill outputs, whatever they are called."""
    if collection_path.suffix != ".ipynb":
        return None
    numbered = collection_path.name[:2].isdigit() and collection_path.name[2] == "_"
    made_by_papermill = "papermill" in json.loads(collection_path.read_text(encoding="utf-8"))["metadata"]
    return True if made_by_papermill or not numbered else None
