"""Calls: builtins that matter, functions of the tree that receive metadata, and construction of metadata."""

from __future__ import annotations

import ast
from dataclasses import replace

from mla_contract.audit.flow.conditions import is_metadata_class
from mla_contract.audit.flow.events import Construct, Guard, Store
from mla_contract.audit.flow.expressions import Expressions
from mla_contract.audit.flow.machine import Frame
from mla_contract.audit.flow.values import (
    CONFIG,
    DATA,
    ClassVal,
    Const,
    ExternalVal,
    FuncVal,
    Obj,
    Role,
    Rows,
    Seq,
    Special,
    SuperVal,
    Tup,
    Unknown,
    Value,
    bounded,
    is_config,
    is_tracked,
    join,
    value_of_type,
)
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function
from mla_contract.audit.model.module import FunctionNode, dotted_name
from mla_contract.audit.model.nodes import literal_text, text_of
from mla_contract.audit.model.types import TypeRef, read_annotation

CONTEXT_GETTER = "get_attention_context"
FORWARD_CONTEXT_GETTER = "get_forward_context"
TRIVIAL_BODY = 3
"""Statements up to which a function without arguments is followed, for it may return a constant that decides a test."""


class Calls(Expressions):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Value:
        """Return the result of a call expression."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        special = self._builtin(name, node)
        if special is not None:
            return special
        callee = self.evaluate(node.func)
        items, whole = self.items(node.args)
        args = list(items)
        spread = not whole or any(k.arg is None for k in node.keywords)
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
        if isinstance(callee, FuncVal):
            return self._call_function(callee, args, kwargs, node)
        if isinstance(callee, ClassVal):
            return self._construct(callee, args, kwargs, node, complete=not spread)
        return self._opaque(node, callee, args, kwargs)

    def run(self, function: Function, bound: Value | None = None, **kwargs: Value) -> Value:
        """Return the result of running a function as an entry point: optional parameters may or may not be given."""
        spec = function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        optional = positional[len(positional) - len(spec.defaults) :] if spec.defaults else []
        given = dict(kwargs)
        for parameter in [
            *optional,
            *(a for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None),
        ]:
            given.setdefault(parameter.arg, CONFIG)
        return self.enter(function, bound, [], given)

    def enter(self, function: Function, bound: Value | None, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return the result of running a function of the tree."""
        capabilities = frozenset(g.text for g in self.guards if g.capability)
        names = tuple(sorted(kwargs))
        env = self._closure(function)
        values = (bound, *args, *(kwargs[name] for name in names), *env.values())
        # Besides the values: how they are passed, which names of an enclosing call are seen, and whether an
        # AttributeError is caught around the call, since reads count as defaulted there.
        key = (id(function.node), len(args), names, tuple(env), self.tolerant > 0)
        depth, left_out = len(self.stack), self.left_out
        known = self.memo.find(key, values, capabilities, depth)
        if known is not None:
            self.left_out += known.depth > 0
            return known.result
        if depth >= self.max_depth:
            self.left_out += 1
            return DATA
        # A recursive call finds this provisional result instead of running for ever.
        self.memo.keep(key, values, capabilities, DATA)
        env.update(self._parameters(function, bound, args, kwargs))
        guards = len(self.guards)
        self.stack.append(Frame(function, env))
        falls = self.execute(function.node.body)
        frame = self.stack.pop()
        del self.guards[guards:]
        # What a generator returns is not what its caller iterates over.
        if self.index.is_generator(function):
            result: Value = DATA
        else:
            results = [*frame.returns, *([Const(None)] if falls else [])]
            result = results[0] if results else DATA
            for other in results[1:]:
                result = join(result, other)
        self.memo.keep(key, values, capabilities, result, depth if self.left_out > left_out else 0)
        return result

    def _closure(self, function: Function) -> dict[str, Value]:
        """Return what a nested function sees of the call it was defined in, as it is by now."""
        if id(function.node) not in self.closures:
            return {}
        frame, names = self.closures[id(function.node)]
        return {name: frame.env[name] for name in names if name in frame.env}

    def _parameters(
        self, function: Function, bound: Value | None, args: list[Value], kwargs: dict[str, Value]
    ) -> dict[str, Value]:
        spec = function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        env: dict[str, Value] = {}
        static = any("staticmethod" in dotted_name(d) for d in function.node.decorator_list)
        given = list(args)
        if bound is not None and function.owner is not None and not static:
            given.insert(0, bound)
        defaults = dict(
            zip([a.arg for a in positional[len(positional) - len(spec.defaults) :]], spec.defaults, strict=True)
        )
        defaults.update({a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None})
        for position, parameter in enumerate([*positional, *spec.kwonlyargs]):
            name = parameter.arg
            if position < len(given) and position < len(positional):
                value = given[position]
            elif name in kwargs:
                value = kwargs[name]
            elif name in defaults:
                default = defaults[name]
                value = Const(default.value) if isinstance(default, ast.Constant) else CONFIG
            else:
                value = DATA
            env[name] = self._by_annotation(value, parameter.annotation, function)
        for extra in (spec.vararg, spec.kwarg):
            if extra is not None:
                env[extra.arg] = DATA
        return env

    def _by_annotation(self, value: Value, annotation: ast.expr | None, function: Function) -> Value:
        """Give an unknown value the metadata class that its annotation names."""
        if not isinstance(value, Unknown) or annotation is None:
            return value
        declared = read_annotation(annotation, function.module, function.owner)
        if len(declared.refs) == 1 and is_metadata_class(declared.refs[0].cls) and not declared.class_of:
            return value_of_type(declared, Role.METADATA, "", config=False)
        if declared.element is not None and any(is_metadata_class(r.cls) for r in declared.element.refs):
            return value_of_type(declared, Role.METADATA, "", config=False)
        return value

    def _builtin(self, name: str, node: ast.Call) -> Value | None:
        if name == "isinstance" and len(node.args) == 2:
            return self._isinstance(node)
        if name in ("getattr", "hasattr") and len(node.args) >= 2:
            return self._getattr(name, node)
        if name == "setattr" and len(node.args) == 3 and (attr := literal_text(node.args[1])) is not None:
            target = ast.Attribute(node.args[0], attr, ast.Store())
            self.assign(ast.copy_location(target, node), self.evaluate(node.args[2]))
            return Const(None)
        if name == "super":
            frame = self.frame
            parameters = frame.function.node.args
            first = next(iter([*parameters.posonlyargs, *parameters.args]), None)
            bound = frame.env.get(first.arg) if first else None
            return SuperVal(frame.function, bound) if bound is not None else CONFIG
        if name == "type" and len(node.args) == 1:
            value = self.evaluate(node.args[0])
            return ClassVal(value.ref) if isinstance(value, Obj) else Unknown(is_config(value))
        if name in ("enumerate", "zip", "reversed", "sorted", "list", "tuple", "iter", "set") and node.args:
            values = [self.evaluate(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
            elements = [self.element_of(v) for v in values]
            for keyword in node.keywords:
                self.evaluate(keyword.value)
            if name == "enumerate":
                return Seq(Tup((DATA, elements[0])))
            return Seq(Tup(tuple(elements))) if name == "zip" else Seq(elements[0])
        if name == "int" and len(node.args) == 1:
            return self.evaluate(node.args[0])
        return None

    def _isinstance(self, node: ast.Call) -> Value:
        value = self.evaluate(node.args[0])
        classes = self.class_operands(node.args[1])
        if isinstance(value, Obj) and classes:
            if any(value.ref.cls.is_subclass_of(cls) for cls in classes):
                return Unknown(config=False) if value.maybe_none else Const(True)
            if value.exact or not any(cls.is_subclass_of(value.ref.cls) for cls in classes):
                return Const(False) if not value.ref.cls.is_open else DATA
            return DATA
        if value is Special.METADATA_MAP:
            return DATA
        return Unknown(is_config(value))

    def _getattr(self, name: str, node: ast.Call) -> Value:
        value = self.evaluate(node.args[0])
        default = self.evaluate(node.args[2]) if len(node.args) > 2 else None
        attr = literal_text(node.args[1])
        if attr is None:
            return Unknown(is_config(value))
        if name == "hasattr":
            if isinstance(value, Obj):
                present = self.has_attribute(value, attr)
                self.attribute(value, attr, node, default=Const(None))
                return DATA if present is None else Const(present)
            return Unknown(is_config(value))
        return self.attribute(value, attr, node, default=default)

    def _call_function(self, callee: FuncVal, args: list[Value], kwargs: dict[str, Value], node: ast.Call) -> Value:
        name = callee.function.node.name
        if name == CONTEXT_GETTER and self.context is not None:
            return Tup((*self.context, DATA, DATA))
        if name == FORWARD_CONTEXT_GETTER:
            return Special.FORWARD_CONTEXT
        values = [*args, *kwargs.values()]
        tracked = any(is_tracked(v) for v in values) or is_tracked(callee.bound or CONFIG)
        own = isinstance(callee.bound, Obj) and callee.bound.role is Role.BUILDER and self.inline_all
        short = len(callee.function.node.body) <= TRIVIAL_BODY and not values
        trivial = (short or _returns_constant(callee.function.node)) and not self._overrides(callee)
        if tracked or own or trivial:
            result = self.enter(callee.function, callee.bound, args, kwargs)
            for override in self._overrides(callee) if tracked else ():
                instance = Obj(TypeRef(override.owner), Role.PLAIN) if override.owner else callee.bound
                with self.guarded(Guard(f"{override.owner} is in use", capability=True)):
                    self.enter(override, instance, args, kwargs)
            if result != DATA:
                return result
            declared = read_annotation(callee.function.node.returns, callee.function.module, callee.function.owner)
            if any(is_metadata_class(ref.cls) for ref in declared.refs):
                return value_of_type(declared, Role.METADATA, "", config=False)
            return result
        return self._opaque(node, callee, args, kwargs)

    def _overrides(self, callee: FuncVal) -> list[Function]:
        """Return the other definitions that a call may reach, where the object is known by a base class only."""
        bound = callee.bound
        if not isinstance(bound, Obj) or bound.exact or bound.role is not Role.PLAIN:
            return []
        name = callee.function.node.name
        subclasses = self.index.subclasses(bound.ref.cls)
        return [Function(sub.module, sub.methods[name], sub) for sub in subclasses if name in sub.methods]

    def _opaque(self, node: ast.Call, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return what is known of a call whose body is not followed."""
        values = [*args, *kwargs.values()]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and values == [Const(0)]:
            owner = self.evaluate(node.func.value)
            if isinstance(owner, Rows):
                return owner.rows
        external = callee.name if isinstance(callee, ExternalVal) else ""
        last = external.rpartition(".")[2]
        if last == CONTEXT_GETTER and self.context is not None:
            return Tup((*self.context, DATA, DATA))
        if last == FORWARD_CONTEXT_GETTER:
            return Special.FORWARD_CONTEXT
        if last == "cast" and len(args) == 2:
            return self._cast(node, args[1])
        if last in ("replace", "copy", "deepcopy") and args and isinstance(args[0], Obj):
            merged = {**dict(args[0].values), **kwargs}
            return replace(args[0], values=tuple((name, bounded(merged[name])) for name in sorted(merged)))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and callee is not None:
            container = self.evaluate(node.func.value)
            if container is Special.METADATA_MAP:
                found = self.context_metadata()
                return replace(found, maybe_none=True) if isinstance(found, Obj) else found
        if isinstance(callee, Unknown) and callee.config:
            return CONFIG
        # Methods of objects that outlive a step mostly answer from the configuration.
        if isinstance(callee, FuncVal) and isinstance(callee.bound, Obj) and callee.bound.role is Role.PLAIN:
            return CONFIG
        if isinstance(callee, ExternalVal) and external.startswith("torch."):
            return DATA
        return Unknown(is_config(callee) and all(is_config(v) for v in values))

    def _cast(self, node: ast.Call, value: Value) -> Value:
        if isinstance(value, Obj) or not isinstance(value, Unknown):
            return value
        declared = read_annotation(node.args[0], self.frame.function.module, self.frame.function.owner)
        if len(declared.refs) == 1:
            role = Role.METADATA if is_metadata_class(declared.refs[0].cls) else Role.PLAIN
            return value_of_type(declared, role, "", config=value.config)
        return value

    def _construct(
        self, callee: ClassVal, args: list[Value], kwargs: dict[str, Value], node: ast.Call, *, complete: bool
    ) -> Value:
        cls = callee.ref.cls
        if not is_metadata_class(cls):
            return Obj(callee.ref, Role.PLAIN)
        names = init_parameters(cls)
        values = dict(zip(names, args, strict=False))
        values.update(kwargs)
        pairs = tuple((name, bounded(values[name])) for name in sorted(values))
        self.events.constructs.append(Construct(cls, pairs, complete, self.frame.function, node))
        return Obj(callee.ref, Role.METADATA, values=pairs)

    def store(self, target: ast.Attribute, value: Value) -> None:
        """Report an attribute set on a metadata object."""
        base = self.evaluate(target.value)
        if isinstance(base, Obj) and base.role is Role.METADATA:
            self.events.stores.append(Store(base.ref.cls, target.attr, value, self.frame.function, target))


def init_parameters(cls: ClassInfo) -> list[str]:
    """Return the names that positional arguments of a class's constructor bind to."""
    found = cls.find_method("__init__")
    if found is not None:
        spec = found[1].args
        return [a.arg for a in [*spec.posonlyargs, *spec.args]][1:]
    names: dict[str, None] = {}
    for info in reversed(cls.mro):
        for name, field in info.own_fields.items():
            if (
                field.kind == "declared"
                and field.annotation is not None
                and "ClassVar" not in text_of(field.annotation)
            ):
                names.setdefault(name)
    return list(names)


def _returns_constant(node: FunctionNode) -> bool:
    """Return whether a function does nothing but return a constant."""
    *rest, last = node.body
    simple = all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in rest)
    return simple and isinstance(last, ast.Return) and isinstance(last.value, ast.Constant)
