"""The entry point: light while nothing is asked, and loud about a misspelt word."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

from mla_contract.plugin import entry
from mla_contract.runtime.settings import MODE_VARIABLE

_PROBE = """
import sys
from mla_contract.plugin.entry import register
register()
register()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "vllm", "numpy", "pydantic", "jaxtyping"}))
print(sorted(name for name in sys.modules if name.startswith("mla_contract")))
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Load the plugin twice in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLA_CONTRACT")}
    command = [sys.executable, "-c", _PROBE]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=200, check=False)


def test_register_without_mode_imports_nothing() -> None:
    """With the variable unset the plugin loads itself and the packages above it, and nothing else."""
    done = run()
    heavy, own = done.stdout.splitlines()
    assert heavy == "[]"
    packages = ["mla_contract", "mla_contract.plugin"]
    assert own == str([*packages, "mla_contract.plugin.entry"])


def test_register_with_unknown_word_raises() -> None:
    """A misspelt mode stops the start with the known words."""
    done = run(MLA_CONTRACT_VALIDATE="wran")
    assert done.returncode == 1
    assert "unknown word 'wran'; known: warn, error" in done.stderr


def test_entry_point_is_installed_under_its_name() -> None:
    """The plugin is found by the engine, and its variable is the runtime's."""
    (found,) = entry_points(group="vllm.general_plugins", name="mla_contract")
    assert found.value == "mla_contract.plugin.entry:register"
    assert entry.MODE_VARIABLE == MODE_VARIABLE
