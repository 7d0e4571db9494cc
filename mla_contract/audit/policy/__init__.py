"""What an operation does with policy flags, buffers and the workspace, platform by platform."""
