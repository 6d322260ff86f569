"""Instar serves a model through the OpenAI API and improves it from everyday use."""

__version__ = "0.1.0"
