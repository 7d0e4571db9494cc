"""A backend of the smallest kind, made by following docs/add-a-backend.md."""

from mla_contract.backends.registry import RegisteredBackend

BACKEND = RegisteredBackend(name="toy_sparse", target="toy_backend.backend:target")
