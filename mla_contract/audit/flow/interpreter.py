"""Statements: runs a function on abstract values, taking every branch that its tests leave open."""

from __future__ import annotations

import ast

from mla_contract.audit.flow.calls import Calls
from mla_contract.audit.flow.values import DATA, Const, Seq, Tup, Value, is_tracked, join
from mla_contract.audit.model.module import imported_names
from mla_contract.audit.model.nodes import walk


class Interpreter(Calls):
    """Runs functions of a tree on abstract values and reports what happens to metadata."""

    def execute(self, body: list[ast.stmt]) -> bool:
        """Run statements; return whether control falls off their end."""
        depth = len(self.guards)
        falls = True
        for statement in body:
            if not self._survive(statement):
                falls = False
                break
        del self.guards[depth:]
        return falls

    def _survive(self, statement: ast.stmt) -> bool:
        """Run a statement; one that is nested deeper than Python can recurse is left out."""
        calls, guards, loops, tolerant = len(self.stack), len(self.guards), len(self.frame.jumps), self.tolerant
        try:
            return self._statement(statement)
        except RecursionError:
            del self.stack[calls:], self.guards[guards:], self.frame.jumps[loops:]
            self.tolerant = tolerant
            return True

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target."""
        if isinstance(target, ast.Name):
            self.frame.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Attribute):
            self.store(target, value)
        elif isinstance(target, ast.Subscript):
            self.evaluate(target.value)
            self.evaluate(target.slice)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        """Bind the targets of a display: by position up to a star, or where the lengths differ, as far as both go."""
        positional = value.items if isinstance(value, Tup) else ()
        for position, target in enumerate(targets):
            if isinstance(target, ast.Starred):
                positional = ()
                self.assign(target.value, Seq(self.element_of(value)))
            else:
                known = position < len(positional)
                self.assign(target, positional[position] if known else self.element_of(value))

    def _statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            self.evaluate(node.value)
        elif isinstance(node, ast.Assign):
            value = self.evaluate(node.value)
            for target in node.targets:
                self.assign(target, value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                value = self._by_annotation(self.evaluate(node.value), node.annotation, self.frame.function)
                self.assign(node.target, value)
        elif isinstance(node, ast.AugAssign):
            load = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
            self.assign(node.target, self.evaluate(load))
        elif isinstance(node, ast.If):
            return self._if(node)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._loop(node.body, node.orelse, node.target, self.element_of(self.evaluate(node.iter)))
        elif isinstance(node, ast.While):
            outcome = self.test(node.test)
            if outcome.truth is not False:
                with self.guarded(outcome.guard(node.test, True)):
                    self._loop(node.body, node.orelse, None, DATA)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                value = self.evaluate(item.context_expr)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, value)
            return self.execute(node.body)
        elif isinstance(node, ast.Try | ast.TryStar):
            return self._try(node)
        elif isinstance(node, ast.Return):
            self.frame.returns.append(self.evaluate(node.value) if node.value is not None else Const(None))
            return False
        elif isinstance(node, ast.Raise):
            for part in (node.exc, node.cause):
                if part is not None:
                    self.evaluate(part)
            return False
        elif isinstance(node, ast.Assert):
            outcome = self.test(node.test)
            self.narrow(node.test, True)
            return outcome.truth is not False
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, imported in imported_names(self.frame.function.module.package, node):
                self.frame.env.pop(name, None)
                self.frame.imports[name] = imported
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.frame.env[node.name] = self.closure(node)
            used = sorted({n.id for n in walk(node) if isinstance(n, ast.Name)})
            self.closures[id(node)] = (self.frame, tuple(used))
        elif isinstance(node, ast.Match):
            return self._match(node)
        elif isinstance(node, ast.Break | ast.Continue):
            if self.frame.jumps:
                self.frame.jumps[-1].append(dict(self.frame.env))
            return False
        return True

    def _if(self, node: ast.If) -> bool:
        outcome = self.test(node.test)
        if outcome.truth is not None:
            self.narrow(node.test, outcome.truth)
            return self.execute(node.body if outcome.truth else node.orelse)
        before = dict(self.frame.env)
        ends: list[dict[str, Value]] = []
        survivors: list[bool] = []
        for branch, body in ((True, node.body), (False, node.orelse)):
            self.frame.env = dict(before)
            self.narrow(node.test, branch)
            with self.guarded(outcome.guard(node.test, branch)):
                falls = self.execute(body)
            if falls:
                ends.append(self.frame.env)
                survivors.append(branch)
        if not ends:
            return False
        self.frame.env = ends[0] if len(ends) == 1 else _merge(*ends)
        if len(ends) == 1:
            # The other branch has left the block, so the condition holds for the rest of the block.
            guard = outcome.guard(node.test, survivors[0])
            if guard is not None:
                self.guards.append(guard)
        return True

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt], target: ast.expr | None, element: Value) -> None:
        """Run a loop body, a second time where the first pass left a tracked value that the body may meet."""
        # Two passes carry a value once around, as in "chunk = first; for ...: use(chunk); chunk = next". A third would
        # matter to chains of such hand-overs alone, and every nested loop multiplies the passes.
        for _ in range(2):
            before = dict(self.frame.env)
            jumps: list[dict[str, Value]] = []
            self.frame.jumps.append(jumps)
            if target is not None:
                self.assign(target, element)
            self.execute(body)
            self.frame.jumps.pop()
            # Not once, to the end, or left at a break or continue.
            self.frame.env = _merge(before, self.frame.env, *jumps)
            if not any(is_tracked(v) and n in before and not is_tracked(before[n]) for n, v in self.frame.env.items()):
                break
        self.execute(orelse)

    def _try(self, node: ast.Try | ast.TryStar) -> bool:
        before = dict(self.frame.env)
        self.tolerant += (tolerant := any(_catches_attribute_error(h.type) for h in node.handlers))
        falls = self.execute(node.body)
        self.tolerant -= tolerant
        falls = falls and self.execute(node.orelse)
        ends = [self.frame.env] if falls else []
        # The body may have been left after any of its statements: what it began with and what it ended with stand for
        # all of them.
        start = _merge(before, self.frame.env)
        for handler in node.handlers:
            self.frame.env = dict(start)
            if self.execute(handler.body):
                ends.append(self.frame.env)
        self.frame.env = _merge(*ends) if ends else start
        return self.execute(node.finalbody) and bool(ends)

    def _match(self, node: ast.Match) -> bool:
        subject = self.evaluate(node.subject)
        before = dict(self.frame.env)
        ends: list[dict[str, Value]] = []
        open_ended = True
        for case in node.cases:
            self.frame.env = dict(before)
            outcomes = [(test, self.test(test)) for test in _case_tests(node.subject, case.pattern)]
            if any(outcome.truth is False for _, outcome in outcomes):
                continue
            for test, _ in outcomes:
                self.narrow(test, True)
            self._bind_pattern(case.pattern, self.evaluate(node.subject) if outcomes else subject)
            if case.guard is not None:
                outcomes.append((case.guard, self.test(case.guard)))
                self.narrow(case.guard, True)
            depth = len(self.guards)
            for test, outcome in outcomes:
                guard = outcome.guard(test, True)
                self.guards += [guard] if guard is not None else []
            if self.execute(case.body):
                ends.append(self.frame.env)
            del self.guards[depth:]
            if _is_irrefutable(case.pattern) and case.guard is None:
                open_ended = False
                break
        if open_ended:
            ends.append(before)
        self.frame.env = _merge(*ends) if ends else before
        return bool(ends)

    def _bind_pattern(self, pattern: ast.pattern, subject: Value) -> None:
        for inner in walk(pattern):
            if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name is not None:
                self.frame.env[inner.name] = DATA
            elif isinstance(inner, ast.MatchMapping) and inner.rest is not None:
                self.frame.env[inner.rest] = DATA
        if isinstance(pattern, ast.MatchAs) and pattern.name is not None:
            self.frame.env[pattern.name] = subject


def _case_tests(subject: ast.expr, pattern: ast.pattern) -> list[ast.expr]:
    """Return the tests that a pattern makes of its subject, as far as they are tests of its class."""
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
        return _case_tests(subject, pattern.pattern)
    if isinstance(pattern, ast.MatchClass):
        test = ast.Call(ast.Name("isinstance", ast.Load()), [subject, pattern.cls], [])
        return [ast.copy_location(test, subject)]
    return []


def _is_irrefutable(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and (pattern.pattern is None or _is_irrefutable(pattern.pattern))


def _catches_attribute_error(caught: ast.expr | None) -> bool:
    """Return whether a handler names AttributeError: what it guards expects that an attribute may be missing."""
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(n, ast.Name) and n.id == "AttributeError" for n in names)


def _merge(first: dict[str, Value], *others: dict[str, Value]) -> dict[str, Value]:
    """Return the environment after branches that meet."""
    merged = dict(first)
    for env in others:
        for name in {*merged, *env}:
            left, right = merged.get(name), env.get(name)
            if left is None or right is None:
                # Whoever reads a name that one branch alone binds has come by that branch.
                merged[name] = left or right or DATA
            else:
                merged[name] = join(left, right)
    return merged


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    return target
