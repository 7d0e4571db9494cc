"""The shared planning, and the way into and out of vLLM.

Modules here take host ints and return host ints; ``buffers`` alone touches a device, and imports torch late.
"""
