"""The places through which every build goes: one per line of releases.

Since 0.32 a method of ``AttentionGroup`` calls the builder, whoever wrote it. Before, ``build`` of every builder class
is wrapped: of those that exist, of those that are defined later, and of those that a group creates.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import Any

from mla_contract.plugin.monitor import Monitor, Origin
from mla_contract.profiles.installed import BUILDER_METHODS, GROUP_METHODS

_CAPTURE = "cudagraph_capture"
_MARK = "__mla_contract_wrapped__"
_GROUP_HOMES = ("vllm.v1.worker.utils",)
_BUILDER_HOMES = ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils")

_inside: ContextVar[bool] = ContextVar("mla_contract_inside_build", default=False)
_given: ContextVar[Any] = ContextVar("mla_contract_given", default=None)
"""The batch of the group's build that is running, and then what the group made of it for the builder."""


def group_class() -> Any:
    """Return vLLM's AttentionGroup, or None when this release has none."""
    return _first(_GROUP_HOMES, "AttentionGroup")


def builder_class() -> Any:
    """Return vLLM's AttentionMetadataBuilder, or None."""
    return _first(_BUILDER_HOMES, "AttentionMetadataBuilder")


def install_hooks(monitor: Monitor) -> tuple[str, ...]:
    """Wrap the hooks of the installed release, each at most once, and return their names."""
    group, wrapped = group_class(), []
    if group is not None and hasattr(group, "create_metadata_builders"):
        _replace(group, "create_metadata_builders", partial(_remembering, monitor))
    names = [name for name in GROUP_METHODS if hasattr(group, name)]
    for name in names:
        _replace(group, name, partial(_checked_group, monitor, _CAPTURE in name))
        wrapped.append(f"AttentionGroup.{name}")
    if names:
        if hasattr(group, "_with_kernel_block_table"):
            _replace(group, "_with_kernel_block_table", _keeping)
        return tuple(wrapped)
    base = builder_class()
    if base is None:
        return ()
    for cls in (base, *_subclasses(base)):
        wrap_builder(cls, monitor)
    _wrap_later(base, monitor)
    return tuple(f"AttentionMetadataBuilder.{name} of every builder" for name in BUILDER_METHODS)


def wrap_builder(cls: Any, monitor: Monitor) -> None:
    """Wrap the build methods that a builder class states itself."""
    for name in BUILDER_METHODS:
        if callable(vars(cls).get(name)):
            _replace(cls, name, partial(_checked_builder, monitor, _CAPTURE in name))


def _checked_group(monitor: Monitor, capturing: bool, build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a group's method whose results are looked at."""

    @wraps(build)
    def checked(self: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        token = _given.set([common_attn_metadata])
        try:
            result = build(self, common_attn_metadata, *args, **kwargs)
            given = _given.get()
        finally:
            _given.reset(token)

        def seen() -> tuple[Any, Any]:
            index = kwargs.get("ubatch_idx", args[0] if args else 0) if "drafting" not in build.__name__ else 0
            return self.metadata_builders[index], given[-1]

        monitor.look_at(seen, result, capturing=capturing)
        return result

    return checked


def _keeping(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return a group's method that makes the batch which the builder gets, and keeps it for the check of this build.

    It writes a persistent buffer, so that it must not be called again to learn what it returned.
    """

    @wraps(convert)
    def converting(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = convert(self, *args, **kwargs)
        given = _given.get()
        if given is not None:
            given.append(made)
        return made

    return converting


def _checked_builder(monitor: Monitor, capturing: bool, build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builder's method whose results are looked at, once for a chain of ``super()`` calls."""

    @wraps(build)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return build(self, *args, **kwargs)
        token = _inside.set(True)
        try:
            result = build(self, *args, **kwargs)
        finally:
            _inside.reset(token)

        def seen() -> tuple[Any, Any]:
            values = (*args, *kwargs.values())
            return self, next((value for value in values if hasattr(value, "query_start_loc_cpu")), None)

        monitor.look_at(seen, result, capturing=capturing)
        return result

    return checked


def _remembering(monitor: Monitor, create: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``create_metadata_builders`` that tells where its builders come from, and wraps foreign ones."""

    @wraps(create)
    def creating(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        made = create(self, vllm_config, *args, **kwargs)

        def remember() -> None:
            packed = getattr(self, "kernel_block_size", None) is not None
            origin = Origin(self.backend, self.kv_cache_spec, vllm_config, packed)
            for builder in self.metadata_builders:
                monitor.remember(builder, origin)
                if not hasattr(type(self), GROUP_METHODS[0]):
                    for cls in type(builder).__mro__[:-1]:
                        wrap_builder(cls, monitor)

        monitor.guarded(remember)
        return made

    return creating


def _wrap_later(base: Any, monitor: Monitor) -> None:
    """Wrap every builder class that is defined from now on."""
    before = base.__init_subclass__.__func__ if "__init_subclass__" in vars(base) else None
    if getattr(before, _MARK, False):
        return

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        if before is not None:
            before(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        wrap_builder(cls, monitor)

    setattr(init_subclass, _MARK, True)
    base.__init_subclass__ = classmethod(init_subclass)


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method by a wrapped one, unless it is wrapped already."""
    method = getattr(owner, name)
    if not getattr(method, _MARK, False):
        replacement = wrap(method)
        setattr(replacement, _MARK, True)
        setattr(owner, name, replacement)


def _subclasses(base: Any) -> list[Any]:
    """Return every class below a class, each once."""
    found: dict[Any, None] = {}
    for cls in base.__subclasses__():
        found.update(dict.fromkeys([cls, *_subclasses(cls)]))
    return list(found)


def _first(homes: tuple[str, ...], name: str) -> Any:
    """Return the first class of this name, or None."""
    for home in homes:
        try:
            found = getattr(import_module(home), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None
