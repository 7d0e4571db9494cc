"""Which sparse backend the environment asks for; imports nothing, because vLLM calls it in every process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from mla_contract.errors import InvalidContract

BACKEND_VARIABLE = "MLA_CONTRACT_BACKEND"
INDEX_CACHE_VARIABLE = "MLA_CONTRACT_INDEX_CACHE"

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "rocm_sparse": "mla_contract.backends.vllm.backend.RocmSparse",
        "cuda_sparse": "mla_contract.backends.vllm.backend.CudaSparse",
    }
)
"""Path of the attention backend's class by name."""

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
    """Return the dotted path of a backend named by word, or as ``module:Class``.

    Raises:
        InvalidContract: If the word is neither.
    """
    module, colon, name = word.partition(":")
    if colon and module and name.isidentifier():
        return f"{module}.{name}"
    if word not in BACKENDS:
        raise InvalidContract(f"{BACKEND_VARIABLE}={word!r}: known are {', '.join(BACKENDS)} and module:Class")
    return BACKENDS[word]


def index_cache() -> str:
    """Return how the indexer's cache stores keys.

    Raises:
        InvalidContract: If the variable holds an unknown word.
    """
    word = os.environ.get(INDEX_CACHE_VARIABLE) or INDEX_CACHES[0]
    if word not in INDEX_CACHES:
        raise InvalidContract(f"{INDEX_CACHE_VARIABLE}={word!r}: known are {', '.join(INDEX_CACHES)}")
    return word
