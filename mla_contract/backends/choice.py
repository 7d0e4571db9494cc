"""Which sparse backend the environment asks for; imports nothing heavy, because vLLM calls it in every process."""

from __future__ import annotations

import os

from mla_contract.backends import rocm_sparse
from mla_contract.backends.registry import RegisteredBackend, find_backend, known_backends
from mla_contract.errors import InvalidContract

BACKEND_VARIABLE = "MLA_CONTRACT_BACKEND"
INDEX_CACHE_VARIABLE = "MLA_CONTRACT_INDEX_CACHE"

DEFAULT_BACKEND = rocm_sparse.BACKEND
"""The one that a smoke run takes unless another is named; an engine has none by default."""

INDEX_CACHES = ("fp8", "float")
"""How the indexer's cache can store keys; the first one is vLLM's own and the default."""


def chosen_backend() -> str | None:
    """Return the path of the attention backend's class that is asked for, or None when none is.

    Raises:
        InvalidContract: If the variable holds an unknown word.
    """
    word = os.environ.get(BACKEND_VARIABLE, "")
    return backend_path(word) if word else None


def backend_path(word: str) -> str:
    """Return the dotted path of the engine's class of a registered backend, or of one named as ``module:Class``.

    Raises:
        InvalidContract: If the word is neither.
    """
    module, colon, name = word.partition(":")
    if colon and module and name.isidentifier():
        return f"{module}.{name}"
    found = find_backend(word)
    if isinstance(found, RegisteredBackend) and found.engine_class:
        return found.engine_class.replace(":", ".")
    reason = found if isinstance(found, str) else "it has no class for the engine"
    able = [name for name, one in known_backends().items() if isinstance(one, RegisteredBackend) and one.engine_class]
    known = ", ".join((*able, "module:Class"))
    raise InvalidContract(f"{BACKEND_VARIABLE}={word!r}: {reason}; the engine can have {known}")


def index_cache() -> str:
    """Return how the indexer's cache stores keys.

    Raises:
        InvalidContract: If the variable holds an unknown word.
    """
    word = os.environ.get(INDEX_CACHE_VARIABLE) or INDEX_CACHES[0]
    if word not in INDEX_CACHES:
        raise InvalidContract(f"{INDEX_CACHE_VARIABLE}={word!r}: known are {', '.join(INDEX_CACHES)}")
    return word
