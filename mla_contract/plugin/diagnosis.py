"""What is installed here, what the validator would wrap, and which kernel providers can run; imports no vLLM."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from mla_contract.errors import InvalidContract
from mla_contract.profiles.installed import (
    BUILDER_METHODS,
    GROUP_METHODS,
    installed_release,
    nearest_profile,
    package_path,
)

PLUGIN_GROUP = "vllm.general_plugins"
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "triton": ("triton", "triton-rocm", "pytorch-triton-rocm", "triton-xpu", "triton-cpu"),
    "aiter": ("amd-aiter", "aiter"),
}
_ABSENT = "not installed"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found.

    Attributes:
        versions: Version of each package, or that it is not installed.
        profile: The profile in use, in words.
        plugin: Whether vLLM will find the plugin, in words.
        mode: What the environment asks for, in words.
        hooks: What would be wrapped.
        providers: For each operation and provider, a reason against it, or None when it can run.
        faults: What keeps the validator from working; empty when nothing does.
    """

    versions: dict[str, str]
    profile: str
    plugin: str
    mode: str
    hooks: tuple[str, ...]
    providers: dict[str, dict[str, str | None]]
    faults: tuple[str, ...] = field(default=())


def diagnose() -> Diagnosis:
    """Look at this environment; nothing is changed, and vLLM is not imported."""
    release, home = installed_release(), package_path("vllm")
    versions = {"vllm": release or _ABSENT} | {name: _version(name, names) for name, names in _DISTRIBUTIONS.items()}
    points = hooks_of(home) if home is not None else ()
    mode, fault = _mode()
    faults = [fault] if fault else []
    is_registered = bool(metadata.entry_points(group=PLUGIN_GROUP, name="mla_contract"))
    if not is_registered:
        faults.append("the entry point is not installed: run pip install again")
    if home is not None and not points:
        faults.append(f"vLLM {release} has none of the known hooks: the validator would see nothing")
    profile = "none: no vLLM"
    if release is not None:
        nearest = nearest_profile(release)
        profile = nearest.minor if nearest.is_exact else f"{nearest.minor}, the nearest to {release}"
    return Diagnosis(
        versions,
        profile,
        f"mla_contract in {PLUGIN_GROUP}" if is_registered else "missing",
        mode,
        points,
        provider_reasons(),
        tuple(faults),
    )


def hooks_of(home: Path) -> tuple[str, ...]:
    """Return what would be wrapped in an installed vLLM, by its source."""
    methods = _methods(home / "v1" / "worker" / "utils.py", "AttentionGroup")
    names = tuple(f"AttentionGroup.{name}" for name in GROUP_METHODS if name in methods)
    if names:
        return names
    for file in (home / "v1/attention/backend.py", home / "v1/attention/backends/utils.py"):
        methods = _methods(file, "AttentionMetadataBuilder")
        if methods:
            return tuple(f"{name} of every builder class" for name in BUILDER_METHODS if name in methods)
    return ()


def provider_reasons() -> dict[str, dict[str, str | None]]:
    """Return for a small example of each sparse operation what every provider says of it on this machine."""
    try:
        operations = _examples()
    except ImportError as error:
        return {"every operation": {"any provider": f"torch cannot be imported: {error}"}}
    from mla_contract.backends.kernels.registry import reasons

    return {type(one).__name__: reasons(one) for one in operations}


def _examples() -> Sequence[Any]:
    """Return small inputs on the device of this machine."""
    import torch

    from mla_contract.contract.schema.provider import IndexerCacheFormat, SparseAttention, WriteIndexerK

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16
    attention = SparseAttention(
        q=torch.zeros(1, 16, 576, dtype=dtype, device=device),
        kv_cache=torch.zeros(64, 576, dtype=dtype, device=device),
        kv_indptr=torch.tensor([0, 1], dtype=torch.int32, device=device),
        kv_indices=torch.zeros(1, dtype=torch.int32, device=device),
        out=torch.zeros(1, 16, 512, dtype=dtype, device=device),
        softmax_scale=1.0,
    )
    layout = IndexerCacheFormat(head_dim=128, fp8_dtype=torch.float8_e4m3fn)
    write = WriteIndexerK(
        k=torch.zeros(1, 128, dtype=dtype, device=device),
        slot_mapping=torch.zeros(1, dtype=torch.int64, device=device),
        cache=torch.zeros(1, 64, layout.width, dtype=torch.uint8, device=device),
        format=layout,
    )
    return attention, write


def _mode() -> tuple[str, str | None]:
    """Return what the environment asks for, and what is wrong with it."""
    try:
        from mla_contract.runtime.settings import MODE_VARIABLE, settings_from_environment

        settings = settings_from_environment()
    except InvalidContract as error:
        return "invalid", str(error)
    if not settings.mode.value:
        return f"off: {MODE_VARIABLE} is not set", None
    return f"{settings.mode.value}, level {settings.level.value}", None


def _version(name: str, distributions: Sequence[str]) -> str:
    """Return the version of a package, without importing it."""
    for one in distributions:
        try:
            return metadata.version(one)
        except metadata.PackageNotFoundError:
            continue
    return _ABSENT if package_path(name) is None else "version unknown"


def _methods(file: Path, class_name: str) -> frozenset[str]:
    """Return the methods that a class states in a source file; empty where there is no such file or class."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(
        member.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for member in node.body
        if isinstance(member, ast.FunctionDef)
    )


def render(found: Diagnosis) -> str:
    """Return a diagnosis as text."""
    rows = [(name, version) for name, version in found.versions.items()]
    rows += [("profile", found.profile), ("plugin", found.plugin), ("mode", found.mode)]
    rows += [("wraps", point) for point in found.hooks or ("nothing",)]
    lines = [f"{name:<10}{value}" for name, value in rows]
    lines += provider_lines(found.providers)
    lines += [f"FAULT     {fault}" for fault in found.faults]
    return "\n".join(lines) + "\n"


def provider_lines(providers: dict[str, dict[str, str | None]]) -> list[str]:
    """Return what each provider says of each operation, a line each."""
    lines = []
    for operation, reasons in providers.items():
        lines.append(f"providers of {operation}")
        lines += [f"  {name:<10}{'can run' if reason is None else reason}" for name, reason in reasons.items()]
    return lines
