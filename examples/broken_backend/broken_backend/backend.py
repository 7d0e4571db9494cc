"""vLLM's own builder and kernels for the CPU; only the metadata class is another one."""

from dataclasses import fields

from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

from broken_backend.metadata import LeanMLAMetadata


class LeanMLAMetadataBuilder(MLACommonMetadataBuilder[LeanMLAMetadata]):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> LeanMLAMetadata:
        full = super().build(common_prefix_len, common_attn_metadata, fast_build)
        return LeanMLAMetadata(**{field.name: getattr(full, field.name) for field in fields(LeanMLAMetadata)})


class LeanMLABackend(CPUMLABackend):
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_builder_cls() -> type[LeanMLAMetadataBuilder]:
        return LeanMLAMetadataBuilder
