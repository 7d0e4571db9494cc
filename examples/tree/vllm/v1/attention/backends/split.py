from vllm.v1.attention.backend import CommonAttentionMetadata


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata, decode_threshold: int = 1
) -> tuple[int, int, int, int]:
    """Count the requests and tokens of a batch that are decodes and prefills; decodes come first.

    A request is a decode while its query is no longer than the threshold.
    """
    num_reqs = common_attn_metadata.num_reqs
    num_tokens = common_attn_metadata.num_actual_tokens
    start_loc = common_attn_metadata.query_start_loc_cpu
    if common_attn_metadata.max_query_len <= decode_threshold:
        return num_reqs, 0, num_tokens, 0
    num_decodes = 0
    while num_decodes < num_reqs:
        query_len = int(start_loc[num_decodes + 1]) - int(start_loc[num_decodes])
        if query_len > decode_threshold:
            break
        num_decodes += 1
    num_decode_tokens = int(start_loc[num_decodes])
    return num_decodes, num_reqs - num_decodes, num_decode_tokens, num_tokens - num_decode_tokens
