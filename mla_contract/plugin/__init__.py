"""What vLLM loads: hooks around every build, facts of the engine, the monitor. Every module imports vllm late."""
