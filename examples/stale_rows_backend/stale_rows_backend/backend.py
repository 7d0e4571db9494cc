"""Keeps the decode lengths in a persistent buffer, and refreshes it only when the number of decodes changes.

While the same requests decode on, the kernel sees the lengths of an earlier step, and misses the newest tokens.
Nothing crashes, no shape is wrong, and the text is silently another one.
"""

from dataclasses import replace

import torch
from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadata, MLACommonMetadataBuilder
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend


class StaleRowsMetadataBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        rows = vllm_config.scheduler_config.max_num_seqs
        self._seq_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._filled = 0

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> MLACommonMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if metadata.decode is None:
            return metadata
        if metadata.num_decodes != self._filled:
            self._filled = metadata.num_decodes
            self._seq_lens[: self._filled].copy_(metadata.decode.seq_lens)
        return replace(metadata, decode=replace(metadata.decode, seq_lens=self._seq_lens[: self._filled]))


class StaleRowsBackend(CPUMLABackend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_builder_cls() -> type[StaleRowsMetadataBuilder]:
        return StaleRowsMetadataBuilder
