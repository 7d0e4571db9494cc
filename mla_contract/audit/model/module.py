"""One parsed source file: what names it binds at module level, and where they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_contract.audit.model.index import ModuleIndex

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Import:
    """A name that an import statement binds: ``module`` alone, or ``name`` of ``module``."""

    module: str
    name: str | None = None


Binding = ast.ClassDef | FunctionNode | Import | ast.expr


@dataclass(slots=True, eq=False)
class Module:
    """A source file and its module-level bindings.

    Attributes:
        name: Dotted module name.
        path: Path of the file in its tree.
        tree: Syntax tree.
        is_package: Whether the file is an ``__init__.py``.
        bindings: Module-level names, each with everything that binds it, in source order.
        stars: Modules imported with a star.
        index: The index that the module belongs to.
        lines: Source lines.
    """

    name: str
    path: str
    tree: ast.Module
    is_package: bool
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    index: ModuleIndex | None = field(default=None, repr=False)
    lines: list[str] = field(default_factory=list, repr=False)

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def parse_module(name: str, path: str, source: str) -> Module:
    """Parse a file and collect its module-level bindings.

    Raises:
        SyntaxError: The source does not parse.
    """
    tree = ast.parse(source, filename=path)
    module = Module(name, path, tree, path.endswith("__init__.py"), lines=source.splitlines())
    for statement in flat_statements(tree.body):
        _bind(module, statement)
    return module


def flat_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements of a scope, descending into blocks but not into functions or classes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from flat_statements(getattr(statement, name, None) or [])
        for handler in getattr(statement, "handlers", ()):
            yield from flat_statements(handler.body)
        for case in getattr(statement, "cases", ()):
            yield from flat_statements(case.body)


def dotted_name(expr: ast.expr) -> str:
    """Return the dotted name that an expression calls, subscripts or is; empty where it is not a name."""
    parts: list[str] = []
    while not isinstance(expr, ast.Name):
        if isinstance(expr, ast.Attribute):
            parts.append(expr.attr)
            expr = expr.value
        elif isinstance(expr, ast.Call):
            expr = expr.func
        elif isinstance(expr, ast.Subscript):
            expr = expr.value
        else:
            return ""
    return ".".join([expr.id, *reversed(parts)])


def imported_names(package: str, statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    """Yield the names that an import statement binds; a star comes as the name ``*``."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.asname, Import(alias.name)
            else:
                top = alias.name.partition(".")[0]
                yield top, Import(top)
        return
    base = statement.module or ""
    if statement.level:
        parts = package.split(".") if package else []
        parts = parts[: len(parts) - (statement.level - 1)]
        base = ".".join([*parts, base] if base else parts)
    for alias in statement.names:
        yield alias.asname or alias.name, Import(base, alias.name)


def _bind(module: Module, statement: ast.stmt) -> None:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        module.bindings.setdefault(statement.name, []).append(statement)
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for name, imported in imported_names(module.package, statement):
            if name == "*":
                module.stars.append(imported.module)
            else:
                module.bindings.setdefault(name, []).append(imported)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                module.bindings.setdefault(target.id, []).append(statement.value)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        module.bindings.setdefault(statement.target.id, []).append(statement.value)
