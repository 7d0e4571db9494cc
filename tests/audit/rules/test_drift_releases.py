"""The DRIFT and TYPING rules on real releases: what was read in the sources is found, and nothing else is."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import (
    dead_field,
    defaulted_read,
    dropped_field,
    foreign_store,
    ignored_attr_error,
    private_copy,
    untyped_getter,
)
from mla_contract.audit.source.tree import SourceFile, SourceTree, open_tree, overlay
from mla_contract.audit.source.walk import source_digest

pytestmark = pytest.mark.slow

LAYER = "vllm/model_executor/layers/attention/mla_attention.py"
AMX = "vllm/v1/attention/backends/mla/amx_mla.py"
UTILS = "vllm/v1/attention/backends/utils.py"

Run = Callable[[str, Rule], list[Finding]]


@pytest.fixture(scope="module")
def run(release_tree: Callable[[str], Path]) -> Iterator[Run]:
    """Return a function from a version and a rule to its findings; one release is held at a time."""
    held: dict[str, Project] = {}

    def findings(version: str, rule: Rule) -> list[Finding]:
        if version not in held:
            held.clear()
            held[version] = open_project(open_tree(release_tree(version)), release=version)
        gc.disable()
        try:
            return sorted(rule.check(held[version]), key=Finding.sort_key)
        finally:
            gc.enable()

    yield findings
    held.clear()


def subjects(findings: list[Finding]) -> set[str]:
    """Return ``Class.field`` of findings."""
    return {f"{(f.cls or '').rpartition('.')[2]}.{f.field}" for f in findings}


def test_dead_field_0_33_finds_what_nothing_reads(run: Run) -> None:
    """Four fields of the FP8 records and decode_max_query_len; not the field that only untyped code reads."""
    assert subjects(run("0.33.0", dead_field.RULE)) == {
        "SparseMLACommonMetadata.decode_max_query_len",
        "Decode.seq_lens",
        "Decode.decode_query_len",
        "Chunk.seq_lens",
        "FP8SeparatePrefillDecode.num_prefills",
    }


def test_foreign_store_0_33_finds_undeclared_attributes(run: Run) -> None:
    """Four attributes on a decode and six on a prefill record, and those of three wrappers."""
    found = run("0.33.0", foreign_store.RULE)
    amx = [f.cls or "" for f in found if f.path == AMX]
    assert sum(c.endswith("DecodeMetadata") for c in amx) == 4
    assert sum(c.endswith("PrefillMetadata") for c in amx) == 6
    others = {f.field for f in found if f.path != AMX}
    assert others == {
        "sliding_window",
        "num_actual_reqs",
        "query_start_loc_cpu",
        "step5_runtime",
        "_attention_backend_variant",
    }


def test_ignored_attr_error_0_33_finds_the_lines_of_the_layer(run: Run) -> None:
    """The five lines of the MLA layer that read metadata under such a comment, and no other line of it."""
    lines = [f.line for f in run("0.33.0", ignored_attr_error.RULE) if f.path == LAYER]
    assert lines == [1002, 1003, 1142, 1148, 1233]


def test_private_copy_0_33_finds_second_chunker_with_its_statements(run: Run) -> None:
    """The second chunker of that name is found, with statements that only it has."""
    (finding,) = run("0.33.0", private_copy.RULE)
    assert finding.path.endswith("mla/rocm_paged_mxfp4_indexer.py") and finding.field == "split_prefill_chunks"
    assert "only here: `(context_lens, query_lens, max_logits_bytes, request_offset=0)`, " in finding.message


def test_defaulted_read_0_33_informs_only(run: Run) -> None:
    """Every default on a metadata field is one that never applies, or one on an object without a type."""
    found = run("0.33.0", defaulted_read.RULE)
    assert {str(f.severity) for f in found} == {"info"}
    assert {(f.path.rpartition("/")[2], f.field) for f in found} == {
        ("mla_attention.py", "decode"),
        ("attention.py", "decode"),
        ("sparse_attn_indexer.py", "prefill.row_shard_sizes"),
        ("sparse_attn_indexer.py", "prefill"),
        ("sparse_attn_indexer.py", "use_dense_mha"),
        ("sparse_attn_indexer.py", "num_decode_tokens"),
    }


def test_untyped_getters_0_33_are_found(run: Run) -> None:
    """The context getter, the extension point as info, and one wrapper backend."""
    assert [f.severity for f in run("0.33.0", untyped_getter.CONTEXT_RULE)] == ["info"]
    found = run("0.33.0", untyped_getter.BUILDER_RULE)
    assert [(f.path, str(f.severity)) for f in found] == [
        ("vllm/v1/attention/backend.py", "info"),
        ("vllm/v1/attention/backends/composite.py", "warning"),
    ]


@pytest.mark.parametrize("version", ["0.33.0", "0.27.0", "0.26.0"])
def test_dropped_field_own_tree_has_none(run: Run, version: str) -> None:
    """A release reads no field that its own batch class lacks."""
    assert run(version, dropped_field.RULE) == []


def test_plugin_with_older_split_over_newer_release_is_found(release_tree: Callable[[str], Path]) -> None:
    """A plugin that froze the split of 0.25 and reads a dropped field is found over 0.33, with its release."""
    text = (release_tree("0.25.1") / UTILS).read_text()
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "split_decodes_and_prefills")
    source = (
        "import torch\nfrom vllm.v1.attention.backend import CommonAttentionMetadata\n\n\n"
        f"{ast.get_source_segment(text, node)}\n\n\n"
        "def lens(cm: CommonAttentionMetadata):\n    return cm.seq_lens_cpu\n"
    ).encode()
    files = {"plugin/utils.py": SourceFile("plugin/utils.py", source, source_digest(source))}
    tree = overlay(open_tree(release_tree("0.33.0")), SourceTree(Path("plugin"), files, "plugin"))
    project = open_project(tree, release="0.33.0")
    (copy,) = [f for f in private_copy.RULE.check(project) if f.path == "plugin/utils.py"]
    assert "the function of vLLM 0.24 to 0.25" in copy.message
    assert "only in the shared one: `" in copy.message and "treat_short_extends_as_decodes" in copy.message
    (read,) = list(dropped_field.RULE.check(project))
    assert (read.field, str(read.severity)) == ("seq_lens_cpu", "error")
    assert "the last release with it is vLLM 0.29" in read.message
