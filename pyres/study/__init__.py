"""Questions about the stream: for now, what a model counts."""
from . import counting

__all__ = ["counting"]
