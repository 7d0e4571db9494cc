"""Maps positions to slots with NumPy, and refuses everything else with a reason."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import torch

from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.contract.schema.provider import MapSlots, Operation
from mla_contract.errors import NoProvider

R = TypeVar("R")


class ToyProvider:
    name = "toy"

    def reason(self, inputs: Operation[Any]) -> str | None:
        if not isinstance(inputs, MapSlots):
            return f"{type(inputs).__name__}: the toy maps slots only"
        if inputs.positions.device.type != "cpu":
            return f"positions are on {inputs.positions.device}: NumPy reads host memory only"
        return None

    def run(self, inputs: Operation[R]) -> R:
        reason = self.reason(inputs)
        if reason is not None:
            raise NoProvider(describe_inputs(inputs), {self.name: reason})
        _map(cast(MapSlots, inputs))
        return cast(R, None)


def _map(inputs: MapSlots) -> None:
    position, table = inputs.positions.numpy(), inputs.block_table.numpy()
    column, offset = np.divmod(position, inputs.block_size)
    known = (position >= 0) & (column < table.shape[1])
    block = table[inputs.req_id_per_token.numpy()[:, np.newaxis], np.where(known, column, 0)]
    slots = np.where(known & (block >= 0), block * inputs.block_size + offset, -1)
    inputs.out.copy_(torch.from_numpy(slots))
