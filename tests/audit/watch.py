"""An audit hook that reports what a process does with a foreign tree besides parsing it.

Standard library only: processes load it by path. What it reports, each as ``kind: detail``:

- ``compiled``: a text of the tree was compiled by a call that can give more than a syntax tree or a symbol table;
- ``executed``: a code object with a word or a file of the tree was executed, or made a function;
- ``imported``: a module was asked for that only the tree has, or one was loaded out of the tree;
- ``process``: a process was started that is not the one allowed;
- ``written``: something was created, changed or removed outside the directories allowed;
- ``connected``: a socket was made;
- ``unpickled``: a class or a function was looked up for a pickle.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    f"os.{name}"
    for name in ("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate", "utime")
)
_PROCESSES = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"})


@dataclass
class Watch:
    """What to look for, and what was seen.

    Attributes:
        tree: Directory of the foreign tree.
        word: A word that every text of the tree contains, and nothing else does.
        modules: Names of modules that only the tree has.
        writable: Directories below which a process may write.
        command: The one command that may be started.
        seen: The reports.
    """

    tree: str
    word: str
    modules: frozenset[str]
    writable: tuple[str, ...]
    command: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)
    _state: Any = field(default_factory=threading.local)
    _stopped: bool = False

    def start(self) -> None:
        """Watch this process from now on."""
        builtins.compile = self._compile(builtins.compile)
        symtables: Any = importlib.import_module("_symtable")
        symtables.symtable = self._symtable(symtables.symtable)
        sys.addaudithook(self._hook)

    def stop(self) -> None:
        """Report nothing any more."""
        self._stopped = True

    def _compile(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``compile`` that notes whether the call in progress can give a syntax tree only."""

        def compile(source: Any, filename: Any, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
            self._state.parses = bool(flags & ast.PyCF_ONLY_AST)
            try:
                return real(source, filename, mode, flags, *args, **kwargs)
            finally:
                self._state.parses = False

        return compile

    def _symtable(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function behind ``symtable``, which parses and gives no code, noting that it is at work."""

        def symtable(*args: Any) -> Any:
            self._state.parses = True
            try:
                return real(*args)
            finally:
                self._state.parses = False

        return symtable

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._stopped or getattr(self._state, "busy", False):
            return
        self._state.busy = True
        try:
            report = self._report(event, args)
            if report:
                self.seen.append(report)
        finally:
            self._state.busy = False

    def _report(self, event: str, args: tuple[Any, ...]) -> str | None:
        if event == "compile":
            parses = getattr(self._state, "parses", False)
            return f"compiled: {args[1]!r}" if not parses and any(map(self._is_foreign, args)) else None
        if event in ("exec", "function.__new__", "code.__new__"):
            return f"executed: {args[0]!r}" if self._is_foreign(args[0]) else None
        if event == "import":
            foreign = str(args[0]).partition(".")[0] in self.modules or self._is_below(args[1], (self.tree,))
            return f"imported: {args[0]} {args[1] or ''}" if foreign else None
        if event == "ctypes.dlopen":
            return f"imported: {args[0]}" if self._is_below(args[0], (self.tree,)) else None
        if event == "subprocess.Popen":
            allowed = tuple(map(str, args[1])) == self.command and not self._is_foreign(str(args[3]))
            return None if allowed else f"process: {args[1]!r}"
        if event in _PROCESSES:
            return f"process: {event} {args[:2]!r}"
        if event.startswith(("socket.", "urllib.")):
            return f"connected: {event}"
        if event == "pickle.find_class":
            return f"unpickled: {args}"
        return self._written(event, args)

    def _written(self, event: str, args: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = args
            writes = flags & _WRITES or any(letter in (mode or "") for letter in "wax+")
            paths = [path] if writes and not isinstance(path, int) else []
        elif event in _CHANGES:
            paths = list(args[:2]) if event in ("os.link", "os.rename", "os.symlink") else [args[0]]
        else:
            return None
        outside = [path for path in paths if not self._is_below(path, self.writable)]
        return f"written: {event} {outside[0]!r}" if outside else None

    def _is_foreign(self, thing: object) -> bool:
        """Return whether a text, a code object or a syntax tree has the word in it, or the path of the tree."""
        if isinstance(thing, CodeType):
            parts = (thing.co_filename, thing.co_name, *thing.co_names, *thing.co_varnames, *thing.co_consts)
            return any(self._is_foreign(part) for part in parts)
        if isinstance(thing, ast.AST):
            return self.word in ast.dump(thing)
        if isinstance(thing, bytes | bytearray):
            return self.word.encode() in thing
        return isinstance(thing, str) and (self.word in thing or self.tree in thing)

    @staticmethod
    def _is_below(path: object, roots: Sequence[str]) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        full = os.path.realpath(os.fsdecode(path))
        return any(full == root or full.startswith(root + os.sep) for root in map(os.path.realpath, roots))
