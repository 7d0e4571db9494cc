"""The sparse backends as vLLM knows them: thin classes around builders, attention and indexer, which do the work.

Every module here imports vllm, except ``providers``; nothing imports this package until the environment asks for it.
"""
