"""The backend: vLLM's own on the CPU, with a builder that counts its builds."""

from __future__ import annotations

import os
from typing import Any

from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadata, MLACommonMetadataBuilder
from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

STEP = int(os.environ.get("PLANTED_STEP", "5"))
"""Build at which the fault appears."""


class PlantedBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):  # type: ignore[misc]
    """States one request too many from one step on; the CPU kernels do not read it, so a run can finish."""

    builds = 0

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> MLACommonMetadata:
        """Build as vLLM does, then plant the fault."""
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        self.builds += 1
        if self.builds >= STEP:
            metadata.num_reqs += 1
        return metadata


class PlantedBackend(CPUMLABackend):  # type: ignore[misc]
    """Has that builder."""

    @staticmethod
    def get_name() -> str:
        """Return the name under which it is registered."""
        return "CUSTOM"

    @staticmethod
    def get_builder_cls() -> type[PlantedBuilder]:
        """Return the builder."""
        return PlantedBuilder
