"""An audited tree with everything the rules ask of it, computed once and when first needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from mla_contract.audit.flow.consumers import run_consumers
from mla_contract.audit.flow.events import Events, Read, Store
from mla_contract.audit.flow.runs import (
    BuilderRun,
    batch_class,
    find_entries,
    run_builder,
    run_layer,
    unguarded_first,
)
from mla_contract.audit.model.backends import Backend, find_backends
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import ModuleIndex
from mla_contract.audit.source.tree import SourceTree
from mla_contract.contract.schema.layer_records import layer_kind


class Project:
    """One tree under audit.

    Attributes:
        tree: The sources.
        release: vLLM release of the tree, None where it does not say.
        aiter: Checkout or installed package of aiter to bind calls against, if any.
        index: The modules of the tree.
    """

    def __init__(self, tree: SourceTree, release: str | None = None, aiter: Path | None = None) -> None:
        """Wrap a tree; nothing is parsed yet."""
        self.tree = tree
        self.release = release
        self.aiter = aiter
        self.index = ModuleIndex(tree)

    @cached_property
    def backends(self) -> tuple[Backend, ...]:
        """Return every backend with metadata in the tree."""
        return find_backends(self.index)

    @cached_property
    def mla_backends(self) -> tuple[Backend, ...]:
        """Return the backends that the shared MLA layer can run."""
        return tuple(b for b in self.backends if b.is_mla and b.impl is not None)

    @cached_property
    def indexer_backends(self) -> tuple[Backend, ...]:
        """Return the backends of indexer caches."""
        return tuple(b for b in self.backends if b.is_indexer)

    @cached_property
    def batch_class(self) -> ClassInfo | None:
        """Return the class of a builder's input batch."""
        return batch_class(self.index)

    @cached_property
    def builders(self) -> dict[Backend, BuilderRun]:
        """Return the builder run of every MLA and indexer backend."""
        batch = self.batch_class
        return {b: run_builder(self.index, b, batch) for b in (*self.mla_backends, *self.indexer_backends)}

    @cached_property
    def layers(self) -> dict[Backend, Events]:
        """Return what the shared layer does with every MLA backend."""
        entries = find_entries(self.index)
        return {b: run_layer(self.index, b, self.builders[b], entries) for b in self.mla_backends}

    @cached_property
    def consumers(self) -> Events:
        """Return what functions do that take MLA or indexer metadata by annotation or test."""
        return run_consumers(self.index, self.metadata_classes)

    @cached_property
    def layer_records(self) -> dict[ClassInfo, str]:
        """Return the metadata classes that only layers of their own read, each with its kind of record."""
        shared = {cls for backend in self.mla_backends for cls in backend.metadata.cls.mro}
        found: dict[ClassInfo, str] = {}
        for backend in self.backends:
            cls = backend.metadata.cls
            kind = layer_kind(cls.fields.__contains__)
            if backend.impl is None and not backend.is_indexer and cls not in shared and kind is not None:
                found |= dict.fromkeys((one for one in cls.mro if one.own_fields and one not in shared), kind)
        return found

    @cached_property
    def layer_consumers(self) -> Events:
        """Return what functions do with metadata that only layers of their own read."""
        return run_consumers(self.index, tuple(self.layer_records))

    @cached_property
    def metadata_classes(self) -> tuple[ClassInfo, ...]:
        """Return the metadata classes of MLA and indexer backends, and the classes of their parts."""
        roots = dict.fromkeys(b.metadata.cls for b in (*self.mla_backends, *self.indexer_backends))
        parts = dict.fromkeys(c.cls for run in self.builders.values() for c in run.events.constructs)
        return tuple(dict.fromkeys([*roots, *parts]))

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Return every attribute set on metadata from outside its class, in builders and in the layer."""
        found = [s for run in self.builders.values() for s in run.events.stores]
        found += [s for events in self.layers.values() for s in events.stores]
        found += self.consumers.stores
        return tuple({(s.cls, s.attr, s.node): s for s in found}.values())

    @cached_property
    def dynamic(self) -> frozenset[tuple[ClassInfo, str]]:
        """Return the attributes that code outside a class sets on its instances."""
        return frozenset((s.cls, s.attr) for s in self.stores)

    def layer_reads(self, backend: Backend) -> list[Read]:
        """Return the reads that the shared layer, the impl and the builder make of a backend's metadata.

        One per place; of several ways there, the one with the fewest capabilities in its way.
        """
        reads = [*self.layers[backend].reads, *self.builders[backend].events.reads]
        return unguarded_first([r for r in reads if not r.batch])

    def is_missing(self, read: Read) -> bool:
        """Return whether a read finds no attribute: none declared, none set from outside, no default in the read."""
        if not read.missing or read.defaulted:
            return False
        return not any((cls, read.attr) in self.dynamic for cls in read.holder.mro)

    def missing_reads(self) -> Iterator[tuple[Backend, Read]]:
        """Yield the reads that find no attribute, each with a backend that makes them."""
        for backend in self.mla_backends:
            for read in self.layer_reads(backend):
                if self.is_missing(read):
                    yield backend, read


def open_project(tree: SourceTree, release: str | None = None, aiter: Path | None = None) -> Project:
    """Return the project of a tree."""
    return Project(tree, release, aiter)
