"""How far a long computation is, on stderr: a bar on a terminal, plain lines elsewhere, nothing if
quiet.

    duration       seconds as a reader says them
    progress_text  one line
    Progress       shows the line again and again

>>> duration(7.2), duration(125), duration(7300)
('7 s', '2 min 5 s', '2 h 1 min')
>>> progress_text(30, 120, 12.0, "loss 2.500", 60, ascii_only=True)
'[##........] 30/120 loss 2.500, 36 s left'
"""
import sys
import time

from .terminal import columns_of, shows, write

__all__ = ["duration", "progress_text", "Progress"]

SHOWN_AFTER = 0.5


def duration(seconds):
    """Seconds as text, in the two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def progress_text(done, total, seconds, what, columns, ascii_only=False):
    """One line: a bar, how many of how many, what is to be said, and the time left at this
    pace."""
    left = duration(seconds * (total - done) / done) if done else "?"
    width = 10
    full = width * done // total
    bar = ("#" if ascii_only else "█") * full + ("." if ascii_only else "░") * (width - full)
    return f"[{bar}] {done}/{total} {what}, {left} left"[:columns]


class Progress:
    """Progress towards `total`; use as a context, and call it with (done, what to say)."""

    def __init__(self, total, quiet=False, stream=None, every=10):
        self.total, self.every = total, every
        self.stream = None if quiet else stream or sys.stderr
        self.terminal = self.stream is not None and self.stream.isatty()
        self.begin = self.last = time.monotonic()
        self.first_done, self.tenth = None, 0

    def __enter__(self):
        return self

    def __call__(self, done, what):
        if self.stream is None:
            return
        now = time.monotonic()
        if self.first_done is None:                     # a run that goes on has some behind it
            self.first_done = done - 1
        if self.terminal:
            if now - self.begin > SHOWN_AFTER and now - self.last > 0.1:
                self.last = now
                write(self.stream, "\r" + self.line(done, now, what))
        elif done * self.every // self.total > self.tenth:
            self.tenth = done * self.every // self.total
            write(self.stream, f"{done}/{self.total} {what}, {duration(now - self.begin)}\n")

    def seconds(self):
        """How long it has been."""
        return time.monotonic() - self.begin

    def line(self, done, now, what):
        """The line for a terminal, as wide as the last one was at most."""
        columns = columns_of(self.stream) - 1
        text = progress_text(done, self.total, now - self.begin, what, columns,
                             not shows(self.stream, "█░"))
        return f"{text:<{columns}}"

    def __exit__(self, *error):
        if self.terminal and self.last > self.begin:
            write(self.stream, "\r" + " " * (columns_of(self.stream) - 1) + "\r")
