"""Where a result goes: what the terminal can show, and writing to it.

    look_for      the text.Look of a result on a stream: its columns, its characters, colour or not
    columns_of    how many columns a stream has
    write         text to a stream, flushed; a character that its encoding lacks is escaped
    announced     says on stderr what takes long

NO_COLOR and FORCE_COLOR are as https://no-color.org and https://force-color.org have them, COLUMNS
overrules the terminal's width, and a stream that is no terminal has 80 columns.

>>> import io
>>> page = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
>>> look_for(page, columns=60)
Look(columns=60, ascii=True, color=False, precision=3, quiet=False)
>>> write(page, "2·d\\n")
>>> page.buffer.getvalue()
b'2\\\\xb7d\\n'
"""
import os
import sys
from contextlib import contextmanager

from .text import SPECIAL, Look

__all__ = ["look_for", "columns_of", "write", "announced"]


def look_for(stream, columns=None, ascii_only=False, color="auto", precision=3, quiet=False):
    """The Look of a result on this stream; what is None or "auto" is found out.

    >>> import io
    >>> look_for(io.StringIO(), columns=40, color="always")
    Look(columns=40, ascii=False, color=True, precision=3, quiet=False)
    """
    return Look(columns or columns_of(stream), ascii_only or not shows(stream, SPECIAL),
                color == "always" or color == "auto" and wants_color(stream), precision, quiet)


FEWEST_COLUMNS = 20


def columns_of(stream):
    """How many columns a stream has.

    >>> columns_of(None) >= 20
    True
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        return max(FEWEST_COLUMNS, int(columns))
    try:
        return max(FEWEST_COLUMNS, os.get_terminal_size(stream.fileno()).columns)
    except (AttributeError, ValueError, OSError):               # no terminal
        return 80


def encoding_of(stream):
    """The stream's encoding; a stream of text in memory has none, and takes every character."""
    return getattr(stream, "encoding", None) or "utf-8"


def shows(stream, text):
    """Whether the stream's encoding has every character of the text."""
    try:
        text.encode(encoding_of(stream))
    except UnicodeError:
        return False
    return True


def wants_color(stream):
    """NO_COLOR comes first, then FORCE_COLOR, then whether the stream is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def write(stream, text):
    """Write the text and flush, so that an error shows here and not when Python ends."""
    encoding = encoding_of(stream)
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


@contextmanager
def announced(what, verbose=False, quiet=False):
    """Say on stderr what is being done: at once if verbose, never if quiet, else on a terminal
    after half a second.
    """
    quiet = quiet or sys.stderr is None
    if verbose and not quiet:
        write(sys.stderr, f"pyres: {what}\n")
    if verbose or quiet or not sys.stderr.isatty():
        yield
        return
    import threading
    timer = threading.Timer(0.5, write, [sys.stderr, f"pyres: {what} ...\n"])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
