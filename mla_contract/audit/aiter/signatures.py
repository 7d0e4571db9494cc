"""Signatures as source shows them, and the binding of call expressions to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mla_contract.audit.model.module import FunctionNode
from mla_contract.audit.model.nodes import text_of

TENSOR = "Tensor"
NUMBERS = frozenset({"int", "float", "bool"})
SCALARS = NUMBERS | {"str"}
TENSOR_METHODS = frozenset({"view", "reshape", "contiguous", "unsqueeze", "squeeze", "flatten", "transpose", "view_as"})
NUMBER_METHODS = frozenset({"numel", "dim", "stride", "size", "item"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: its name, the kind of value its annotation or default shows, and whether it may be left out."""

    name: str
    kind: str | None
    required: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes.

    Attributes:
        name: Its name.
        positional: Parameters that an argument may bind to by position.
        keyword_only: Parameters that only a keyword binds.
        positional_only: How many of the first ones no keyword binds.
        var_positional: Whether it takes any further positional arguments.
        var_keyword: Whether it takes any further keywords.
    """

    name: str
    positional: tuple[Parameter, ...]
    keyword_only: tuple[Parameter, ...]
    positional_only: int
    var_positional: bool
    var_keyword: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that a keyword may bind."""
        return tuple(p.name for p in (*self.positional[self.positional_only :], *self.keyword_only))


@dataclass(slots=True)
class Arguments:
    """What a call passes.

    Attributes:
        positional: Positional arguments in order.
        keywords: Keywords with their values.
        maybe: Keywords that are passed under a condition, with the condition as written.
        open_positional: Whether an unpacked sequence may add positional arguments.
        open_keywords: Whether an unpacked mapping may add keywords that the source does not show.
    """

    positional: list[ast.expr] = field(default_factory=list)
    keywords: dict[str, ast.expr | None] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)
    open_positional: bool = False
    open_keywords: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One way in which a call does not fit: the argument or parameter, a sentence, the condition it stands under."""

    name: str
    text: str
    condition: str | None = None


def read_signature(node: FunctionNode, *, bound: bool = False) -> Signature:
    """Return the signature of a definition.

    Args:
        node: The definition.
        bound: Whether the first parameter is the instance or class.
    """
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults)
    found = [_parameter(a, d) for a, d in zip(positional, defaults, strict=True)]
    skip = 1 if bound and found else 0
    return Signature(
        name=node.name,
        positional=tuple(found[skip:]),
        keyword_only=tuple(_parameter(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)),
        positional_only=max(0, len(spec.posonlyargs) - skip),
        var_positional=spec.vararg is not None,
        var_keyword=spec.kwarg is not None,
    )


def bind(signature: Signature, arguments: Arguments, kinds: Mapping[str, str]) -> Iterator[Mismatch]:
    """Yield every way in which a call does not fit a signature.

    Args:
        signature: What is called.
        arguments: What the call passes.
        kinds: Kinds of the caller's local names, as their annotations show.
    """
    given = len(arguments.positional)
    limit = len(signature.positional)
    if given > limit and not signature.var_positional:
        yield Mismatch(signature.name, f"takes {limit} positional arguments, gets {given}")
    by_position = {p.name for p in signature.positional[:given]}
    for name in (*arguments.keywords, *arguments.maybe):
        condition = arguments.maybe.get(name)
        if name in by_position and name in signature.names:
            yield Mismatch(name, f"gets {name!r} twice, by position and by keyword", condition)
        elif name not in signature.names and not signature.var_keyword:
            yield Mismatch(name, f"has no parameter {name!r}", condition)
    if not arguments.open_positional and not arguments.open_keywords:
        bound = by_position | arguments.keywords.keys() | arguments.maybe.keys()
        for parameter in (*signature.positional[given:], *signature.keyword_only):
            if parameter.required and parameter.name not in bound:
                yield Mismatch(parameter.name, f"requires {parameter.name!r}, which the call does not pass")
    yield from _changed_meaning(signature, arguments, kinds)


def kind_of(node: ast.expr, kinds: Mapping[str, str]) -> str | None:
    """Return the kind of value that an expression certainly has: ``Tensor``, a scalar type, or None if unknown."""
    if isinstance(node, ast.Constant):
        return type(node.value).__name__ if isinstance(node.value, bool | int | float | str) else None
    if isinstance(node, ast.Name):
        return kinds.get(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in TENSOR_METHODS:
            return TENSOR
        if node.func.attr in NUMBER_METHODS and (node.args or node.func.attr in ("numel", "dim", "item")):
            return "int" if node.func.attr != "item" else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return None if isinstance(node.slice, ast.Slice) else "int"
    return None


def annotated_kinds(function: FunctionNode) -> dict[str, str]:
    """Return the kinds of the parameters of a function, as their annotations show."""
    spec = function.args
    found: dict[str, str] = {}
    for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        kind = _annotation_kind(argument.annotation)
        if kind is not None:
            found[argument.arg] = kind
    return found


def _changed_meaning(signature: Signature, arguments: Arguments, kinds: Mapping[str, str]) -> Iterator[Mismatch]:
    pairs = [(p, a) for p, a in zip(signature.positional, arguments.positional, strict=False)]
    by_name = {p.name: p for p in (*signature.positional, *signature.keyword_only)}
    given = {p.name: _terminal(a) for p, a in pairs} | {n: _terminal(a) for n, a in arguments.keywords.items() if a}
    for parameter, argument in pairs:
        name = _terminal(argument)
        if name != parameter.name and name in by_name and given.get(name) != name:
            yield Mismatch(parameter.name, f"binds {text_of(argument)} to {parameter.name!r}, not to {name!r}")
        elif _clash(kind_of(argument, kinds), parameter.kind):
            text = f"binds {text_of(argument)} to {parameter.name!r}, which is {_article(parameter.kind)}"
            yield Mismatch(parameter.name, text)
    for keyword, value in arguments.keywords.items():
        known = by_name.get(keyword)
        if known is not None and value is not None and _clash(kind_of(value, kinds), known.kind):
            yield Mismatch(keyword, f"gets {text_of(value)} as {keyword!r}, which is {_article(known.kind)}")


def _clash(given: str | None, wanted: str | None) -> bool:
    if given is None or wanted is None or given == wanted:
        return False
    if given in NUMBERS and wanted in NUMBERS:
        return given == "float" and wanted == "int"
    return (given == TENSOR) != (wanted == TENSOR) or "str" in (given, wanted)


def _parameter(argument: ast.arg, default: ast.expr | None) -> Parameter:
    kind = _annotation_kind(argument.annotation)
    if kind is None and argument.annotation is None and isinstance(default, ast.Constant):
        kind = kind_of(default, {})
    return Parameter(argument.arg, kind, default is None)


def _annotation_kind(node: ast.expr | None) -> str | None:
    """Return the one kind that an annotation admits beside None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _annotation_kind(ast.parse(node.value, mode="eval").body)
        except (SyntaxError, ValueError):
            return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [s for s in (node.left, node.right) if not (isinstance(s, ast.Constant) and s.value is None)]
        return _annotation_kind(sides[0]) if len(sides) == 1 else None
    if isinstance(node, ast.Subscript) and text_of(node.value).rpartition(".")[2] == "Optional":
        return _annotation_kind(node.slice)
    name = text_of(node).rpartition(".")[2] if isinstance(node, ast.Name | ast.Attribute) else ""
    return name if name in SCALARS or name == TENSOR else None


def _terminal(node: ast.expr) -> str:
    """Return the name of a variable or attribute, or of the one that an expression slices."""
    if isinstance(node, ast.Subscript):
        return _terminal(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _article(kind: str | None) -> str:
    return f"an {kind}" if kind == "int" else f"a {kind}"
