"""The command ``profile``, and the profiles that other commands take by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mla_contract.cli.shared import (
    InstalledOption,
    OutputOption,
    PathArgument,
    ReleaseOption,
    download_progress,
    reported_errors,
    write_result,
)

if TYPE_CHECKING:
    from mla_contract.audit.run import AuditOptions


def profile(
    path: PathArgument = None,
    release: ReleaseOption = None,
    installed: InstalledOption = False,
    output: OutputOption = None,
) -> None:
    """Extract what the shared layer of a tree reads, and what its backends declare, as JSON."""
    with reported_errors():
        from mla_contract.audit.profile import render_profile
        from mla_contract.audit.run import AuditOptions

        document = _profile_of(AuditOptions(path=path, release=release, installed=installed))
        write_result(render_profile(document), output)


def _profile_of(options: AuditOptions) -> dict[str, Any]:
    from mla_contract.audit.profile import profile_tree
    from mla_contract.audit.project import open_project
    from mla_contract.audit.run import open_source
    from mla_contract.audit.source.acquire import release_of

    with download_progress(options) as progress:
        tree = open_source(options, progress=progress)
    project = open_project(tree, release=release_of(tree) or options.release, aiter=None)
    document: dict[str, Any] = profile_tree(project)
    return document


def profile_named(name: str) -> dict[str, Any]:
    """Return a shipped profile, the profile in a file, or that of a release or a tree."""
    import json

    from mla_contract.audit.profile import SCHEMA
    from mla_contract.audit.run import AuditOptions
    from mla_contract.audit.source import AuditError
    from mla_contract.profiles import known_minors, load_profile

    path = Path(name)
    if not path.exists() and name[:1].isdigit():
        return load_profile(name) if name in known_minors() else _profile_of(AuditOptions(release=name))
    if path.suffix != ".json":
        return _profile_of(AuditOptions(path=path))
    help_ = "write one with mla-contract profile TREE --output FILE"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AuditError(f"{path}: not a profile: {error}", help_) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise AuditError(f"{path}: not a profile", help_, expected=f"a JSON object with schema {SCHEMA}")
    return document
