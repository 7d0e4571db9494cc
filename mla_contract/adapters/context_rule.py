"""What bounds a context chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm

from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import SettingFault, int_faults, type_faults, validate_settings
from mla_contract.adapters.release import NEWEST


@dataclass(frozen=True, slots=True)
class ContextRule:
    """What bounds a context chunk.

    Attributes:
        workspace_rows: Rows of the workspace over all ranks together, one for each token.
        block_size: Tokens of a cache block; the gather cannot start inside one.
        parallel: The sharing of the cache; each rank's share of the workspace is ``workspace_rows // size``.
        release: The vLLM release whose plan, and whose shape of plan, is wanted.
        alignment: Tokens of which every chunk start is a multiple: ``lcm(block_size, size * interleave)`` everywhere.
    """

    workspace_rows: int
    block_size: int
    parallel: ContextParallel = field(default_factory=ContextParallel)
    release: str | None = NEWEST
    alignment: int = field(init=False)

    def __post_init__(self) -> None:
        faults = int_faults(self, {"workspace_rows": 1, "block_size": 1})
        faults += type_faults(self, {"parallel": ContextParallel, "release": (str, type(None))})
        validate_settings(faults)
        object.__setattr__(self, "alignment", lcm(self.block_size, self.parallel.span))
        if self.workspace_rows < self.alignment:
            expected = f"at least {self.alignment}, the chunk alignment"
            advice = "round the workspace up to lcm(block_size, size * interleave)"
            validate_settings([SettingFault("ContextRule.workspace_rows", expected, self.workspace_rows, advice)])
