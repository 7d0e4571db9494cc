"""Tests: what is known of their outcome, and which outcome takes a capability."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache

from mla_contract.audit.flow.events import Guard
from mla_contract.audit.flow.machine import Machine
from mla_contract.audit.flow.values import (
    ClassVal,
    Const,
    Lin,
    Obj,
    Role,
    Special,
    Tup,
    Unknown,
    Value,
    combine,
    is_config,
    linear,
)
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.model.types import TypeRef

# "is not None", "> 1" and "in" ask for something that somebody turned on; these ask for its absence.
NEGATIVE_COMPARES = (ast.Is, ast.LtE, ast.Lt, ast.NotEq, ast.NotIn)


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """What is known of a test.

    Attributes:
        truth: Its outcome, None where it is open.
        config: Whether an open outcome is settled by the configuration, not by the batch.
        capable: The outcome that takes a capability to be configured.
    """

    truth: bool | None
    config: bool = False
    capable: bool = True

    def guard(self, test: ast.expr, branch: bool) -> Guard | None:
        """Return the guard of a branch of this test, None where the branch is certain."""
        if self.truth is not None:
            return None
        return Guard(guard_text(test, branch), self.config and branch == self.capable)

    @property
    def value(self) -> Value:
        """Return the outcome as a value."""
        return Unknown(self.config) if self.truth is None else Const(self.truth)


@lru_cache(maxsize=16_384)
def guard_text(test: ast.expr, branch: bool) -> str:
    """Return the text of a branch's condition; kept, because one test is met on many runs."""
    if not branch:
        return negated(test)
    text = text_of(test)
    return f"({text})" if isinstance(test, ast.BoolOp | ast.IfExp) else text


def negated(test: ast.expr) -> str:
    """Return the text of the negation of a test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return text_of(test.operand)
    opposite = {
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Gt: ast.LtE,
        ast.LtE: ast.Gt,
    }
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in opposite:
        return text_of(ast.Compare(test.left, [opposite[type(test.ops[0])]()], test.comparators))
    text = text_of(test)
    return f"not ({text})" if isinstance(test, ast.BoolOp | ast.Compare | ast.IfExp) else f"not {text}"


class Conditions(Machine):
    """Evaluates tests."""

    def test(self, node: ast.expr) -> KnownTruth:
        """Return what is known of a test, reporting the reads in it."""
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand)
            truth = None if inner.truth is None else not inner.truth
            return KnownTruth(truth, inner.config, not inner.capable)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        return self.truth_of(self.evaluate(node))

    def truth_of(self, value: Value) -> KnownTruth:
        """Return what is known of the truth of a value."""
        if isinstance(value, Const):
            return KnownTruth(bool(value.value))
        if isinstance(value, Obj):
            if value.maybe_none:
                return KnownTruth(None, value.role not in (Role.METADATA, Role.BATCH))
            return KnownTruth(
                None if value.ref.cls.find_method("__bool__") or value.ref.cls.find_method("__len__") else True
            )
        return KnownTruth(None, is_config(value))

    def _bool_op(self, node: ast.BoolOp) -> KnownTruth:
        """Evaluate operands in order, each under those before it; report what stays open."""
        conjunction = isinstance(node.op, ast.And)
        saved = dict(self.frame.env)
        open_outcomes: list[KnownTruth] = []
        pushed = 0
        settled: bool | None = None
        for operand in node.values:
            outcome = self.test(operand)
            if outcome.truth is not None:
                if outcome.truth is not conjunction:
                    settled = outcome.truth
                    break
                continue
            open_outcomes.append(outcome)
            self.narrow(operand, conjunction)
            guard = outcome.guard(operand, conjunction)
            if guard is not None:
                self.guards.append(guard)
                pushed += 1
        for _ in range(pushed):
            self.guards.pop()
        # What the operands narrowed holds for one outcome only; whoever takes a branch narrows again.
        self.restore(saved, node)
        if settled is not None:
            return KnownTruth(settled)
        if not open_outcomes:
            return KnownTruth(conjunction)
        # One operand that takes a capability makes the conjunction take it. A disjunction takes it where it fails: all
        # of its operands do then, that one included.
        takes = [o for o in open_outcomes if o.config and o.capable is conjunction]
        if conjunction:
            return (
                KnownTruth(None, bool(takes), True)
                if takes
                else KnownTruth(None, all(o.config for o in open_outcomes), False)
            )
        if takes:
            return KnownTruth(None, True, False)
        return KnownTruth(None, all(o.config for o in open_outcomes), True)

    def _compare(self, node: ast.Compare) -> KnownTruth:
        operands = [self.evaluate(node.left), *(self.evaluate(c) for c in node.comparators)]
        if len(node.ops) != 1:
            return KnownTruth(None, all(is_config(v) for v in operands))
        left, right = operands
        op = node.ops[0]
        truth = _decide(op, left, right)
        capable = not isinstance(op, NEGATIVE_COMPARES)
        if isinstance(op, ast.Eq | ast.NotEq) and any(_is_unit(v) for v in operands):
            capable = not capable
        return KnownTruth(truth, _settled_by_config(op, left, right), capable)

    def narrow(self, test: ast.expr, truth: bool) -> None:
        """Refine names by the outcome of a test."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.narrow(test.operand, not truth)
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is truth:
            for operand in test.values:
                self.narrow(operand, truth)
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance":
            if truth and len(test.args) == 2 and (name := _bound_name(test.args[0])):
                self._narrow_to_class(name, test.args[1])
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and (name := _bound_name(test.left)):
            none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
            value = self.frame.env.get(name)
            if none and value is not None:
                is_none = isinstance(test.ops[0], ast.Is) is truth
                if is_none and isinstance(test.ops[0], ast.Is | ast.IsNot):
                    self.frame.env[name] = Const(None)
                elif isinstance(value, Obj):
                    self.frame.env[name] = replace(value, maybe_none=False)
        elif name := _bound_name(test):
            value = self.frame.env.get(name)
            if truth and isinstance(value, Obj):
                self.frame.env[name] = replace(value, maybe_none=False)

    def _narrow_to_class(self, name: str, classes: ast.expr) -> None:
        value = self.frame.env.get(name)
        targets = self.class_operands(classes)
        if len(targets) != 1 or value is None:
            return
        target = targets[0]
        if isinstance(value, Obj):
            # A test for an unrelated class is left alone: the object may be of a class that derives from both.
            if target.is_subclass_of(value.ref.cls) and target is not value.ref.cls:
                self.frame.env[name] = replace(value, ref=TypeRef(target), maybe_none=False, exact=False)
            else:
                self.frame.env[name] = replace(value, maybe_none=False)
        elif isinstance(value, Unknown | Special):
            role = Role.METADATA if is_metadata_class(target) else Role.PLAIN
            self.frame.env[name] = Obj(TypeRef(target), role, exact=False)

    def class_operands(self, node: ast.expr) -> list[ClassInfo]:
        """Return the classes of the tree that an isinstance test names; empty where one is not of the tree."""
        value = self.evaluate(node)
        values = value.items if isinstance(value, Tup) else (value,)
        found = [v.ref.cls for v in values if isinstance(v, ClassVal)]
        return found if len(found) == len(values) else []


def _bound_name(node: ast.expr) -> str | None:
    """Return the name that an expression is, or that it binds by an assignment expression."""
    if isinstance(node, ast.NamedExpr):
        return node.target.id
    return node.id if isinstance(node, ast.Name) else None


def is_metadata_class(cls: ClassInfo) -> bool:
    """Return whether a class looks like attention metadata: by its base or by its name."""
    return "AttentionMetadata" in cls.base_names or cls.node.name.endswith("Metadata")


def _decide(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    if isinstance(op, ast.Is | ast.IsNot):
        same = _identical(left, right)
        return None if same is None else same is isinstance(op, ast.Is)
    if isinstance(left, Const) and isinstance(right, Const):
        return _compare_constants(op, left.value, right.value)
    a, b = linear(left), linear(right)
    if a is not None and b is not None and not isinstance(op, ast.In | ast.NotIn):
        difference = combine(a, b, -1)
        if isinstance(difference, Const):
            return _compare_constants(op, difference.value, 0)
    return None


def _identical(left: Value, right: Value) -> bool | None:
    for one, other in ((left, right), (right, left)):
        if one == Const(None):
            if isinstance(other, Const):
                return other.value is None
            if isinstance(other, Obj):
                return None if other.maybe_none else False
            if isinstance(other, ClassVal | Lin | Tup):
                return False
    if isinstance(left, Const) and isinstance(right, Const):
        return left.value is right.value
    return None


def _compare_constants(op: ast.cmpop, left: object, right: object) -> bool | None:
    if isinstance(op, ast.Eq):
        return left == right
    if isinstance(op, ast.NotEq):
        return left != right
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(op, ast.Lt):
            return left < right
        if isinstance(op, ast.LtE):
            return left <= right
        if isinstance(op, ast.Gt):
            return left > right
        if isinstance(op, ast.GtE):
            return left >= right
    return None


def _is_unit(value: Value) -> bool:
    """Return whether a value is 0 or 1: a size that equals it is the plain case, and another one takes a capability."""
    return isinstance(value, Const) and type(value.value) is int and value.value in (0, 1)


def _settled_by_config(op: ast.cmpop, left: Value, right: Value) -> bool:
    if isinstance(op, ast.Is | ast.IsNot):
        others = [v for v in (left, right) if v != Const(None)]
        return all(is_config(v) for v in others)
    return is_config(left) and is_config(right)
