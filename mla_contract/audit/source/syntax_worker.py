"""A process that says which sources Python can parse. Standard library only: it is run by path, in isolated mode.

It reads a pickled list of (index, bytes) and prints one JSON array a line: ``[index]`` before a file is parsed, so
that the parent knows which one ended the process, and ``[index, line, reason]`` after it, with nulls for a good one.
"""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import signal
import symtable
import sys
import tokenize
import warnings


def syntax_reason(data: bytes) -> tuple[int, str] | None:
    """Return the line and the reason why Python cannot parse a source, or None."""
    if reason := _undecodable(data):
        return reason
    if b"\0" in data:
        return data.count(b"\n", 0, data.index(b"\0")) + 1, "null byte in the source"
    try:
        # The symbol table needs the whole parse, and no tree of Python objects.
        symtable.symtable(data, "<source>", "exec")  # type: ignore[arg-type]
    except SyntaxError as error:
        return max(error.lineno or 1, 1), error.msg or "invalid syntax"
    except ValueError as error:
        return 1, str(error)
    except RecursionError:
        return 1, "nested too deeply for the parser"
    except MemoryError:
        return 1, "too complex for the parser"
    return None


def _undecodable(data: bytes) -> tuple[int, str] | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            data.decode(encoding)
        except (SyntaxError, ValueError, LookupError):
            return data.count(b"\n", 0, error.start) + 1, f"not {error.encoding}: {error.reason}"
    return None


def main() -> None:
    """Check the sources on standard input."""
    gc.disable()
    warnings.simplefilter("ignore")
    for index, data in pickle.loads(sys.stdin.buffer.read()):
        print(json.dumps([index]), flush=True)
        print(json.dumps([index, *(syntax_reason(data) or (None, None))]))
    sys.stdout.flush()


if __name__ == "__main__":
    # An interrupt at the terminal is for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The engine is the longest single piece of work: it goes first where cores are few.
    if hasattr(os, "nice"):
        os.nice(10)
    main()
