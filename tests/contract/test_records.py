"""Violations, errors, declarations, workspace plans, and the narrowed view."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from mla_contract import (
    BackendDeclaration,
    ContractError,
    CountsMetadata,
    InvalidContract,
    LseBase,
    MultipleOf,
    MultiTokenDecode,
    NoProvider,
    Routing,
    Violation,
    WorkspacePlan,
    WorkspaceRequest,
    narrow,
)
from mla_contract.contract.schema import narrow as narrow_module

SHORT_INDPTR = Violation(
    code="MLA203",
    path="AiterSparseMetadata.paged_kv_indptr",
    message="last offset differs from len(paged_kv_indices)",
    expected="4096   (num_actual_tokens=2 * topk_tokens=2048)",
    got="4095   int32[3] on cpu",
    axes={"num_reqs": 2, "num_actual_tokens": 2, "topk_tokens": 2048},
    help="padded rows repeat the last offset",
)
RENDERED = """\
MLA203 AiterSparseMetadata.paged_kv_indptr: last offset differs from len(paged_kv_indices)
  expected  4096   (num_actual_tokens=2 * topk_tokens=2048)
  got       4095   int32[3] on cpu
  axes      num_reqs=2 num_actual_tokens=2 topk_tokens=2048
  help      padded rows repeat the last offset; mla-contract explain MLA203"""


def test_violation_render_every_fact_has_a_line() -> None:
    """The text says where, what, expected, got, axes and help, in columns."""
    assert SHORT_INDPTR.render() == RENDERED
    assert SHORT_INDPTR.one_line() == RENDERED.splitlines()[0]


def test_violation_render_unknown_facts_are_left_out() -> None:
    """A fact that is not known has no line; the pointer to the explanation stays."""
    violation = Violation("MLA001", "Metadata.prefill", "is None")
    assert violation.render() == "MLA001 Metadata.prefill: is None\n  help      mla-contract explain MLA001"


def test_violation_as_json_round_trips() -> None:
    """The dict survives JSON and rebuilds the same violation."""
    assert Violation(**json.loads(json.dumps(SHORT_INDPTR.as_json()))) == SHORT_INDPTR


def test_violation_is_frozen_and_hashable() -> None:
    """A violation can be kept in a set, and nobody changes it on the way."""
    assert SHORT_INDPTR in {SHORT_INDPTR}
    with pytest.raises(FrozenInstanceError):
        SHORT_INDPTR.code = "MLA000"  # type: ignore[misc]


def test_contract_error_carries_and_prints_all_violations() -> None:
    """One error holds every violation, in order, as data and as text."""
    other = Violation("MLA001", "Metadata.prefill", "is None")
    error = ContractError("2 violations", [SHORT_INDPTR, other])
    assert error.violations == (SHORT_INDPTR, other)
    assert str(error) == f"2 violations\n{RENDERED}\n{other.render()}"
    assert ContractError("alone").violations == ()


def test_no_provider_lists_each_reason_and_the_inputs() -> None:
    """The error keeps inputs and reasons as data, and prints them."""
    error = NoProvider({"num_heads": 12, "page_size": 64}, {"aiter": "num_heads=12 is not a multiple of 16"})
    assert error.inputs == {"num_heads": 12, "page_size": 64}
    assert error.reasons == {"aiter": "num_heads=12 is not a multiple of 16"}
    assert str(error).splitlines() == [
        "no provider can run these inputs",
        "  aiter  num_heads=12 is not a multiple of 16",
        "  inputs  num_heads=12 page_size=64",
    ]
    assert "no provider is registered" in str(NoProvider({}, {}))


def test_errors_are_what_callers_catch() -> None:
    """All are ContractErrors; a wrong statement is a ValueError, a missing provider a LookupError."""
    assert issubclass(InvalidContract, (ContractError,)) and issubclass(InvalidContract, ValueError)
    assert issubclass(NoProvider, (ContractError,)) and issubclass(NoProvider, LookupError)


def declaration(**changes: Any) -> BackendDeclaration:
    """Return a consistent declaration with changes."""
    fields: dict[str, Any] = {
        "name": "TOY",
        "routing": Routing.SHARED_SPLIT,
        "dense_prefill": True,
        "decode_lse": True,
        "lse_base": LseBase.E,
    }
    return BackendDeclaration(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"lse_base": None}, "decode_lse needs lse_base"),
        ({"decode_lse": False}, "lse_base is given, but decode_lse is False"),
        ({"decode_lse": False, "lse_base": None, "decode_context_parallel": True}, "decode_context_parallel needs"),
        ({"index_sentinel": 0}, "index_sentinel must be negative"),
        ({"kernel_block_sizes": ()}, "kernel_block_sizes is empty"),
        ({"kernel_block_sizes": (64, MultipleOf(0))}, "must be positive, got \\[64, 0\\]"),
    ],
)
def test_declaration_contradiction_is_refused(changes: dict[str, Any], part: str) -> None:
    """A declaration that contradicts itself names the backend and the contradiction."""
    with pytest.raises(InvalidContract, match=f"declaration of TOY: .*{part}"):
        declaration(**changes)


def test_declaration_several_contradictions_are_told_at_once() -> None:
    """All contradictions stand in one error."""
    with pytest.raises(InvalidContract, match="lse_base.*; index_sentinel.*; kernel_block_sizes"):
        declaration(lse_base=None, index_sentinel=5, kernel_block_sizes=())


def test_declaration_consistent_is_accepted() -> None:
    """All-decodes without LSE, and a split backend with context parallelism, are both legal."""
    all_decodes = declaration(routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False, lse_base=None)
    assert all_decodes.multi_token_decode is MultiTokenDecode.SINGLE
    assert declaration(decode_context_parallel=True).lse_base is LseBase.E


@pytest.mark.parametrize(
    ("sizes", "block_size", "taken"),
    [((64,), 64, True), ((64,), 128, False), ((1, MultipleOf(16)), 1, True), ((1, MultipleOf(16)), 48, True)]
    + [((1, MultipleOf(16)), 24, False), ((MultipleOf(1),), 0, False)],
)
def test_takes_block_size_follows_the_declared_sizes(
    sizes: tuple[int | MultipleOf, ...], block_size: int, taken: bool
) -> None:
    """Exact sizes and multiples are taken, everything else is not."""
    assert declaration(kernel_block_sizes=sizes).takes_block_size(block_size) is taken


def test_workspace_plan_total_rounds_each_array_up_to_256_bytes() -> None:
    """Two arrays that are alive together take the sum of their aligned sizes; an empty plan takes nothing."""
    keys = WorkspaceRequest("keys", (3, 128), "float8_e4m3fn")
    scales = WorkspaceRequest("scales", (3, 1), "float32")
    assert (keys.num_bytes, scales.num_bytes) == (384, 12)
    assert WorkspacePlan((keys, scales)).total_bytes == 512 + 256
    assert WorkspacePlan(()).total_bytes == 0
    assert WorkspacePlan((WorkspaceRequest("none", (0, 128), "int8"),)).total_bytes == 0


def test_workspace_request_wrong_dtype_shape_or_name_is_refused() -> None:
    """An unknown dtype, a negative size and a repeated name each say so."""
    with pytest.raises(InvalidContract, match="workspace keys: unknown dtype 'torch.int8'; known: bool"):
        WorkspaceRequest("keys", (1,), "torch.int8")
    with pytest.raises(InvalidContract, match=r"workspace keys: negative size in shape \(-1,\)"):
        WorkspaceRequest("keys", (-1,), "int8")
    with pytest.raises(InvalidContract, match="repeated name keys"):
        WorkspacePlan((WorkspaceRequest("keys", (1,), "int8"),) * 2)


class Counts:
    """A metadata class for the narrowed view."""

    num_reqs = 1
    num_actual_tokens = 4
    num_decodes = 0
    num_prefills = 1
    num_decode_tokens = 0


def test_narrow_without_validator_returns_the_same_object() -> None:
    """With the validator off nothing is wrapped and nothing is checked, not even a wrong object."""
    metadata = Counts()
    assert narrow(metadata, CountsMetadata) is metadata
    assert narrow(None, CountsMetadata) is None


def test_narrow_armed_validator_sees_object_and_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """An armed validator is called before the object is handed on, and its error reaches the caller."""
    seen = []

    def refuse_none(obj: object, protocol: object) -> None:
        seen.append((obj, protocol))
        if obj is None:
            raise ContractError("no metadata")

    monkeypatch.setattr(narrow_module, "validator", refuse_none)
    metadata = Counts()
    assert narrow(metadata, CountsMetadata) is metadata
    with pytest.raises(ContractError, match="no metadata"):
        narrow(None, CountsMetadata)
    assert seen == [(metadata, CountsMetadata), (None, CountsMetadata)]
