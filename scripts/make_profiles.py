"""Write the profiles that ship in the package: the last release of each vLLM minor.

Usage: python scripts/make_profiles.py [MINOR ...]
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from mla_contract.audit.profile import profile_tree, render_profile
from mla_contract.audit.project import open_project
from mla_contract.audit.source.acquire import fetch_release
from mla_contract.audit.source.tree import open_tree
from mla_contract.profiles import PARTS

LAST_RELEASES = {
    "0.24": "0.24.0",
    "0.25": "0.25.1",
    "0.26": "0.26.0",
    "0.27": "0.27.1",
    "0.28": "0.28.0",
    "0.29": "0.29.0",
    "0.30": "0.30.0",
    "0.31": "0.31.0",
    "0.32": "0.32.0",
    "0.33": "0.33.0",
}
TARGET = Path(__file__).resolve().parent.parent / "mla_contract" / "profiles"


def main(minors: list[str]) -> None:
    """Write the profile of each minor release named, or of all."""
    gc.disable()
    for minor in minors or LAST_RELEASES:
        release = LAST_RELEASES[minor]
        project = open_project(open_tree(fetch_release(release)), release=release)
        for path in write_profile(profile_tree(project), minor, TARGET):
            print(f"{path.relative_to(TARGET)}: {path.stat().st_size} bytes")


def write_profile(profile: dict[str, Any], minor: str, target: Path) -> list[Path]:
    """Write each part of a profile to its directory below a target, and return the files."""
    written = []
    for part, keys in PARTS.items():
        path = target / part / f"vllm-{minor}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(render_profile({key: profile[key] for key in ("schema", "release", *keys)}), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    main(sys.argv[1:])
