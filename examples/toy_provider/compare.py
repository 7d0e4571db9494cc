"""Compares the provider that the environment names with the reference, on positions and blocks that may be -1."""

import torch

from mla_contract.backends.kernels import registry
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import MapSlots

generator = torch.Generator().manual_seed(0)
table = torch.randint(-1, 50, (3, 4), generator=generator, dtype=torch.int32)
positions = torch.randint(-1, 80, (9, 16), generator=generator, dtype=torch.int32)
owners = torch.randint(0, 3, (9,), generator=generator, dtype=torch.int32)


def operation() -> MapSlots:
    out = torch.empty(9, 16, dtype=torch.int32)
    return MapSlots(positions=positions, req_id_per_token=owners, block_table=table, block_size=16, out=out)


ours, right = operation(), operation()
registry.run(ours)
registry.run(right, [ReferenceProvider()])
if not torch.equal(ours.out, right.out):
    raise SystemExit("the results differ")
print(f"{registry.select_provider(ours).name} equals the reference")
