"""Attribute access: where a read of a metadata object is checked against its class."""

from __future__ import annotations

import ast
from dataclasses import replace

from mla_contract.audit.flow.events import Read
from mla_contract.audit.flow.machine import Machine
from mla_contract.audit.flow.values import (
    CONFIG,
    DATA,
    ClassVal,
    Const,
    ExternalVal,
    FuncVal,
    Lin,
    ModuleVal,
    Obj,
    Role,
    Rows,
    RowShape,
    Special,
    SuperVal,
    Unknown,
    Value,
    is_config,
    value_of_type,
)
from mla_contract.audit.model.classes import ClassInfo, Field
from mla_contract.audit.model.index import Assigned, External, Function
from mla_contract.audit.model.module import Module, dotted_name
from mla_contract.audit.model.types import TypeRef, bindings_for, field_type, read_annotation

# What a tensor has of these is chosen once, whatever a batch puts into it; its sizes are not among them.
CONFIG_ATTRIBUTES = frozenset({"dtype", "device", "is_cuda", "ndim", "itemsize", "element_size"})
TRACKED_ROLES = (Role.METADATA, Role.BATCH)


class Attributes(Machine):
    """Evaluates attribute access."""

    def attribute(self, value: Value, attr: str, node: ast.expr, *, default: Value | None = None) -> Value:
        """Return an attribute of a value and report the read."""
        if isinstance(value, Obj):
            return self._of_object(value, attr, node, default)
        if isinstance(value, ClassVal):
            return self._of_class(value, attr)
        if isinstance(value, ModuleVal):
            return self.symbol_value(self.index.resolve(value.module, attr), f"{value.module.name}.{attr}")
        if isinstance(value, ExternalVal):
            return ExternalVal(f"{value.name}.{attr}")
        if isinstance(value, SuperVal):
            return self._of_super(value, attr)
        if isinstance(value, Rows):
            if attr == "shape":
                return RowShape(value.rows)
            return Unknown(attr in CONFIG_ATTRIBUTES)
        if value is Special.FORWARD_CONTEXT:
            return Special.METADATA_MAP if attr == "attn_metadata" else CONFIG if attr != "slot_mapping" else DATA
        if isinstance(value, Unknown):
            return CONFIG if attr in CONFIG_ATTRIBUTES else value
        return Unknown(is_config(value))

    def has_attribute(self, obj: Obj, attr: str) -> bool | None:
        """Return whether an object has an attribute, None where the source does not tell."""
        cls = obj.ref.cls
        if cls.has_attribute(attr):
            return True
        # A class without any field is a stand-in that the source fills elsewhere, not one that lacks everything.
        if cls.is_open or not cls.fields:
            return None
        if not obj.exact and any(sub.has_attribute(attr) for sub in self.index.subclasses(cls)):
            return None
        return False

    def _of_object(self, obj: Obj, attr: str, node: ast.expr, default: Value | None) -> Value:
        tracked = obj.role in TRACKED_ROLES
        path = f"{obj.path}.{attr}".lstrip(".")
        present = self.has_attribute(obj, attr)
        # Names like __class__ are Python's own and in no class body.
        if tracked and not (attr.startswith("__") and attr.endswith("__")):
            defaulted = default is not None or self.tolerant > 0
            self._report(obj, attr, path, node, missing=present is False, defaulted=defaulted)
        if present is False and default is not None:
            return default
        if obj.role is Role.BUILDER and attr == "metadata_cls" and self.backend is not None:
            return ClassVal(self.backend.metadata)
        for name, known in obj.values:
            if name == attr:
                return _tagged(known, path) if tracked else known
        return self._declared(obj, attr, path, config=not tracked)

    def _declared(self, obj: Obj, attr: str, path: str, *, config: bool) -> Value:
        cls = obj.ref.cls
        field = cls.fields.get(attr)
        method = cls.find_method(attr)
        if field is not None and field.kind == "property" and method is not None:
            if obj.role in (Role.METADATA, Role.BATCH):
                declared = read_annotation(
                    method[1].returns, method[0].module, method[0], bindings_for(obj.ref, method[0])
                )
                return value_of_type(declared, obj.role, path, config=False)
            return self.enter(Function(method[0].module, method[1], method[0]), obj, [], {})
        if method is not None and field is None:
            return FuncVal(Function(method[0].module, method[1], method[0]), obj)
        if field is None:
            nested = next((c.nested[attr] for c in cls.mro if attr in c.nested), None)
            return ClassVal(TypeRef(nested)) if nested else Unknown(config)
        if config and not self._is_overridden(obj, attr):
            constant = class_constant(cls, field)
            if constant is not None:
                return constant
        declared = field_type(obj.ref, field)
        role = obj.role if obj.role in (Role.METADATA, Role.BATCH) else Role.PLAIN
        value = value_of_type(declared, role, path, config=config)
        if role is Role.BATCH and declared.scalar == "int":
            return Lin(((f"batch.{path}", 1),))
        if isinstance(value, Obj) and role is Role.METADATA and not declared.optional:
            return replace(value, maybe_none=False)
        return value

    def _is_overridden(self, obj: Obj, attr: str) -> bool:
        """Return whether an object, known by a base class only, may have another value for a class attribute."""
        return not obj.exact and any(attr in sub.own_fields for sub in self.index.subclasses(obj.ref.cls))

    def _of_class(self, value: ClassVal, attr: str) -> Value:
        cls = value.ref.cls
        method = cls.find_method(attr)
        if method is not None:
            static = any("staticmethod" in dotted_name(d) for d in method[1].decorator_list)
            return FuncVal(Function(method[0].module, method[1], method[0]), None if static else value)
        for info in cls.mro:
            if attr in info.nested:
                return ClassVal(TypeRef(info.nested[attr]))
        field = cls.fields.get(attr)
        constant = class_constant(cls, field) if field else None
        return constant if constant is not None else CONFIG

    def _of_super(self, value: SuperVal, attr: str) -> Value:
        owner = value.function.owner
        bound = value.bound
        if owner is None or not isinstance(bound, Obj | ClassVal):
            return CONFIG
        found = bound.ref.cls.find_method(attr, after=owner)
        return FuncVal(Function(found[0].module, found[1], found[0]), bound) if found else CONFIG

    def symbol_value(self, symbol: object, name: str) -> Value:
        """Return the value of a module-level symbol."""
        if isinstance(symbol, ClassInfo):
            return ClassVal(TypeRef(symbol))
        if isinstance(symbol, Function):
            return FuncVal(symbol)
        if isinstance(symbol, Module):
            return ModuleVal(symbol)
        if isinstance(symbol, External):
            return ExternalVal(f"{symbol.module}.{symbol.name}" if symbol.name else symbol.module)
        if isinstance(symbol, Assigned):
            return Const(symbol.value.value) if isinstance(symbol.value, ast.Constant) else CONFIG
        return CONFIG if symbol is not None else ExternalVal(name)

    def _report(self, obj: Obj, attr: str, path: str, node: ast.expr, *, missing: bool, defaulted: bool) -> None:
        read = Read(
            holder=obj.ref.cls,
            attr=attr,
            path=path,
            function=self.frame.function,
            node=node,
            guards=tuple(self.guards),
            missing=missing,
            defaulted=defaulted,
            batch=obj.role is Role.BATCH,
        )
        self.events.reads.append(read)


def class_constant(cls: ClassInfo, field: Field) -> Value | None:
    """Return the constant that a class attribute always holds, or None.

    An attribute that any method assigns on self is not a constant.
    """
    declared = cls.fields.get(field.name)
    if declared is None or declared.kind != "declared" or not isinstance(declared.default, ast.Constant):
        return None
    if any(info.own_assigned(field.name) for info in cls.mro):
        return None
    return Const(declared.default.value)


def _tagged(value: Value, path: str) -> Value:
    """Return a nested object with the access path that leads to it."""
    return replace(value, path=path, role=Role.METADATA) if isinstance(value, Obj) else value
