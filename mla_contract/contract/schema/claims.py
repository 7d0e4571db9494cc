"""A backend author's one line: ``counts(*of(MyMetadata))`` below the class.

The star hands the class to one parameter for each member of the tier, so a type checker reports one error for each
member that is missing or of the wrong type, and names it: ``expected "HasNumDecodes"``. At run time nothing happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mla_contract.contract.schema.aiter import (
        AiterWork,
        HasAttnOutDtype,
        HasPagedKvIndices,
        HasPagedKvIndptr,
        HasPagedKvLastPageLen,
        HasQoIndptr,
    )
    from mla_contract.contract.schema.core import (
        HasDecode,
        HasMaxQueryLen,
        HasMaxSeqLen,
        HasPrefill,
        HasQueryStartLoc,
        HasSlotMapping,
    )
    from mla_contract.contract.schema.counts import (
        HasNumActualTokens,
        HasNumDecodes,
        HasNumDecodeTokens,
        HasNumPrefills,
        HasNumReqs,
    )
    from mla_contract.contract.schema.sparse import (
        HasBlockSize,
        HasBlockTable,
        HasDecodeMaxQueryLen,
        HasPrefillMaxSeqLen,
        HasReqIdPerToken,
        HasSeqLens,
        HasTopkTokens,
    )

T = TypeVar("T")
_ABSENT: Any = None


def of(cls: type[T]) -> tuple[T, ...]:
    """Stand for any number of instances of ``cls``; empty at run time."""
    return ()


def counts(
    num_reqs: HasNumReqs = _ABSENT,
    num_actual_tokens: HasNumActualTokens = _ABSENT,
    num_decodes: HasNumDecodes = _ABSENT,
    num_prefills: HasNumPrefills = _ABSENT,
    num_decode_tokens: HasNumDecodeTokens = _ABSENT,
    /,
) -> None:
    """Claim the counts tier for ``*of(cls)``."""


def core(
    query_start_loc: HasQueryStartLoc = _ABSENT,
    slot_mapping: HasSlotMapping = _ABSENT,
    max_query_len: HasMaxQueryLen = _ABSENT,
    max_seq_len: HasMaxSeqLen = _ABSENT,
    prefill: HasPrefill = _ABSENT,
    decode: HasDecode = _ABSENT,
    /,
) -> None:
    """Claim the core tier for ``*of(cls)``."""


def sparse(
    block_table: HasBlockTable = _ABSENT,
    req_id_per_token: HasReqIdPerToken = _ABSENT,
    topk_tokens: HasTopkTokens = _ABSENT,
    block_size: HasBlockSize = _ABSENT,
    prefill_max_seq_len: HasPrefillMaxSeqLen = _ABSENT,
    seq_lens: HasSeqLens = _ABSENT,
    decode_max_query_len: HasDecodeMaxQueryLen = _ABSENT,
    /,
) -> None:
    """Claim the sparse tier for ``*of(cls)``."""


def aiter(
    qo_indptr: HasQoIndptr = _ABSENT,
    paged_kv_indptr: HasPagedKvIndptr = _ABSENT,
    paged_kv_indices: HasPagedKvIndices = _ABSENT,
    paged_kv_last_page_len: HasPagedKvLastPageLen = _ABSENT,
    attn_out_dtype: HasAttnOutDtype = _ABSENT,
    work: AiterWork = _ABSENT,
    /,
) -> None:
    """Claim the aiter tier for ``*of(cls)``."""
