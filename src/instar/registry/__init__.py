"""Versions on disk: `versions/v7/` with safetensors, JSON, and a manifest that vouches for every byte."""

from instar.registry.artifacts import FolderRegistry

__all__ = ["FolderRegistry"]
