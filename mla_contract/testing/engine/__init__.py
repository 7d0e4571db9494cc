"""Tiny random models for runs of the real engine on a CPU; nothing is downloaded."""
