"""Launch configurations of the Triton kernels. ``scripts/tune_triton.py`` measures and writes an architecture's rows.

Shape classes are those of ``launches.py``; what a row does not say is the default of its ``Launch``.
"""

from __future__ import annotations

from typing import Any

ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "any": {
        "attend_16": {"columns": 16, "stages": 1},
        "attend_32": {"rows": 32, "columns": 16, "stages": 1},
        "attend_64": {"rows": 32, "columns": 16, "stages": 1},
        "attend_wide": {"columns": 16, "stages": 1},
        "attend_float32": {"columns": 16, "stages": 1},
        "merge": {"columns": 128},
        "chunk_8bit": {"rows": 64, "columns": 64, "stages": 1},
        "chunk_16bit": {"rows": 64, "columns": 64, "stages": 1},
        "chunk_32bit": {"rows": 16, "columns": 32, "stages": 1},
        "paged_8bit": {"rows": 64, "columns": 64, "stages": 1},
        "paged_16bit": {"rows": 64, "columns": 64, "stages": 1},
        "paged_32bit": {"rows": 16, "columns": 32, "stages": 1},
        "gather": {"rows": 32},
        "write": {"rows": 16},
        "map": {"columns": 1024},
        "topk": {"columns": 2048, "warps": 8, "programs": 128},
    },
    "interpreter": {
        "attend_float32": {"columns": 32, "stages": 1, "programs": 16, "tiled": True},
        "chunk_32bit": {"rows": 64, "columns": 64, "stages": 1, "programs": 2},
        "paged_32bit": {"rows": 64, "columns": 64, "stages": 1, "programs": 16},
        "topk": {"columns": 256},
    },
    "sm90": {
        "attend_16": {"rows": 16, "columns": 64, "warps": 4, "stages": 2, "programs": 264},
        "attend_32": {"rows": 64, "columns": 64, "warps": 8, "stages": 2, "programs": 132, "tiled": True},
        "attend_64": {"rows": 64, "columns": 64, "warps": 8, "stages": 2, "programs": 132, "tiled": True},
        "chunk_8bit": {"rows": 256, "columns": 64, "warps": 4, "stages": 3, "programs": 1056},
        "chunk_16bit": {"rows": 256, "columns": 64, "warps": 4, "stages": 3, "programs": 1056},
        "paged_8bit": {"rows": 64, "columns": 128, "warps": 4, "stages": 2, "programs": 528},
        "paged_16bit": {"rows": 64, "columns": 128, "warps": 4, "stages": 2, "programs": 528},
        "gather": {"rows": 32, "warps": 4},
        "topk": {"columns": 4096, "warps": 8, "programs": 264},
    },
}
