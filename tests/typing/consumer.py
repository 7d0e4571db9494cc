# The consumer's side: what may be read of a narrowed view.
from typing import Any

from mla_contract import BackendDeclaration, ChunkContext, SparseMLAMetadata, claims, narrow


def get_attention_context(layer: str) -> Any: ...


def forward(layer: str) -> int:
    metadata = narrow(get_attention_context(layer), SparseMLAMetadata)
    metadata.head_dim  # E: "SparseMLAMetadata" has no attribute "head_dim"
    metadata.num_decode_token  # E: "SparseMLAMetadata" has no attribute "num_decode_token"
    metadata.num_decodes = 3  # E: Property "num_decodes" defined in "HasNumDecodes" is read-only
    if metadata.prefill is None:
        return metadata.num_decode_tokens
    context = metadata.prefill.chunked_context
    context.chunks  # E: Item "FieldContext" of "FieldContext | ChunkContext | None" has no attribute "chunks"  # E: Item "None" of
    chunks = narrow(context, ChunkContext).chunks
    return sum(chunk.num_context_tokens for chunk in chunks) + metadata.prefill.max_query_len


def unchecked(layer: str) -> int:
    metadata = get_attention_context(layer)
    metadata.head_dim
    return metadata.num_decode_token  # E: Returning Any from function declared to return "int"


claims.counts(*claims.of(int))  # E: "HasNumReqs"  # E: "HasNumActualTokens"  # E: "HasNumDecodes"  # E: "HasNumPrefills"  # E: "HasNumDecodeTokens"
BackendDeclaration(name="toy", routing="shared_split", dense_prefill=True, decode_lse=False)  # E: incompatible type "str"; expected "Routing"
