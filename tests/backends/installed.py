"""Packages that stand on the path as pip would have installed them: a module, and metadata with entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mla_contract.backends.entry_points import registrations
from mla_contract.backends.kernels import registry


def write_package(site: Path, distribution: str, source: str, entries: dict[str, dict[str, str]]) -> None:
    """Write a distribution of one module, which has the distribution's name, in a folder.

    Args:
        site: The folder.
        distribution: Name of distribution and module.
        source: The module.
        entries: Values of entry points by group and name; ``:attribute`` is one of the module.
    """
    (site / f"{distribution}.py").write_text(source, "utf-8")
    info = site / f"{distribution}-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n", "utf-8")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{name} = {distribution}{value}" for name, value in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")


@contextmanager
def on_path(site: Path) -> Iterator[None]:
    """Have the packages of a folder installed, with nothing known from before, and forget them afterwards."""
    kept = dict(registry._loaded)
    sys.path.insert(0, str(site))
    registrations.cache_clear()
    registry._loaded.clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        for file in site.glob("*.py"):
            sys.modules.pop(file.stem, None)
        registrations.cache_clear()
        registry._loaded.clear()
        registry._loaded.update(kept)
