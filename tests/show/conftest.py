"""What JavaScript's registry has for the tests of pictures, kept in runs/npm."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("requirejs@2", "@jupyter-widgets/html-manager@1", "prettier@3", "eslint@9", "@eslint/js@9", "globals@16")
ESLINT = """import js from "@eslint/js";
import globals from "globals";
export default [js.configs.recommended, { languageOptions: { globals: globals.browser } }];
"""


@pytest.fixture(scope="session")
def node_modules():
    """The folder node_modules with html-manager, require.js, prettier and eslint in it."""
    folder, npm = ROOT / "runs" / "npm", shutil.which("npm")
    done = folder / "installed"
    if not done.exists():
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES]
        if npm is None or subprocess.run(command, capture_output=True, timeout=300).returncode:
            pytest.skip("npm is not installed, or its registry could not be asked.")
        (folder / "eslint.config.mjs").write_text(ESLINT)
        done.touch()
    return folder / "node_modules"
