"""Questions about the stream.

    counting    how many weights, writers, multiply-adds
    compare     two runs, and what their difference answers
"""
from . import compare, counting

__all__ = ["compare", "counting"]
