"""The way in and out of vLLM. Every module here imports vllm late, inside the function that needs it."""
