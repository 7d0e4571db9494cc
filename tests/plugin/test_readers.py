"""Readers of fields by profile, and which profile is nearest."""

from __future__ import annotations

import pytest

from mla_contract.contract.violation import Violation
from mla_contract.plugin.readers import StepReads, name_readers, readers_of, without_unread
from mla_contract.plugin.records import RecordKind
from mla_contract.profiles.installed import nearest_profile

SHARED_IMPL = frozenset({"vllm.model_executor.layers.attention.sparse_mla_attention.SparseMLACommonImpl"})
MISSING = Violation("MLA101", "Lean.num_decode_tokens", "field is missing", help="declare it")


@pytest.mark.parametrize(
    ("release", "minor", "is_exact"),
    [
        ("0.32.0", "0.32", True),
        ("0.32.1+cpu", "0.32", True),
        ("0.31.2.dev4+g0123abc", "0.31", True),
        ("0.40.0", "0.33", False),
        ("0.11.0", "0.24", False),
        ("2026.1", "0.33", False),
        ("unknown", "0.33", False),
    ],
)
def test_nearest_profile_of_release_is_its_minor_or_the_closest(release: str, minor: str, is_exact: bool) -> None:
    """A known minor release is exact; others get the closest, and unreadable ones the newest."""
    found = nearest_profile(release)
    assert (found.minor, found.is_exact) == (minor, is_exact)


def test_name_readers_of_read_field_names_function_file_and_line() -> None:
    """The help names the shared layer's read of that release; a field that nobody reads keeps its help."""
    (named,) = name_readers([MISSING], RecordKind.DENSE, "0.32", has_prefills=True, dcp_size=1, impl=frozenset())
    assert named.help.startswith("read by MLAAttention.forward_impl, vllm/model_executor/layers/attention/")
    assert named.help.endswith(" of vLLM 0.32.0; declare it")
    other = Violation("MLA101", "Lean.nobody_reads_this", "field is missing", help="declare it")
    assert name_readers([other], RecordKind.DENSE, "0.32", has_prefills=True, dcp_size=1, impl=frozenset()) == (other,)


def test_name_readers_on_one_rank_names_none_that_needs_several() -> None:
    """What only context parallelism reads has no reader on one rank; with two it has, and another reader is taken."""
    lens = Violation("MLA333", "Lean.decode.seq_lens", "not the row's cache length", help="write every row")
    one: StepReads = {"has_prefills": True, "dcp_size": 1, "impl": frozenset()}
    assert name_readers([lens], RecordKind.DENSE, "0.32", **one) == (lens,)
    (named,) = name_readers([lens], RecordKind.DENSE, "0.32", has_prefills=True, dcp_size=2, impl=frozenset())
    assert "where self.use_direct_call and self.impl.dcp_world_size > 1" in named.help
    chunk = Violation("MLA101", "Lean.prefill.prefill_backend.run_prefill_context_chunk", "field is missing")
    shared = "vllm.model_executor.layers.attention.mla_attention.MLACommonBaseImpl"
    (alone,) = name_readers([chunk], RecordKind.DENSE, "0.32", has_prefills=True, dcp_size=1, impl=frozenset({shared}))
    assert "_compute_prefill_context" in alone.help and "dcp" not in alone.help


def test_without_unread_of_old_release_drops_what_came_later() -> None:
    """A sparse class of 0.24 does not owe the counts that later releases read; one of 0.32 does."""
    assert ("sparse", "num_decode_tokens") not in readers_of("0.24")
    assert without_unread([MISSING], RecordKind.SPARSE, "0.24", has_prefills=True, dcp_size=1, impl=frozenset()) == ()
    assert without_unread([MISSING], RecordKind.SPARSE, "0.32", has_prefills=True, dcp_size=1, impl=frozenset()) == (
        MISSING,
    )


def test_without_unread_of_a_step_without_prefills_drops_what_only_prefills_read() -> None:
    """A record without prefills owes no prefill record, and under context parallelism alone a decode record."""
    prefill = Violation("MLA101", "Lean.prefill", "field is missing", help="declare it")
    decode = Violation("MLA101", "Lean.decode", "field is missing", help="declare it")
    for has_prefills, dcp_size, owed in ((False, 1, ()), (True, 1, (prefill,)), (False, 2, (decode,))):
        found = without_unread(
            [prefill, decode], RecordKind.SPARSE, "0.32", has_prefills=has_prefills, dcp_size=dcp_size, impl=SHARED_IMPL
        )
        assert found == owed


def test_without_unread_of_another_impls_reads_owes_nothing() -> None:
    """What only methods of FlashInfer's impl read is owed by its record, and by no other backend's."""
    owner = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm120.FlashInferMLASparseSM120Impl"
    field = Violation("MLA101", "Lean.req_id_per_token", "field is missing", help="declare it")
    for impl, owed in ((frozenset[str](), ()), (frozenset({owner}), (field,))):
        step: StepReads = {"has_prefills": True, "dcp_size": 1, "impl": impl}
        assert without_unread([field], RecordKind.SPARSE, "0.28", **step) == owed
    (named,) = name_readers([field], RecordKind.SPARSE, "0.28", **step)
    assert "FlashInferMLASparseSM120Impl.forward_mqa" in named.help


def test_name_readers_prefers_a_reader_that_the_step_reaches() -> None:
    """Without prefills the help names no line that only prefills reach, where another line reads the field."""
    field = Violation("MLA103", "Lean.num_decode_tokens", "None where a value is required")
    step: StepReads = {"has_prefills": False, "dcp_size": 1, "impl": frozenset()}
    (named,) = name_readers([field], RecordKind.SPARSE, "0.33", **step)
    assert "MLAAttention.forward_impl" in named.help
