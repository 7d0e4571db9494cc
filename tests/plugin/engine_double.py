"""Classes with the shapes of vLLM's, old and new, made anew for each test because the validator wraps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class MLAAttentionSpec:
    """The cache's spec; it is known by its name."""

    def __init__(self, block_size: int = 4) -> None:
        self.block_size = block_size


class OtherSpec:
    """The spec of a layer that is not MLA."""

    block_size = 4


class DenseBackend:
    """A dense MLA backend."""

    @classmethod
    def is_mla(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        """Return False."""
        return False


class SparseBackend(DenseBackend):
    """A sparse one."""

    @classmethod
    def is_sparse(cls) -> bool:
        """Return True."""
        return True


class PlainBackend:
    """Neither: an indexer's, or one of ordinary attention."""

    @classmethod
    def is_mla(cls) -> bool:
        """Return False."""
        return False


@dataclass
class Engine:
    """The two classes of one release line, and what a builder of the test returns."""

    group: Any
    builder: Any
    calls: list[str] = field(default_factory=list)


def old_engine() -> Engine:
    """Return classes as before 0.32: the runner calls the builder itself."""

    class AttentionMetadataBuilder:
        """The base of builders."""

        def __init__(self, spec: Any, result: Any = None) -> None:
            self.kv_cache_spec = spec
            self.result = result

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            """Return the result."""
            return self.result

        def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
            """Build through ``build``."""
            return self.build(0, common_attn_metadata)

        def build_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
            """Build through ``build``."""
            return self.build(0, common_attn_metadata, fast_build=True)

    @dataclass(eq=False)
    class AttentionGroup:
        """Creates builders."""

        backend: Any
        kv_cache_spec: Any
        builder_cls: Any = AttentionMetadataBuilder
        metadata_builders: list[Any] = field(default_factory=list)

        def create_metadata_builders(self, vllm_config: Any, device: Any = None) -> None:
            """Make one builder."""
            self.metadata_builders = [self.builder_cls(self.kv_cache_spec)]

        def get_metadata_builder(self, ubatch_id: int = 0) -> Any:
            """Return a builder."""
            return self.metadata_builders[ubatch_id]

    return Engine(AttentionGroup, AttentionMetadataBuilder)


def new_engine() -> Engine:
    """Return classes as since 0.32: every build goes through the group."""
    old = old_engine()

    class AttentionGroup(old.group):  # type: ignore[misc, name-defined]
        """Builds as well."""

        def build_metadata(self, common_attn_metadata: Any, ubatch_idx: int = 0, **kwargs: Any) -> Any:
            """Build."""
            return self.get_metadata_builder(ubatch_idx).build(0, common_attn_metadata, **kwargs)

        def build_metadata_for_cudagraph_capture(self, common_attn_metadata: Any, ubatch_idx: int = 0) -> Any:
            """Build for capture."""
            return self.get_metadata_builder(ubatch_idx).build_for_cudagraph_capture(common_attn_metadata)

        def build_metadata_for_drafting(self, common_attn_metadata: Any, draft_index: int) -> Any:
            """Build for drafting."""
            return self.get_metadata_builder().build_for_drafting(common_attn_metadata, draft_index)

    return Engine(AttentionGroup, old.builder)
