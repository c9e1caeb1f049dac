"""convert: a model from one kind of file into another, or into another float type.

    python3 -m pyres convert IN OUT.safetensors     pyres's own file
    python3 -m pyres convert IN OUT.bin             a file of llama2.c
    python3 -m pyres convert IN OUT                 a Hugging Face folder

IN is anything that --model takes.

    save_as      writes a model as OUT's ending says
    converted    options -> Answer

>>> COMMAND.name, COMMAND.takes
('convert', ())
"""
import os

from ..view.terminal import announced
from . import Command, read_model
from .export import add_writing_options, dtype_of, writing, written
from .options import BAD_INPUT, PROG, USAGE, Refused, explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of convert."""
    parser.add_argument("source", nargs="?", metavar="IN", help="a model: a file, a folder, echo")
    parser.add_argument("out", nargs="?", metavar="OUT",
                        help="what to write: FILE.safetensors, FILE.bin or a folder")
    add_writing_options(parser)


def check_place(out, force):
    """Raise FileExistsError where writing OUT would lose something."""
    from ..files import export
    if not out.endswith((".safetensors", ".bin")):
        export.check_place(out, force)
    elif os.path.isdir(out):
        raise FileExistsError(f"{out} exists, and is a folder; name a file")
    elif os.path.lexists(out) and not force:
        raise FileExistsError(f"{out} exists; force=True overwrites it")


def save_as(model, named, out, dtype, force):
    """Write a model, read from what was named, as the ending of `out` says; return what it is
    then, in words."""
    from ..files import export, llama2c, native
    if out.endswith(".safetensors"):
        try:
            native.save(model, out, dtype)
        except TypeError as error:
            raise Refused(BAD_INPUT, str(error), "a Hugging Face folder holds any tokenizer: "
                          "name OUT without an ending") from None
        return "a model of pyres"
    if out.endswith(".bin"):
        if dtype != "F32":
            raise Refused(BAD_INPUT, "a llama2.c file has weights in float32 only",
                          "leave --dtype out")
        llama2c.save(model, out)
        return "a llama2.c file"
    return export.export_folder(model, out, dtype, force,
                                named if os.path.isdir(named) else None)["architectures"][0]


def converted(options):
    """Read IN, write OUT -> Answer."""
    if not options.source or not options.out:
        raise Refused(USAGE, "convert takes two names: a model, and what to write",
                      f"{PROG} convert IN OUT.safetensors")
    with writing(options.out):
        check_place(options.out, options.force)     # before a model is read, which may take long
    model, source = read_model(options.source, options)
    with explained(), writing(options.out), \
            announced(f"writing {options.out}", options.verbose, options.quiet):
        form = save_as(model, options.source, options.out, dtype_of(options), options.force)
    return written(model, source, options.source, form, options)


COMMAND = Command("convert", "IN OUT [OPTIONS]",
                  "a model into another kind of file, or float type", (), add_options, converted,
                  ("convert FOLDER half.safetensors --dtype float16", "convert echo echo-folder"))
