"""Expressions other than calls, attributes and tests."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mla_contract.audit.flow.attributes import Attributes
from mla_contract.audit.flow.conditions import Conditions
from mla_contract.audit.flow.values import (
    CONFIG,
    DATA,
    Const,
    FuncVal,
    Lin,
    Obj,
    Rows,
    RowShape,
    Seq,
    Special,
    Tup,
    Unknown,
    Value,
    bounded,
    combine,
    is_config,
    is_tracked,
    join,
    linear,
)
from mla_contract.audit.model.index import Function
from mla_contract.audit.model.module import Import


class Expressions(Conditions, Attributes):
    """Evaluates expressions."""

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression, reporting the reads in it."""
        evaluator = _EVALUATORS.get(type(node), Expressions._parts)
        return evaluator(self, node)

    def _constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr, node)

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)

    def _comparison(self, node: ast.Compare) -> Value:
        return self.test(node).value

    def _unary_op(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self.test(node).value
        value = self.evaluate(node.operand)
        number = linear(value)
        if isinstance(node.op, ast.USub) and number is not None:
            return combine(Lin(()), number, -1)
        return Unknown(is_config(value))

    def _display(self, node: ast.Tuple | ast.List) -> Value:
        items, whole = self.items(node.elts)
        return Tup(items) if whole else Seq(_element(items))

    def _named_expr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _wrapped(self, node: ast.Starred | ast.Await) -> Value:
        return self.evaluate(node.value)

    def _parts(self, node: ast.expr) -> Value:
        """Evaluate the parts of an expression whose own value is not followed."""
        values = [self.evaluate(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Unknown(all(is_config(v) for v in values))

    def _dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            if key is not None:
                self.evaluate(key)
        values = tuple(self.evaluate(value) for value in node.values)
        return Seq(_element(values)) if values else Tup(())

    def _name(self, node: ast.Name) -> Value:
        name, frame = node.id, self.frame
        if name in frame.env:
            return frame.env[name]
        if name in frame.imports:
            return self._imported(frame.imports[name])
        owner = frame.function.owner
        if owner is not None and name == owner.node.name:
            return self.symbol_value(owner, name)
        return self.symbol_value(self.index.resolve(frame.function.module, name), name)

    def _imported(self, target: Import) -> Value:
        return self.symbol_value(self.index.resolve_import(target), target.name or target.module)

    def _bool_value(self, node: ast.BoolOp) -> Value:
        if isinstance(node.op, ast.Or) and len(node.values) == 2:
            left = self.evaluate(node.values[0])
            if isinstance(left, Obj) and is_tracked(left):
                # "metadata or other": the left side is taken only where it is not None.
                return join(replace(left, maybe_none=False), self.evaluate(node.values[1]))
        return self.test(node).value

    def _if_exp(self, node: ast.IfExp) -> Value:
        outcome = self.test(node.test)
        if outcome.truth is not None:
            return self.evaluate(node.body if outcome.truth else node.orelse)
        saved = dict(self.frame.env)
        results: list[Value] = []
        for branch, expr in ((True, node.body), (False, node.orelse)):
            self.narrow(node.test, branch)
            with self.guarded(outcome.guard(node.test, branch)):
                results.append(self.evaluate(expr))
            self.frame.env = dict(saved)
        return join(*results)

    def _bin_op(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        a, b = linear(left), linear(right)
        if a is not None and b is not None:
            if isinstance(node.op, ast.Add | ast.Sub):
                return combine(a, b, 1 if isinstance(node.op, ast.Add) else -1)
            if isinstance(left, Const) and isinstance(right, Const):
                return CONFIG
        if isinstance(node.op, ast.Add) and isinstance(left, Tup | Seq) and isinstance(right, Tup | Seq):
            return join(left if isinstance(left, Seq) else Seq(_element(left.items)), right)
        return Unknown(is_config(left) and is_config(right))

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.evaluate(node.value)
        key = node.slice
        if isinstance(base, Tup):
            if (
                isinstance(key, ast.Constant)
                and isinstance(key.value, int)
                and -len(base.items) <= key.value < len(base.items)
            ):
                return base.items[key.value]
            self.evaluate(key)
            return base if isinstance(key, ast.Slice) else _element(base.items)
        if isinstance(base, Seq):
            self.evaluate(key)
            return base if isinstance(key, ast.Slice) else base.element
        if base is Special.METADATA_MAP:
            index = self.evaluate(key)
            return base if isinstance(index, Const) and isinstance(index.value, int) else self.context_metadata()
        if isinstance(base, RowShape):
            index = self.evaluate(key)
            return base.rows if index == Const(0) else CONFIG
        if isinstance(base, Unknown | Rows):
            first = key.elts[0] if isinstance(key, ast.Tuple) and key.elts else key
            self.evaluate(key)
            if isinstance(first, ast.Slice) and first.lower is None and first.step is None and first.upper is not None:
                rows = linear(self.evaluate(first.upper))
                if rows is not None and not (isinstance(base, Unknown) and base.config):
                    return Rows(rows)
            return Unknown(isinstance(base, Unknown) and base.config)
        self.evaluate(key)
        return Unknown(is_config(base))

    def context_metadata(self) -> Value:
        """Return the metadata that the forward context holds for the layer at hand."""
        return self.context[0] if self.context else DATA

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        saved = dict(self.frame.env)
        pushed = 0
        for generator in node.generators:
            self.assign(generator.target, self.element_of(self.evaluate(generator.iter)))
            for condition in generator.ifs:
                outcome = self.test(condition)
                self.narrow(condition, True)
                guard = outcome.guard(condition, True)
                if guard is not None:
                    self.guards.append(guard)
                    pushed += 1
        if isinstance(node, ast.DictComp):
            self.evaluate(node.key)
            element = self.evaluate(node.value)
        else:
            element = self.evaluate(node.elt)
        for _ in range(pushed):
            self.guards.pop()
        self.restore(saved, node)
        return Seq(element)

    def _lambda(self, node: ast.Lambda) -> Value:
        """Report the reads in a lambda where it stands: who calls it, and with what, is not followed."""
        saved = dict(self.frame.env)
        spec = node.args
        extra = [a for a in (spec.vararg, spec.kwarg) if a is not None]
        self.frame.env.update({a.arg: DATA for a in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *extra]})
        self.evaluate(node.body)
        self.restore(saved, node)
        return CONFIG

    def items(self, nodes: list[ast.expr]) -> tuple[tuple[Value, ...], bool]:
        """Return the values of a display or of arguments, starred ones unpacked, and whether their number is known."""
        found: list[Value] = []
        whole = True
        for node in nodes:
            value = bounded(self.evaluate(node))
            if not isinstance(node, ast.Starred):
                found.append(value)
            elif isinstance(value, Tup):
                found += value.items
            else:
                found.append(self.element_of(value))
                whole = False
        return tuple(found), whole

    def element_of(self, value: Value) -> Value:
        """Return what iterating over a value yields."""
        if isinstance(value, Seq):
            return value.element
        if isinstance(value, Tup):
            return _element(value.items)
        return Unknown(is_config(value))

    def closure(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Value:
        """Return a nested function as a value."""
        return FuncVal(Function(self.frame.function.module, node, self.frame.function.owner))


def _element(items: tuple[Value, ...]) -> Value:
    if not items:
        return DATA
    result = items[0]
    for item in items[1:]:
        result = join(result, item)
    return result


_EVALUATORS: Mapping[type[ast.expr], Callable[[Expressions, Any], Value]] = MappingProxyType(
    {
        ast.Name: Expressions._name,
        ast.Constant: Expressions._constant,
        ast.Attribute: Expressions._attribute,
        ast.Call: Expressions._call,
        ast.BoolOp: Expressions._bool_value,
        ast.Compare: Expressions._comparison,
        ast.IfExp: Expressions._if_exp,
        ast.BinOp: Expressions._bin_op,
        ast.UnaryOp: Expressions._unary_op,
        ast.Subscript: Expressions._subscript,
        ast.Tuple: Expressions._display,
        ast.List: Expressions._display,
        ast.Dict: Expressions._dict,
        ast.NamedExpr: Expressions._named_expr,
        ast.ListComp: Expressions._comprehension,
        ast.SetComp: Expressions._comprehension,
        ast.GeneratorExp: Expressions._comprehension,
        ast.DictComp: Expressions._comprehension,
        ast.Lambda: Expressions._lambda,
        ast.Starred: Expressions._wrapped,
        ast.Await: Expressions._wrapped,
    }
)
"""How each kind of expression is evaluated; of all others, the parts are."""
