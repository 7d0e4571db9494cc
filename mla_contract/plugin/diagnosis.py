"""What is installed and registered, what the validator would wrap, and which providers can run; imports no vLLM."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

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
        registered: For backends and providers, by name, who registered each, and what it has or why it is unusable.
        providers: For each operation and provider, a reason against it, or None when it can run.
        faults: What keeps the validator from working; empty when nothing does.
    """

    versions: dict[str, str]
    profile: str
    plugin: str
    mode: str
    hooks: tuple[str, ...]
    registered: dict[str, dict[str, str]]
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
    registered = {"backends": registered_backends(), "providers": registered_providers()}
    faults += [
        f"no {group} are registered, not even those of this package: install it with pip"
        for group, found in registered.items()
        if not found
    ]
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
        registered,
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


def registered_backends() -> dict[str, str]:
    """Return for each registered backend who registered it, and what it has."""
    from mla_contract.backends.registry import GROUP, known_backends

    origins, found = _origins(GROUP), {}
    for name, backend in known_backends().items():
        if isinstance(backend, str):
            found[name] = f"{origins[name]}: UNUSABLE: {backend}"
            continue
        parts = {"class for the engine": backend.engine_class, "target for check": backend.target}
        found[name] = f"{origins[name]}: {', '.join(part for part, path in parts.items() if path) or 'nothing'}"
    return found


def registered_providers() -> dict[str, str]:
    """Return for each registered kernel provider, in the default order, who registered it."""
    from mla_contract.backends.kernels.registry import GROUP, known_providers, load_provider

    origins, found = _origins(GROUP), {}
    for name in known_providers():
        provider = load_provider(name)
        found[name] = f"{origins[name]}: UNUSABLE: {provider}" if isinstance(provider, str) else origins[name]
    return found


def _origins(group: str) -> dict[str, str]:
    """Return the distributions that registered each name of a group."""
    from mla_contract.backends.entry_points import registrations

    return {name: " and ".join(one.distribution for one in found) for name, found in registrations(group).items()}


def provider_reasons() -> dict[str, dict[str, str | None]]:
    """Return for the smallest inputs of each operation what every provider says of them on this machine."""
    try:
        import torch
    except ImportError as error:
        return {"every operation": {"any provider": f"torch cannot be imported: {error}"}}
    from mla_contract.backends.kernels.aiter.device import detect
    from mla_contract.backends.kernels.registry import reasons
    from mla_contract.backends.kernels.samples import sample_operations

    gpu = detect()
    fp8 = (None if isinstance(gpu, str) else gpu.fp8) or torch.float8_e4m3fn
    operations = sample_operations("cuda" if torch.cuda.is_available() else "cpu", fp8)
    return {type(one).__name__: reasons(one) for one in operations}


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
    for group, names in found.registered.items():
        lines.append(f"registered {group}")
        lines += [f"  {name:<16}{text}" for name, text in names.items()]
    lines += provider_lines(found.providers)
    lines += [f"FAULT     {fault}" for fault in found.faults]
    return "\n".join(lines) + "\n"


def provider_lines(providers: dict[str, dict[str, str | None]]) -> list[str]:
    """Return what each provider says of each operation, a line each."""
    lines = []
    for operation, reasons in providers.items():
        lines.append(f"providers of {operation}")
        lines += [f"  {name:<16}{'can run' if reason is None else reason}" for name, reason in reasons.items()]
    return lines
