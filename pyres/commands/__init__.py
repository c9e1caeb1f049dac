"""The commands, a module each: what it takes on the command line, and the Answer it finds.

A command has no mathematics: it reads its options, calls what anybody could call, and says what
came back.  `cli` runs it and writes the answer as text or as JSON.

    Answer, Command             what a command finds, and what it is
    Source                      where a model comes from, and what is known of it unread
    read_model, read_source     a model, or only its Source, as a command reads it

    options                     the values and parsers of options, and what may be refused
    inputs                      what a command looks at: text, position, target
    toy, trace, count, model    the commands

>>> from pyres.commands import toy
>>> toy.COMMAND.name, toy.COMMAND.examples[0]
('toy', 'toy')
"""
import os
from collections import namedtuple
from contextlib import contextmanager

from ..study.counting import walked_leaves
from ..view.progress import Progress
from ..view.terminal import announced
from .options import explained

__all__ = ["Answer", "Command", "Source", "read_model", "read_source"]


class Answer(namedtuple("Answer", ("model", "input", "result", "checks", "notes", "draw"))):
    """What a command found: the fields of the JSON, and draw(look) -> lines of text."""


class Command(namedtuple("Command", ("name", "usage", "summary", "takes", "options", "run",
                                     "examples"))):
    """A command.

    name, usage, summary    what its help says
    takes                   which options of a model it takes, see options.MODEL_OPTIONS
    options(parser)         adds its own
    run(options)            -> Answer
    examples                two, which end its help
    """


class Source(namedtuple("Source", ("name", "family", "config", "walked", "files", "buffers",
                                   "keys_not_read"))):
    """Where a model comes from.

    name, config     the model's
    family           the model_type of a Hugging Face folder, "pyres" or "llama2.c"
    walked           pairs (leaf names, how many numbers), as counting.count_leaves takes them
    files            pairs (path, dtypes), the weights' files the last; [] for an embedded model
    buffers          tensors of the file that are no weights
    keys_not_read    keys of the config that nothing reads
    """


NO_MODEL = ("a model is a folder with config.json and model.safetensors, a file that pyres wrote, "
            "or a .bin of llama2.c; --model names it")


def read_model(source, options):
    """Return (a Model, its Source)."""
    from .. import files
    with explained(unread=NO_MODEL), reading(source, options), of_bytes(options) as progress:
        model = files.load(source, progress)
        return model, of_folder(source) if is_folder(source) else of_model(source, model)


def read_source(source, options):
    """Return the Source of a model; of a folder, no weight is read."""
    from .. import files
    with explained(unread=NO_MODEL), reading(source, options):
        if is_folder(source):
            return of_folder(source)
        return of_model(source, files.load(source))


def is_folder(source):
    """Whether a model's name means a folder: the embedded model's does not."""
    from ..files import EMBEDDED
    return source not in EMBEDDED and os.path.isdir(source)


@contextmanager
def of_bytes(options):
    """What files.load calls with (bytes read, bytes in all): a bar on a terminal, or None."""
    with Progress(1, options.quiet) as progress:
        def read(done, total):
            progress.total = total
            progress(done, "bytes")

        yield read if progress.terminal else None


def reading(source, options):
    """Says what is read, see terminal.announced."""
    return announced(f"reading {source}", options.verbose, options.quiet)


def of_folder(folder):
    """The Source of a Hugging Face folder, from its config and the header of its tensors."""
    from ..files import huggingface
    info = huggingface.inspect(folder)
    dtypes = sorted({info.tensors.dtype(name) for name in info.tensors})
    return Source(os.path.basename(os.path.abspath(folder)), info.family.model_type, info.config,
                  info.walked, [(os.path.join(folder, "config.json"), [])]
                  + [(path, dtypes) for path in info.files],
                  info.buffers, info.keys_not_read)


def of_model(source, model):
    """The Source of a model that was read already, from a file or from the package itself."""
    family, files = "pyres", []
    if source.endswith(".bin"):
        family, files = "llama2.c", [(source, ["F32"])]
    elif os.path.exists(source):
        from ..files.safetensors import read
        tensors = read(source)
        files = [(source, sorted({tensors.dtype(name) for name in tensors}))]
    return Source(model.name, family, model.config, walked_leaves(model.weights), files, [], [])
