"""The fast path: one generated function for each Protocol that only decides "all fine".

It is generated from the same specifications as the strict models; when it says no, the models say what is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

from mla_contract.contract.schema.residence import DEVICE, HOST
from mla_contract.contract.structure.axes import Axis
from mla_contract.contract.structure.specs import (
    FieldSpec,
    ListSpec,
    MethodSpec,
    RecordSpec,
    ScalarSpec,
    Spec,
    TensorSpec,
    specs_of,
)

Decide = Callable[..., bool]


def structure_is_fine(obj: object, protocol: type) -> bool:
    """Return True only if ``check_structure(obj, protocol)`` finds nothing.

    False means "not proven": an array of another library, a subclass, or a fault.

    Sync: none
    """
    try:
        return compile_fast(protocol, ())(obj)
    except Exception:  # noqa: BLE001 - whatever the object raises, and where torch is missing, the slow path reports it
        return False


@cache
def compile_fast(protocol: type, outer: tuple[str, ...]) -> Decide:
    """Return the generated function of a Protocol; it takes the object and the sizes of the axes ``outer``."""
    writer = _Writer(outer)
    for field in sorted(specs_of(protocol).values(), key=_binds_last):
        writer.field(field)
    source = writer.source()
    space: dict[str, Any] = dict(writer.space)
    exec(compile(source, f"<fast path of {protocol.__name__}>", "exec"), space)
    decide: Decide = space["decide"]
    return decide


def _plus(axis: Axis) -> str:
    """Return the expression of an axis of the form name+offset."""
    return f"a_{axis.names[0]} + {axis.offset}" if axis.offset else f"a_{axis.names[0]}"


def _binds_last(field: FieldSpec) -> bool:
    """Return False for the integers that bind axes, which must come first."""
    return field.optional or field.options != (ScalarSpec("int"),)


class _Writer:
    """Writes the body of one generated function."""

    def __init__(self, outer: tuple[str, ...]) -> None:
        torch = sys.modules["torch"]
        self.space: dict[str, Any] = {"Tensor": torch.Tensor, "dtype": torch.dtype}
        self.outer = outer
        self.lines: list[str] = []
        self.late: list[str] = []
        self.counts: list[str] = list(outer)
        self.axes: set[str] = set(outer)
        self.nested: list[tuple[FieldSpec, str]] = []
        self.numbers = count()

    def source(self) -> str:
        """Return the function's source."""
        for field, variable in self.nested:
            self._nested(field, variable)
        free = sorted(self.axes - set(self.counts))
        head = [f"def decide(o{''.join(f', a_{name}' for name in self.outer)}):", " device = None; cpu = False"]
        head += [f" a_{name} = None" for name in free]
        return "\n".join([*head, *(f" {line}" for line in [*self.lines, *self.late]), " return True"])

    def field(self, field: FieldSpec) -> None:
        """Write the test of one member; records and products of axes are left for the end."""
        variable = f"v{next(self.numbers)}"
        self.lines.append(f"{variable} = o.{field.name}")
        kinds = [type(option) for option in field.options]
        if RecordSpec in kinds or any(
            isinstance(o, ListSpec) and isinstance(o.item, RecordSpec) for o in field.options
        ):
            self.nested.append((field, variable))
            return
        depth = ""
        if field.optional:
            self.lines.append(f"if {variable} is not None:")
            depth = " "
        match field.options:
            case (ScalarSpec(kind="int"),):
                self._add(depth, f"if type({variable}) is not int or {variable} < 0: return False")
                if not field.optional:
                    self.lines.append(f"a_{field.name} = {variable}")
                    self.counts.append(field.name)
                    self.axes.add(field.name)
            case (ScalarSpec(kind="bool"), TensorSpec() as tensor):
                self._add(depth, f"if {variable} is not True and {variable} is not False:")
                self._tensor(depth + " ", field, tensor, variable)
            case (TensorSpec() as tensor,):
                self._tensor(depth, field, tensor, variable)
            case (option,):
                self._add(depth, f"if not ({self._test(option, variable)}): return False")
            case _:
                self._add(depth, "return False")

    def _add(self, depth: str, line: str) -> None:
        self.lines.append(depth + line)

    def _test(self, option: Spec, variable: str) -> str:
        """Return the expression that is true for a fine value without axes."""
        match option:
            case ScalarSpec(kind="int"):
                return f"type({variable}) is int and {variable} >= 0"
            case ScalarSpec(kind=kind):
                return f"type({variable}) is {kind}"
            case ListSpec(item=item):
                inner = f"i{next(self.numbers)}"
                return f"type({variable}) in (list, tuple) and all({self._test(item, inner)} for {inner} in {variable})"
            case MethodSpec():
                return f"callable({variable})"
        return "False"

    def _tensor(self, depth: str, field: FieldSpec, spec: TensorSpec, variable: str) -> None:
        """Write the test of one array."""
        self._add(depth, f"if type({variable}) is not Tensor: return False")
        if spec.dtype is not None:
            self.space[f"t_{spec.dtype}"] = getattr(sys.modules["torch"], spec.dtype)
            self._add(depth, f"if {variable}.dtype is not t_{spec.dtype}: return False")
        if field.residence == HOST:
            self._add(depth, f"if not {variable}.is_cpu: return False")
        elif field.residence == DEVICE:
            self._add(depth, f"if device is None: device = {variable}.device; cpu = {variable}.is_cpu")
            self._add(depth, f"elif (not {variable}.is_cpu) if cpu else {variable}.device != device: return False")
        axes = spec.shape.axes
        if axes is None:
            return
        if axes and field.residence != HOST:
            dense = f"{variable}.is_contiguous() or {variable}.shape[-1] <= 1 or {variable}.stride(-1) == 1"
            self._add(depth, f"if not ({dense}): return False")
        if all(self._is_count(axis) for axis in axes):
            self._add(depth, f"if {variable}.shape != ({''.join(f'{_plus(axis)}, ' for axis in axes)}): return False")
            return
        self._add(depth, f"s = {variable}.shape")
        self._add(depth, f"if len(s) != {len(axes)}: return False")
        for dim, axis in enumerate(axes):
            self._axis(depth, axis, dim)

    def _is_count(self, axis: Axis) -> bool:
        """Return whether an axis has the size of an integer field, perhaps with an offset."""
        return axis.offset is not None and axis.names[0] in self.counts

    def _axis(self, depth: str, axis: Axis, dim: int) -> None:
        """Write the test of one axis: bind it, or compare it."""
        self.axes.update(axis.names)
        if self._is_count(axis):
            self._add(depth, f"if s[{dim}] != {_plus(axis)}: return False")
        elif axis.offset is not None:
            name = f"a_{axis.names[0]}"
            self._add(depth, f"if {name} is None: {name} = s[{dim}] - {axis.offset}")
            self._add(depth, f"elif s[{dim}] != {_plus(axis)}: return False")
        else:
            size = f"z{next(self.numbers)}"
            self.lines.insert(0, f"{size} = None")
            self._add(depth, f"{size} = s[{dim}]")
            bound = "".join(f" and a_{name} is not None" for name in axis.names)
            text = axis.text
            for name in sorted(axis.names, key=len, reverse=True):
                text = text.replace(name, f"a_{name}")
            self.late.append(f"if {size} is not None{bound} and {size} != {text}: return False")

    def _nested(self, field: FieldSpec, variable: str) -> None:
        """Write the test of a record, a choice of records, or a list of records."""
        depth = ""
        if field.optional:
            self.lines.append(f"if {variable} is not None:")
            depth = " "
        calls = []
        for option in field.options:
            protocol = option.item if isinstance(option, ListSpec) else option
            if not isinstance(protocol, RecordSpec):
                self._add(depth, "return False")
                return
            name = f"f{next(self.numbers)}"
            outer = tuple(dict.fromkeys(self.counts))
            self.space[name] = compile_fast(protocol.protocol, outer)
            arguments = "".join(f", a_{axis}" for axis in outer)
            if isinstance(option, ListSpec):
                calls.append(f"type({variable}) in (list, tuple) and all({name}(i{arguments}) for i in {variable})")
            else:
                calls.append(f"{name}({variable}{arguments})")
        if len(calls) == 1:
            self._add(depth, f"if not ({calls[0]}): return False")
        else:
            for index, call in enumerate(calls):
                self.space[f"{variable}_{index}"] = None
                self._add(depth, f"try: r{index} = {call}")
                self._add(depth, f"except AttributeError: r{index} = False")
            self._add(depth, f"if not ({' or '.join(f'r{index}' for index in range(len(calls)))}): return False")
