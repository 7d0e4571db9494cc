"""The abstract runs: values and their arithmetic, tests and guards, branches, loops, calls and containers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mla_contract.audit.flow.calls import init_parameters
from mla_contract.audit.flow.conditions import is_metadata_class, negated
from mla_contract.audit.flow.events import Events, Guard
from mla_contract.audit.flow.interpreter import Interpreter
from mla_contract.audit.flow.machine import Machine
from mla_contract.audit.flow.runs import BuilderRun, batch_class, find_entries, run_builder, run_layer, unguarded_first
from mla_contract.audit.flow.values import (
    CONFIG,
    DATA,
    MAX_NESTING,
    ClassVal,
    Const,
    Lin,
    Obj,
    Role,
    Rows,
    RowShape,
    Seq,
    Special,
    Tup,
    Value,
    bounded,
    combine,
    is_config,
    is_tracked,
    join,
    linear,
    value_of_type,
)
from mla_contract.audit.model.backends import find_backends
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.types import DeclaredType, TypeRef
from mla_contract.audit.project import open_project
from tests.audit.test_traps import memory_tree, trap_files

CLASSES = """
import torch
from typing import cast
from vllm.v1.attention.backend import AttentionMetadata, CommonAttentionMetadata
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention.attention import get_attention_context

LIMIT = 4

class PartMetadata:
    rows: list[int]

class Meta(AttentionMetadata):
    num: int
    part: PartMetadata
    maybe: "PartMetadata | None"
    parts: list[PartMetadata]
    pair: tuple[int, PartMetadata]
    @property
    def first(self) -> PartMetadata: return self.parts[0]
    def chosen(self) -> PartMetadata: return self.parts[1]

class SubMeta(Meta):
    extra: int

class OtherMeta(AttentionMetadata):
    other: int

class Config:
    wide: bool = False
    size = 7
    def is_wide(self): return False
    def count(self): return LIMIT
    def __init__(self): self.size = 8
class WideConfig(Config):
    wide = True
    def is_wide(self): return True
"""
LIN = Lin((("n", 1),))


def index_of(body: str = "") -> ModuleIndex:
    """Return the index of the skeleton with a module ``vllm.probe``."""
    return ModuleIndex(memory_tree({**trap_files("skeleton"), "vllm/probe.py": CLASSES + body}))


def cls(index: ModuleIndex, name: str) -> ClassInfo:
    """Return a class of the probe."""
    module = index.get("vllm.probe")
    assert module is not None
    return next(info for info in index.classes(module) if info.name == name)


def function(index: ModuleIndex, name: str = "f") -> Function:
    """Return a function of the probe."""
    module = index.get("vllm.probe")
    assert module is not None
    return next(f for f in index.functions(module) if f.node.name == name and f.owner is None)


def run(source: str, *, maybe_none: bool = False, given: dict[str, Value] | None = None) -> tuple[Value, Events]:
    """Run ``f(m, ...)`` on metadata of the class Meta; return its value and what it reported."""
    index = index_of(source)
    meta = Obj(TypeRef(cls(index, "Meta")), Role.METADATA, maybe_none=maybe_none)
    layer = Obj(TypeRef(cls(index, "Config")), Role.LAYER)
    machine = Interpreter(index, None, (meta, layer))
    found = function(index)
    arguments: dict[str, Value] = {a.arg: DATA for a in found.node.args.args}
    arguments |= {"m": meta, "n": LIN, **(given or {})}
    value = machine.run(found, **{a.arg: arguments[a.arg] for a in found.node.args.args})
    assert machine.stack == [] and machine.guards == [] and machine.tolerant == 0
    return value, machine.events


def reads(source: str, **given: Value) -> list[str]:
    """Return the paths that ``f`` reads of its metadata, missing ones marked."""
    return [f"{r.path}{'!' if r.missing else ''}" for r in run(source, given=given)[1].reads if not r.batch]


@pytest.mark.parametrize(
    ("left", "right", "sign", "expected"),
    [
        (Lin((("a", 1),)), Lin((("a", 1),)), -1, Const(0)),
        (Lin((("a", 1),), 3), Lin((("b", 2),), 1), 1, Lin((("a", 1), ("b", 2)), 4)),
        (Lin((("a", 1), ("b", 1))), Lin((("b", 1),)), -1, Lin((("a", 1),))),
        (Lin((), 2), Lin((), 5), -1, Const(-3)),
    ],
)
def test_combine_linear_forms_add_and_cancel(left: Lin, right: Lin, sign: int, expected: Value) -> None:
    """Terms of one symbol add up, and a sum without symbols is a constant."""
    assert combine(left, right, sign) == expected


def test_linear_only_integers_have_a_form() -> None:
    """Integers and their sums have a linear form, other constants do not."""
    assert linear(Const(3)) == Lin((), 3)
    assert linear(LIN) is LIN
    assert linear(Const("x")) is None
    assert linear(DATA) is None


def test_join_keeps_what_both_values_share() -> None:
    """What is known of either of two values is what holds for both."""
    index = index_of()
    meta, sub, other = (Obj(TypeRef(cls(index, name)), Role.METADATA) for name in ("Meta", "SubMeta", "OtherMeta"))
    assert join(Const(1), Const(1)) == Const(1)
    assert join(Const(1), Const(2)) == CONFIG
    assert join(Const(1), DATA) == DATA
    nullable = join(meta, Const(None))
    assert isinstance(nullable, Obj)
    assert nullable.maybe_none
    assert join(Const(None), meta) == nullable
    assert join(meta, DATA) == meta
    assert join(Special.METADATA_MAP, meta) == meta
    wider = join(sub, meta)
    assert isinstance(wider, Obj)
    assert wider.ref == meta.ref
    assert not wider.exact
    assert join(meta, sub) == wider
    assert join(meta, other) == DATA
    assert join(Tup((Const(1), meta)), Tup((Const(1), meta))) == Tup((Const(1), meta))
    assert join(Tup((Const(1), meta)), Tup((Const(1), Const(None)))) == Tup((Const(1), nullable))
    assert join(Seq(meta), Seq(Const(None))) == Seq(nullable)
    assert join(Tup(()), Seq(meta)) == Seq(meta)
    one, two = (Obj(meta.ref, Role.METADATA, values=(("num", v), ("part", DATA))) for v in (Const(1), Const(2)))
    assert join(one, two) == Obj(meta.ref, Role.METADATA, values=(("part", DATA),))


def test_is_config_and_is_tracked_tell_batches_from_settings() -> None:
    """Metadata varies from batch to batch and is followed, a layer or a class does not and is not."""
    index = index_of()
    meta = Obj(TypeRef(cls(index, "Meta")), Role.METADATA)
    layer = Obj(TypeRef(cls(index, "Config")), Role.LAYER)
    assert [is_config(v) for v in (meta, layer, Const(1), CONFIG, DATA, Tup((layer, Const(1))), Tup((meta,)), LIN)] == [
        *(False, True, True, True, False, True, False, False),
    ]
    assert [is_tracked(v) for v in (meta, layer, Tup((Const(1), meta)), Seq(meta), Special.METADATA_MAP, DATA)] == [
        *(True, False, True, True, True, False),
    ]


def test_bounded_deep_values_are_cut() -> None:
    """A value nested too deep is forgotten, an object only loses what its attributes are known to be."""
    index = index_of()
    meta = Obj(TypeRef(cls(index, "Meta")), Role.METADATA)
    deep: Value = meta
    for _ in range(MAX_NESTING):
        deep = Tup((deep,))
    assert bounded(deep) == DATA
    assert isinstance(deep, Tup)
    assert bounded(deep.items[0].items[0]) == deep.items[0].items[0]  # type: ignore[union-attr]
    holder = Obj(meta.ref, Role.METADATA, values=(("part", Seq(Rows(deep))),))
    assert bounded(holder) == meta


def test_value_of_shape_forms_give_values() -> None:
    """Classes, tuples and containers of an annotation become values, several classes become an unknown."""
    index = index_of()
    meta, other = TypeRef(cls(index, "Meta")), TypeRef(cls(index, "OtherMeta"))

    def value(shape: DeclaredType) -> Value:
        return value_of_type(shape, Role.METADATA, "p", config=False)

    assert value(DeclaredType((meta,), optional=True)) == Obj(meta, Role.METADATA, "p", maybe_none=True, exact=False)
    assert value(DeclaredType((meta,), class_of=True)) == ClassVal(meta)
    assert value(DeclaredType((meta, other))) == DATA
    element = Obj(meta, Role.METADATA, "p[]", exact=False)
    assert value(DeclaredType(element=DeclaredType((meta,)))) == Seq(element)
    assert value(DeclaredType(items=(DeclaredType(scalar="int"), DeclaredType((meta,))))) == Tup((DATA, element))
    assert value_of_type(DeclaredType(), Role.PLAIN, "", config=True) == CONFIG


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2", Const(3)),
        ("n - n", Const(0)),
        ("n + 1 - n", Const(1)),
        ("-n + n", Const(0)),
        ("2 * 3", CONFIG),
        ("n > n", Const(False)),
        ("n >= n", Const(True)),
        ("n + 1 > n", Const(True)),
        ("n < n", Const(False)),
        ("n <= n", Const(True)),
        ("n == n", Const(True)),
        ("n != n", Const(False)),
        ("n > 1", DATA),
        ("1 < 2 < 3", CONFIG),
        ("'a' == 'a'", Const(True)),
        ("'a' != 'a'", Const(False)),
        ("'a' in q", DATA),
        ("not 1", Const(False)),
        ("1 and 0", Const(False)),
        ("0 or 1", Const(True)),
        ("1 and q", DATA),
        ("None is None", Const(True)),
        ("m is None", Const(False)),
        ("m is not None", Const(True)),
        ("(1, 2) is None", Const(False)),
        ("q is None", DATA),
        ("1 is 1", Const(True)),
        ("1 if 1 else 2", Const(1)),
        ("1 if q else 1", Const(1)),
        ("(1, 2)[0]", Const(1)),
        ("[1, 1][q]", Const(1)),
        ("(1, 2)[5]", CONFIG),
        ("{'a': 1}['b']", Const(1)),
        ("{}", Tup(())),
        ("q[:n]", Rows(LIN)),
        ("q[:n, ...]", Rows(LIN)),
        ("q[:n].shape", RowShape(LIN)),
        ("q[:n].shape[0]", LIN),
        ("q[:n].shape[1]", CONFIG),
        ("q[:n].size(0)", LIN),
        ("q[:n].dtype", CONFIG),
        ("q[1:n]", DATA),
        ("q[0]", DATA),
        ("int(n)", LIN),
        ("LIMIT", Const(4)),
        ("Config.size", CONFIG),
        ("Config().is_wide()", Const(False)),
        ("Config().wide", Const(False)),
        ("Config().count()", Const(4)),
        ("Config().size", CONFIG),
        ("hasattr(m, 'num')", Const(True)),
        ("hasattr(m, 'nothing')", Const(False)),
        ("hasattr(q, 'nothing')", DATA),
        ("getattr(m, 'nothing', 5)", Const(5)),
        ("getattr(m, q, 5)", DATA),
        ("isinstance(m, Meta)", Const(True)),
        ("isinstance(m, (OtherMeta, Meta))", Const(True)),
        ("isinstance(m, OtherMeta)", Const(False)),
        ("isinstance(m, dict)", DATA),
        ("isinstance(q, Meta)", DATA),
        ("lambda: 1", CONFIG),
        ("torch.zeros(1)", DATA),
        ("f'{n}'", DATA),
        ("~1", CONFIG),
    ],
)
def test_evaluate_expression_gives_value(expression: str, expected: Value) -> None:
    """What is known of an expression, for each kind of it."""
    assert run(f"def f(m, n, q):\n    return {expression}\n")[0] == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return m.part.rows", ["part", "part.rows"]),
        ("return m.nothing", ["nothing!"]),
        ("return m.part.nothing", ["part", "part.nothing!"]),
        ("return m.first.nothing", ["first", "first.nothing!"]),
        ("return m.chosen().nothing", ["chosen", "parts", "parts[].nothing!"]),
        ("return m.parts[0].nothing", ["parts", "parts[].nothing!"]),
        ("return m.pair[1].nothing", ["pair", "pair[].nothing!"]),
        ("return [p.nothing for p in m.parts]", ["parts", "parts[].nothing!"]),
        ("return getattr(m, 'nothing', None)", ["nothing!"]),
        ("return type(m).nothing", []),
        ("return m.__class__", []),
        ("m.fresh = 1\n    return 2", []),
        ("m.num += 1", ["num"]),
        ("x, y = m, 1\n    return x.nothing", ["nothing!"]),
        ("x, *y = [m, m]\n    return y[0].nothing", ["nothing!"]),
        ("[x, y] = q\n    return x.nothing", []),
        ("for i, x in enumerate(m.parts): x.nothing", ["parts", "parts[].nothing!"]),
        ("return sorted(m.parts, key=lambda p: m.nothing)[0].none", ["parts", "nothing!", "parts[].none!"]),
        ("del q\n    global z\n    return m.num", ["num"]),
        ("yield m.num", ["num"]),
        ("return (yield m.num)", ["num"]),
        ("return cast(Meta, q).nothing", ["nothing!"]),
        ("return cast(OtherMeta, m).nothing", ["nothing!"]),
        ("x = cast('Meta', q)\n    return x.nothing", ["nothing!"]),
        ("x: Meta = q\n    return x.nothing", ["nothing!"]),
        ("x: int\n    return 1", []),
        ("return (m or q).nothing", ["nothing!"]),
        ("return (m if q else None).nothing", ["nothing!"]),
        ("assert isinstance(q, Meta)\n    return q.nothing", ["nothing!"]),
        ("if not isinstance(q, Meta): return\n    return q.nothing", ["nothing!"]),
        ("if isinstance(m, SubMeta): return m.extra\n    return m.nothing", ["nothing!"]),
        ("q[m.num] = m.part", ["part", "num"]),
        ("x = (m, m) + (m,)\n    return x[0].nothing", ["nothing!"]),
        ("return [*(m, m)][0].nothing", ["nothing!"]),
        ("return get_attention_context('x')[0].nothing", ["nothing!"]),
        ("return get_forward_context().attn_metadata['x'].nothing", ["nothing!"]),
        ("return get_forward_context().attn_metadata.get('x').nothing", ["nothing!"]),
        ("return get_forward_context().attn_metadata[0]['x'].nothing", ["nothing!"]),
        ("return get_forward_context().slot_mapping['x'].nothing", []),
        ("return get_forward_context().other.nothing", []),
        ("try:\n        return m.nothing\n    except AttributeError:\n        return m.num", ["nothing!", "num"]),
    ],
)
def test_reads_of_metadata_are_reported(body: str, expected: list[str]) -> None:
    """Each way to reach an attribute of metadata reports it, with its path, and nothing else does."""
    assert reads(f"def f(m, n, q):\n    {body}\n") == expected


@pytest.mark.parametrize(
    ("body", "defaulted"),
    [
        ("return m.nothing", False),
        ("return getattr(m, 'nothing')", False),
        ("return getattr(m, 'nothing', 0)", True),
        ("return hasattr(m, 'nothing')", True),
        ("try:\n        return m.nothing\n    except (KeyError, AttributeError):\n        pass", True),
        ("try:\n        return m.nothing\n    except Exception:\n        pass", False),
        ("try:\n        pass\n    except AttributeError:\n        return m.nothing", False),
        ("try:\n        pass\n    except AttributeError:\n        pass\n    else:\n        return m.nothing", False),
    ],
)
def test_reads_with_a_default_are_marked(body: str, defaulted: bool) -> None:
    """A default, a hasattr and a handler of AttributeError expect that the attribute may be missing; others do not."""
    (read,) = run(f"def f(m):\n    {body}\n")[1].reads
    assert read.defaulted is defaulted


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if layer.flag: m.num", [("layer.flag", True)]),
        ("if not layer.flag: m.num", [("not layer.flag", False)]),
        ("if layer.flag: pass\n    else: m.num", [("not layer.flag", False)]),
        ("if layer.flag: return\n    m.num", [("not layer.flag", False)]),
        ("if not layer.flag: return\n    m.num", [("layer.flag", True)]),
        ("if layer.size > 1: m.num", [("layer.size > 1", True)]),
        ("if layer.size <= 1: return\n    m.num", [("layer.size > 1", True)]),
        ("if layer.size == 1: m.num", [("layer.size == 1", False)]),
        ("if layer.size == 1: return\n    m.num", [("layer.size != 1", True)]),
        ("if layer.size != 1: m.num", [("layer.size != 1", True)]),
        ("if layer.kind == 'a': m.num", [("layer.kind == 'a'", True)]),
        ("if layer.kind != 'a': m.num", [("layer.kind != 'a'", False)]),
        ("if layer.part is None: m.num", [("layer.part is None", False)]),
        ("if layer.part is not None: m.num", [("layer.part is not None", True)]),
        ("if q: m.num", [("q", False)]),
        ("if m.num > 1: m.num", [("m.num > 1", False)]),
        ("if q and layer.flag: m.num", [("(q and layer.flag)", True)]),
        ("if q or layer.flag: m.num", [("(q or layer.flag)", False)]),
        ("if layer.flag or layer.size > 1: m.num", [("(layer.flag or layer.size > 1)", True)]),
        ("x = layer.flag and m.num", [("layer.flag", True)]),
        ("x = layer.flag or m.num", [("not layer.flag", False)]),
        ("x = m.num if layer.flag else 0", [("layer.flag", True)]),
        ("x = 0 if layer.flag else m.num", [("not layer.flag", False)]),
        ("x = [m.num for y in q if layer.flag]", [("layer.flag", True)]),
        ("while layer.flag: m.num", [("layer.flag", True)]),
        ("for x in q:\n        if layer.flag: continue\n        m.num", [("not layer.flag", False)]),
        ("for x in q:\n        if layer.flag: continue\n    m.num", []),
        ("if 1: m.num", []),
        ("if m: m.num", []),
        ("if m is not None: m.num", []),
        ("assert layer.flag\n    m.num", []),
    ],
)
def test_guards_say_which_branch_takes_a_capability(body: str, expected: list[tuple[str, bool]]) -> None:
    """The side of a test that needs something configured is a capability, the plain side and batch data are not."""
    index = index_of(f"def f(m, q, layer):\n    {body}\n")
    meta = Obj(TypeRef(cls(index, "Meta")), Role.METADATA)
    machine = Interpreter(index, None, None)
    machine.run(function(index), m=meta, q=DATA, layer=CONFIG)
    assert [(g.text, g.capability) for g in machine.events.reads[-1].guards] == expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("not a", "a"),
        ("a is None", "a is not None"),
        ("a is not None", "a is None"),
        ("a == b", "a != b"),
        ("a > b", "a <= b"),
        ("a < b", "not (a < b)"),
        ("a and b", "not (a and b)"),
        ("a < b < c", "not (a < b < c)"),
        ("f(a)", "not f(a)"),
        ("a if b else c", "not (a if b else c)"),
    ],
)
def test_negated_test_reads_as_its_opposite(test: str, expected: str) -> None:
    """The other branch is written the way a programmer would."""
    assert negated(ast.parse(test, mode="eval").body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if m is None: return m.nothing\n    return m.num", ["num"]),
        ("if m is None: return 1\n    return m.nothing", ["nothing!"]),
        ("if m is not None: return m.num\n    return m.nothing", ["num"]),
        ("if not m: return 1\n    return m.num", ["num"]),
        ("if (x := m) is not None: return x.nothing", ["nothing!"]),
        ("if q and (x := m): return x.nothing", ["nothing!"]),
        ("x = m if q else None\n    if x: return x.nothing", ["nothing!"]),
        ("return m and m.nothing", ["nothing!"]),
        ("return m is None or m.nothing", ["nothing!"]),
        ("if q and m is None: return m.nothing\n    return 1", []),
    ],
)
def test_narrow_none_tests_decide_the_branch(body: str, expected: list[str]) -> None:
    """Where metadata is known to be None nothing is read of it, and where it is known not to be everything is."""
    assert [
        f"{r.path}{'!' if r.missing else ''}" for r in run(f"def f(m, q):\n    {body}\n", maybe_none=True)[1].reads
    ] == (expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = None\n    for y in q: x = m\n    return x.nothing", ["nothing!"]),
        ("x = None\n    for y in q:\n        if x: x.nothing\n        x = m", ["nothing!"]),
        (
            "x = None\n    for y in q:\n        if y:\n            x = m\n            break\n    return x.nothing",
            ["nothing!"],
        ),
        (
            "x = None\n    for y in q:\n        if y:\n            x = m\n            continue\n    x.none",
            ["none!"],
        ),
        ("for y in q: pass\n    else: return m.nothing", ["nothing!"]),
        ("while 0: m.nothing", []),
        ("while q: m.nothing", ["nothing!"]),
        ("with q as x: return m.num\n    return m.nothing", ["num"]),
        ("try: x = m\n    except E: x = None\n    return x.nothing", ["nothing!"]),
        ("try: return m.num\n    finally: m.nothing", ["num", "nothing!"]),
        ("try: raise E\n    except E: raise\n    return m.nothing", []),
        ("raise E(m.num) from m.part\n    return m.nothing", ["num", "part"]),
        ("assert 0\n    return m.nothing", []),
        ("match m:\n        case Meta(): return m.num\n    return m.nothing", ["num", "nothing!"]),
        (
            "match m:\n        case OtherMeta(): return m.num\n        case _: return m.part\n    return m.nothing",
            ["part"],
        ),
        ("match q:\n        case Meta() as x: return x.nothing", ["nothing!"]),
        ("match m:\n        case x if x.num: return x.part", ["num", "part"]),
        (
            "match q:\n        case [a, *b]: m.num\n        case {'k': c, **d}: return b\n        case 1 | 2: return d",
            ["num"],
        ),
        ("if q: x = m\n    else: return\n    return x.nothing", ["nothing!"]),
        ("if q: return 1\n    else: return 2\n    return m.nothing", []),
    ],
)
def test_execute_statements_follow_control(body: str, expected: list[str]) -> None:
    """Values reach what follows a statement by every way out of it, and nothing behind the last one is run."""
    found = list(dict.fromkeys(reads(f"def f(m, n, q):\n    {body}\n")))
    assert found == expected


@pytest.mark.parametrize(
    ("helpers", "body", "expected"),
    [
        ("def g(x): return x.nothing", "return g(m)", ["nothing!"]),
        ("def g(*, x=None): return x.nothing", "return g(x=m)", ["nothing!"]),
        ("def g(a, x=1, *b, **c): return x", "return g(m).nothing", []),
        ("def g(*x): return x", "return g(m)", []),
        ("def g(x): return x", "return g(g(g(m))).nothing", ["nothing!"]),
        ("def g(x): return g(x)", "return g(m)", []),
        ("def g(x): return (x, 1)", "a, b = g(m)\n    return a.nothing", ["nothing!"]),
        ("def g(x, k) -> Meta: return k.make()", "return g(m, q).nothing", ["nothing!"]),
        ("def g(x: Meta): return x.nothing", "return g(q)", []),
        ("def g(x): x.nothing", "h = g\n    return h(m)", ["nothing!"]),
        ("", "def g(): return m.nothing\n    return g()", ["nothing!"]),
        ("", "def g(x): return x.nothing\n    return g(m)", ["nothing!"]),
        ("", "from vllm.probe import Meta as M\n    x: M = q\n    return 1", []),
        ("", "from vllm.probe import far\n    return far(m)", ["far_away!"]),
        ("", "import vllm.probe as p\n    return p.far(m)", ["far_away!"]),
        ("class K:\n    def g(self, x): return x.nothing", "return K().g(m)", ["nothing!"]),
        ("class K:\n    @staticmethod\n    def g(x): return x.nothing", "return K.g(m)", ["nothing!"]),
        ("class K:\n    @staticmethod\n    def g(x): return x.nothing", "return K().g(m)", ["nothing!"]),
        ("class K:\n    @classmethod\n    def g(cls, x): return x.nothing", "return K.g(m)", ["nothing!"]),
        ("class B:\n    def g(self, x): x.base\nclass K(B):\n    def g(self, x): super().g(x)", "K().g(m)", ["base!"]),
        ("class K(B):\n    def g(self, x): super().g(x)", "K().g(m)", []),
        ("", "g = q\n    return g(m)", []),
        ("def g(x): return x.nothing", "return g(*[m])", ["nothing!"]),
        ("import copy", "return copy.copy(m).nothing", ["nothing!"]),
        ("import dataclasses", "return dataclasses.replace(m, num=1).nothing", ["nothing!"]),
    ],
)
def test_calls_of_the_tree_are_followed(helpers: str, body: str, expected: list[str]) -> None:
    """Functions, methods, closures and imports that receive metadata are run with it; what is unknown is not."""
    far = "def far(x): return x.far_away"
    assert reads(f"{helpers}\n{far}\ndef f(m, n, q):\n    {body}\n") == expected


def test_enter_depth_is_limited() -> None:
    """A chain of calls is followed for a limited number of levels."""
    chain = "".join(f"def g{i}(x): return g{i + 1}(x)\n" for i in range(20)) + "def g20(x): return x.nothing\n"
    assert reads(f"{chain}def f(m): return g19(m)\n") == ["nothing!"]
    assert reads(f"{chain}def f(m): return g{20 - Machine.max_depth + 1}(m)\n") == []


@pytest.mark.parametrize("levels", range(9))
def test_enter_run_cut_short_by_its_depth_is_run_again_higher_up(levels: int) -> None:
    """A function first met at the end of a long chain is not taken for read when it is called directly afterwards."""
    chain = "".join(f"def g{i}(x): return g{i + 1}(x)\n" for i in range(levels))
    chain += f"def g{levels}(x): return h(x)\ndef h(x): return k(x)\ndef k(x): return x.nothing\n"
    assert reads(f"{chain}def f(m):\n    g0(m)\n    h(m)\n")[-1:] == ["nothing!"]
    assert reads(f"{chain}def e(x): g0(x)\ndef f(m):\n    e(m)\n    g{levels}(m)\n")[-1:] == ["nothing!"]


@pytest.mark.parametrize(
    "body",
    [
        "def inner(): return y.nothing\n    y = m\n    return inner()",
        "y = q\n    def inner(): return y.nothing\n    inner()\n    y = m\n    return inner()",
        "def outer(x, y):\n        def inner(): return y.nothing\n        inner()\n    outer(m, q)\n    outer(m, m)",
        "def outer(y):\n        def inner(): return y.nothing\n        return inner\n    return outer(m)()",
    ],
    ids=["bound later", "bound anew", "other call", "outlives its call"],
)
def test_closure_sees_names_as_they_are_when_it_runs(body: str) -> None:
    """A nested function reads the variables around it late, and each time anew."""
    assert reads(f"def f(m, q):\n    {body}\n") == ["nothing!"]


def test_construct_reports_arguments_by_name() -> None:
    """A constructed metadata object knows its arguments, whether they came by position or by name."""
    source = (
        "def f(m, n):\n    x = Meta(n, part=m.part)\n    y = Meta(**m.all)\n    x.late = 1\n"
        "    setattr(x, 'later', 2)\n    return x.num\n"
    )
    value, events = run(source)
    assert value == LIN
    first, second = events.constructs
    assert [name for name, _ in first.values] == ["num", "part"]
    assert first.complete
    assert not second.complete
    assert [(s.cls.name, s.attr, s.value) for s in events.stores] == [
        ("Meta", "late", Const(1)),
        ("Meta", "later", Const(2)),
    ]


def test_init_parameters_are_fields_or_those_of_init() -> None:
    """Positional arguments bind to annotated fields, bases first, or to the parameters of an own __init__."""
    index = index_of(
        "class I(Meta):\n    k: ClassVar[int] = 1\n    def __init__(self, a, b=1): pass\n"
        "class J(Meta):\n    k: ClassVar[int] = 1\n"
    )
    assert init_parameters(cls(index, "SubMeta")) == ["num", "part", "maybe", "parts", "pair", "extra"]
    assert init_parameters(cls(index, "I")) == ["a", "b"]
    assert "k" not in init_parameters(cls(index, "J"))
    assert is_metadata_class(cls(index, "PartMetadata"))
    assert is_metadata_class(cls(index, "OtherMeta"))
    assert not is_metadata_class(cls(index, "Config"))


def test_attribute_declared_base_class_may_be_overridden() -> None:
    """A constant or a constant method of a base counts only where no subclass has another one."""
    source = "def f(c, d):\n    return (c.wide, c.is_wide(), d.wide, d.is_wide())\n"
    index = index_of(source)
    declared = Obj(TypeRef(cls(index, "Config")), exact=False)
    exact = Obj(TypeRef(cls(index, "Config")))
    machine = Interpreter(index, None, None)
    value = machine.run(function(index), c=declared, d=exact)
    assert value == Tup((CONFIG, CONFIG, Const(False), Const(False)))


def test_survive_statement_too_deep_is_left_out() -> None:
    """An expression deeper than Python's stack is skipped, and the statements around it are run."""
    deep = "q" + "()" * 1500
    assert reads(f"def f(m, q):\n    m.num\n    if {deep}:\n        x = {deep}\n    return m.nothing\n") == [
        "num",
        "nothing!",
    ]


def test_machine_without_parts_refuses_to_run() -> None:
    """The base of the interpreter has no operations of its own."""
    machine = Machine(index_of(), None, None)
    name = ast.Name("x", ast.Load())
    some = function(index_of("def f(): pass\n"))
    obj = Obj(TypeRef(cls(index_of(), "Meta")))
    call = ast.Call(name, [], [])
    for operation in (
        lambda: machine.evaluate(name),
        lambda: machine.attribute(DATA, "x", name),
        lambda: machine.call(call),
        lambda: machine.enter(some, None, [], {}),
        lambda: machine.execute([]),
        lambda: machine.assign(name, DATA),
        lambda: machine.narrow(name, True),
        lambda: machine.has_attribute(obj, "x"),
    ):
        with pytest.raises(NotImplementedError):
            operation()


def test_guarded_holds_for_the_events_inside() -> None:
    """A guard is there inside, and gone afterwards even where something raised."""
    machine = Interpreter(index_of(), None, None)
    guard = Guard("x", capability=True)
    with pytest.raises(ValueError, match="inside"), machine.guarded(guard):
        assert machine.guards == [guard]
        raise ValueError("inside")
    with machine.guarded(None):
        assert machine.guards == []


def test_unguarded_first_keeps_the_easiest_way() -> None:
    """Of several ways to one read, the one with the fewest capabilities stands for it."""
    _, events = run("def g(x): return x.nothing\ndef f(m, q):\n    if q: g(m)\n    g(m)\n")
    source = "def g(x, k): return x.nothing\ndef f(m, layer):\n    if layer.flag: g(m, 1)\n    g(m, 2)\n"
    _, guarded = run(source, given={"layer": CONFIG})
    assert [r.condition for r in guarded.reads] == ["layer.flag", None]
    (best,) = unguarded_first(guarded.reads)
    assert best.condition is None
    assert len(unguarded_first(events.reads)) == 1
    assert len(unguarded_first(list(reversed(guarded.reads)))) == 1


def test_run_builder_skeleton_knows_what_it_sets() -> None:
    """The builder's fields are linear in the batch, so that two of them can be compared."""
    project = open_project(memory_tree(trap_files("skeleton")))
    (backend,) = find_backends(project.index)
    batch = batch_class(project.index)
    assert batch is not None
    assert batch.name == "CommonAttentionMetadata"
    built: BuilderRun = run_builder(project.index, backend, batch)
    assert built.complete
    assert built.given == {"num_reqs", "num_actual_tokens"}
    assert built.values == {name: Lin(((f"batch.{name}", 1),)) for name in built.given}
    assert built.function is not None
    assert built.function.qualname.endswith(":PlainBuilder.build")
    assert [c.cls.name for c in built.constructs(backend.metadata.cls)] == ["PlainMetadata"]
    entries = find_entries(project.index)
    assert {(e.function.node.name, e.condition) for e in entries} == {
        ("forward", None),
        ("unified_mla_attention", None),
    }
    events = run_layer(project.index, backend, built, entries)
    assert {r.path for r in events.reads} == {"num_actual_tokens"}
    assert not any(r.missing for r in events.reads)


def test_run_builder_abstract_build_is_no_run() -> None:
    """A builder that only inherits the abstract build tells nothing."""
    path = "vllm/v1/attention/backends/mla/plain.py"
    files = dict(trap_files("skeleton"))
    files[path] = files[path].replace("    def build(", "    def make(")
    project = open_project(memory_tree(files))
    (backend,) = project.mla_backends
    built = project.builders[backend]
    assert built.function is None
    assert not built.complete
    assert project.layers[backend].reads
    assert Path(project.tree.label).name == "memory"
