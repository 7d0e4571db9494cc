"""The first fault of the field: a record without ``num_decode_tokens`` shipped. Three checks refuse such a copy.

The copy is the text of our own record and of its base less one line; the whole text passes the same checks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from mla_contract import TIERS, members, write_seam
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.project import open_project
from mla_contract.audit.rules import missing_field, never_set
from mla_contract.audit.source.tree import open_plugin, open_tree, overlay
from mla_contract.backends.rocm_sparse import metadata as real
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse import metadata as base
from mla_contract.contract.violation import Violation
from mla_contract.runtime.check import check_metadata
from tests.backends.sparse.steps import SMALL, step_batch
from tests.contract.mypy_runs import ROOT, run_mypy

FIELD = "num_decode_tokens"
READER = "model_executor/layers/attention/mla_attention.py"
STUBS = ROOT / "tests" / "contract" / "stubs"
_TWICE = ("from __future__ import annotations\n", "from mla_contract.backends.sparse.metadata import SparseRecord\n")
_OWN = Path(str(real.__file__)).read_text()
SOURCE = Path(str(base.__file__)).read_text() + _OWN.replace(_TWICE[0], "").replace(_TWICE[1], "")
RELEASES = ("0.26.0", "0.32.0")
"""The release that shipped the fault, and the one whose planning the benchmarks compare with."""

PLUGIN = """
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MLAAttentionImpl,
)

from rocm_plugin.metadata import RocmSparseMetadata


class PluginBuilder(AttentionMetadataBuilder[RocmSparseMetadata]):
    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> RocmSparseMetadata:
        return RocmSparseMetadata(**self.fields_of(common_attn_metadata))


class PluginImpl(MLAAttentionImpl[RocmSparseMetadata]):
    is_sparse = True

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata: RocmSparseMetadata, layer):
        raise NotImplementedError


class PluginBackend(AttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "ROCM_PLUGIN"

    @staticmethod
    def get_impl_cls() -> type[PluginImpl]:
        return PluginImpl

    @staticmethod
    def get_builder_cls() -> type[PluginBuilder]:
        return PluginBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True
"""


def write_plugin(folder: Path, *, complete: bool) -> Path:
    """Write a package with the record, whole or without the field, and a backend that builds it."""
    package = folder / "rocm_plugin"
    package.mkdir()
    line = f"    {FIELD}: int\n"
    assert SOURCE.count(line) == 1
    (package / "__init__.py").write_text("")
    (package / "metadata.py").write_text(SOURCE if complete else SOURCE.replace(line, ""))
    (package / "backend.py").write_text(PLUGIN)
    return package


def mypy_errors(folder: Path, *, complete: bool) -> list[str]:
    """Return what mypy says of the record's claims and of a seam."""
    package = write_plugin(folder, complete=complete)
    seam = folder / "seam.py"
    seam.write_text(write_seam(["rocm_plugin.metadata:RocmSparseMetadata"], ["counts", "aiter-sparse"]))
    found, _ = run_mypy([package / "metadata.py", seam], cwd=folder, sources=(STUBS, ROOT, folder))
    return [one.text for one in found if one.kind == "error" and Path(one.path).name in ("metadata.py", "seam.py")]


def test_record_without_field_mypy_names_class_field_and_reader(tmp_path: Path) -> None:
    """The claim below the class fails by the Protocol of this one field, whose docstring names the reader."""
    texts = mypy_errors(tmp_path, complete=False)
    assert any('"counts"' in text and "RocmSparseMetadata" in text and "HasNumDecodeTokens" in text for text in texts)
    assert any(f'"RocmSparseMetadata" has no attribute "{FIELD}"' in text for text in texts)
    assert READER in members(TIERS["counts"])[FIELD].doc


def test_record_complete_mypy_is_silent(tmp_path: Path) -> None:
    """The record as it is passes its claims and the seam."""
    assert mypy_errors(tmp_path, complete=True) == []


def findings(version: str, tree: Path, folder: Path, *, complete: bool) -> list[Finding]:
    """Return the audit's errors about the plugin's record on a release."""
    plugin = open_plugin(write_plugin(folder, complete=complete))
    whole = overlay(open_tree(tree), plugin, open_plugin(ROOT / "mla_contract"))
    project = open_project(whole, release=version)
    found = [one for rule in (missing_field.RULE, never_set.RULE) for one in rule.check(project)]
    return [one for one in found if one.severity is Severity.ERROR and "rocm_plugin" in (one.cls or "")]


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_record_without_field_audit_names_class_field_and_reader(
    version: str, tmp_path: Path, release_tree: Callable[[str], Path]
) -> None:
    """Each line of the shared layer that reads the field of every record is told, and nothing else is."""
    found = findings(version, release_tree(version), tmp_path, complete=False)
    assert found
    for one in found:
        assert (one.code, one.cls, one.field) == ("REQ001", "rocm_plugin.metadata.RocmSparseMetadata", FIELD)
        assert one.path == f"vllm/{READER}" and one.line
        assert FIELD in one.message and "RocmSparseMetadata" in one.message


@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES[-1:])
def test_record_complete_audit_is_silent(version: str, tmp_path: Path, release_tree: Callable[[str], Path]) -> None:
    """The record as it is satisfies every unconditional reader of the release."""
    assert findings(version, release_tree(version), tmp_path, complete=True) == []


def validated(folder: Path, *, complete: bool) -> tuple[Violation, ...]:
    """Return what the validator says of a real builder's record, copied into the plugin's class."""
    path = write_plugin(folder, complete=complete) / "metadata.py"
    spec = spec_from_file_location(f"rocm_plugin_{complete}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    cls: Any = module.RocmSparseMetadata
    of = step_batch((1, 1, 9), (40, 50, 9))
    record = RocmSparseBuilder(SMALL).build(of)
    copy = cls(**{one.name: getattr(record, one.name) for one in fields(cls)})
    del sys.modules[spec.name]
    return check_metadata(copy, batch=of, facts=SMALL.facts)


def test_record_without_field_validator_names_class_field_and_reader(tmp_path: Path) -> None:
    """The validator tells class and field by the path; the contract's text of that field names the reader."""
    found = validated(tmp_path, complete=False)
    text = "\n".join(one.render() for one in found)
    assert f"RocmSparseMetadata.{FIELD}" in text
    assert READER in members(TIERS["counts"])[FIELD].doc


def test_record_complete_validator_is_silent(tmp_path: Path) -> None:
    """The record as it is has no breach."""
    assert validated(tmp_path, complete=True) == ()
