"""Certifies a kernel provider: whatever it says that it runs must equal the reference, and touch nothing else.

Outputs are poisoned, lie inside larger memory whose every other byte must stay, and may be strided; inputs are compared
byte by byte afterwards. A provider that gives a reason is asked to run all the same: it must refuse, and write nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import KernelProvider, Operation
from mla_contract.contract.structure.arrays import is_array
from mla_contract.errors import NoProvider
from mla_contract.testing.provider_cases import ProviderCase
from mla_contract.testing.provider_equality import POISON_BYTE, differences

MARGIN = 3
"""Rows before and behind an output that nothing may write."""
GAP = 256
"""Elements between two rows of a strided output; a multiple of the alignment of logits."""


@dataclass(frozen=True, slots=True)
class ProviderFault:
    """One way in which a provider is wrong.

    Attributes:
        what: What it did.
        where: The field, and the element where there is one.
        expected: What the contract wants.
        got: What was found.
    """

    what: str
    where: str
    expected: str
    got: str

    def render(self) -> str:
        """Return the fault as lines."""
        return f"{self.where}: {self.what}\n  expected  {self.expected}\n  got       {self.got}"


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """What one case says of a provider.

    Attributes:
        operation: Name of the operation.
        case: Name of the case.
        refused: The provider's reason; None where it ran.
        faults: What is wrong; empty where it is certified or refused as it may.
        error: What the provider raised, with its traceback.
    """

    operation: str
    case: str
    refused: str | None = None
    faults: tuple[ProviderFault, ...] = ()
    error: Exception | None = field(default=None, compare=False)


def certify(provider: KernelProvider, case: ProviderCase, device: str = "cpu", *, strided: bool = False) -> CaseVerdict:
    """Run one case on a provider and compare it with the reference.

    Args:
        provider: The provider.
        case: The case.
        device: Where the arrays are.
        strided: Whether the rows of outputs lie apart, as the contract allows them to.
    """
    made = case.make()
    name = type(made).__name__
    text = f"{case.name}, strided" if strided else case.name
    inputs, guards = _guarded(made, case.outputs, device, strided)
    kept = {one: _memory(array).clone() for one, array in _arrays(inputs).items()}
    try:
        reason: Any = provider.reason(inputs)
        if reason is not None:
            refusal = _refusal(provider, inputs, kept, reason)
            return CaseVerdict(name, text, reason if isinstance(reason, str) else None, refusal)
        result = provider.run(inputs)
    except Exception as error:  # noqa: BLE001 - the provider is foreign: what it raises is a finding
        got = f"{type(error).__name__}: {error}"
        return CaseVerdict(name, text, None, (ProviderFault("the provider raises", name, "a result", got),), error)
    _synchronise(device)
    wanted = case.make()
    right = ReferenceProvider().run(wanted)
    faults = [*_changed_inputs(inputs, kept, case.outputs), *_changed_margins(inputs, guards, case.outputs)]
    faults += [ProviderFault(*one) for one in differences(inputs, result, wanted, right)]
    return CaseVerdict(name, text, None, tuple(faults))


def strides_of(case: ProviderCase) -> tuple[bool, ...]:
    """Return the layouts of a case's outputs: a cache has one, and so has an operation that returns its result."""
    return (False, True) if set(case.outputs) & {"out", "k_out"} else (False,)


def _arrays(inputs: Any) -> dict[str, Tensor]:
    """Return the arrays of an operation by name."""
    found = {one.name: getattr(inputs, one.name) for one in fields(inputs)}
    return {name: value for name, value in found.items() if is_array(value)}


def _memory(array: Tensor) -> Tensor:
    """Return all bytes of an array's memory, those outside its view too."""
    whole = torch.empty(0, dtype=torch.uint8, device=array.device)
    return whole.set_(array.untyped_storage())


def _guarded(
    made: Operation[Any], outputs: tuple[str, ...], device: str, strided: bool
) -> tuple[Any, dict[str, Tensor]]:
    """Return the operation with its arrays on a device and its outputs inside guarded memory, and a mask of each."""
    moved: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, array in _arrays(made).items():
        if name in outputs:
            moved[name], masks[name] = _inside_guard(array, device, strided, keep=name == "cache")
        else:
            # Through the whole memory: a view with longer rows keeps them.
            whole = _memory(array).clone().to(device).view(array.dtype)
            moved[name] = whole.as_strided(array.shape, array.stride(), array.storage_offset())
    record: Any = made
    return replace(record, **moved), masks


def _inside_guard(array: Tensor, device: str, strided: bool, *, keep: bool) -> tuple[Tensor, Tensor]:
    """Return an output of this shape, poisoned, inside larger memory, and the mask of the bytes that are its own."""
    rows, *rest = array.shape
    wide = [*rest[:-1], rest[-1] + (GAP if strided and rest else 0)] if len(rest) == 1 else list(rest)
    lead = 1 if not (strided and len(rest) > 1) else 2
    shape = [(rows + 2 * MARGIN) * lead, *wide]
    whole = torch.empty(shape, dtype=array.dtype, device=device)
    whole.view(torch.uint8).fill_(POISON_BYTE)
    mine = torch.zeros(shape, dtype=torch.bool, device=device)

    def inner(of: Tensor) -> Tensor:
        rows_apart = of[::lead][MARGIN : MARGIN + rows]
        return rows_apart[..., : rest[-1]] if rest else rows_apart

    view = inner(whole)
    inner(mine).fill_(True)
    if keep:
        view.copy_(array.to(device))
    elif array.dtype.is_floating_point and array.dtype.itemsize > 1:
        view.fill_(torch.nan)
    return view, mine.repeat_interleave(array.element_size(), dim=-1).flatten()


def _refusal(
    provider: KernelProvider, inputs: Any, kept: dict[str, Tensor], reason: object
) -> tuple[ProviderFault, ...]:
    """Return what is wrong with a refusal: it must be a text, ``run`` must raise, and nothing may be written."""
    name = type(inputs).__name__
    if not isinstance(reason, str):
        return (ProviderFault("a reason is not a text", f"reason({name})", "str or None", repr(reason)),)
    try:
        provider.run(inputs)
    except NoProvider:
        changed = [one for one, array in _arrays(inputs).items() if not torch.equal(_memory(array), kept[one])]
        return tuple(ProviderFault("refuses and writes all the same", one, "nothing", "other bytes") for one in changed)
    except Exception as error:  # noqa: BLE001 - as above
        got = f"{type(error).__name__}: {error}"
        return (ProviderFault("refuses with another error", f"run({name})", "NoProvider", got),)
    return (ProviderFault("gives a reason and runs all the same", f"run({name})", f"NoProvider: {reason}", "a result"),)


def _changed_inputs(inputs: Any, kept: dict[str, Tensor], outputs: tuple[str, ...]) -> list[ProviderFault]:
    """Return the inputs that were written."""
    found = []
    for name, array in _arrays(inputs).items():
        if name not in outputs and not torch.equal(_memory(array), kept[name]):
            place = int((_memory(array) != kept[name]).nonzero()[0])
            found.append(ProviderFault("an input is changed", name, "the bytes of before", f"another byte at {place}"))
    return found


def _changed_margins(inputs: Any, masks: dict[str, Tensor], outputs: tuple[str, ...]) -> list[ProviderFault]:
    """Return the outputs around which something was written."""
    found = []
    for name in outputs:
        array = _arrays(inputs).get(name)
        if array is None:
            continue
        outside = (_memory(array) != POISON_BYTE) & ~masks[name]
        if bool(outside.any()):
            first = int(outside.nonzero()[0]) // array.element_size() - array.storage_offset()
            step = max(array.stride(0), 1)
            where = f"{name}, row {first // step}, element {first % step}"
            rows = f"only rows 0 to {len(array) - 1} of {array.shape[-1]} elements"
            found.append(ProviderFault("writes outside its output", where, rows, f"{int(outside.sum())} bytes"))
    return found


def _synchronise(device: str) -> None:
    """Wait for a GPU's kernels."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
