"""export: a model as a Hugging Face folder, for transformers.

    add_writing_options    --dtype and --force
    dtype_of               the dtype that --dtype names, as files say it
    writing                where something cannot be written
    written                the Answer of a command that wrote a model
    exported               options -> Answer

>>> COMMAND.examples
('export echo-folder', 'export copy --model FOLDER --dtype bfloat16')
"""
import os
from contextlib import contextmanager

from ..study.counting import count_walk
from ..view import files as view
from ..view import record
from ..view.terminal import announced
from . import Answer, Command, read_model
from .options import ENVIRONMENT, PROG, USAGE, Refused, explained

__all__ = ["COMMAND", "add_writing_options", "dtype_of", "writing", "written"]

WIDTHS = ("float32", "float16", "bfloat16", "float64")
OF_FILES = (".safetensors", ".bin", ".html", ".svg")


def add_options(parser):
    """The options of export."""
    parser.add_argument("out", nargs="?", metavar="FOLDER", help="the folder to write")
    add_writing_options(parser)


def add_writing_options(parser):
    """--dtype and --force."""
    parser.option("--dtype", choices=WIDTHS, default=WIDTHS[0],
                  help="the float type of the weights (float32)")
    parser.option("--force", action="store_true", help="overwrite what is there")


def dtype_of(options):
    """The dtype that --dtype names.

    >>> from argparse import Namespace
    >>> dtype_of(Namespace(dtype="bfloat16"))
    'BF16'
    """
    from ..files.export import DTYPE_NAMES
    return {name: dtype for dtype, name in DTYPE_NAMES.items()}[options.dtype]


@contextmanager
def writing(out):
    """Inside, an OSError means that something cannot be written: Refused."""
    try:
        yield
    except FileExistsError as error:
        message, _, hint = str(error).partition("; ")
        raise Refused(ENVIRONMENT, message, hint.replace("force=True", "--force")) from None
    except OSError as error:
        raise Refused(ENVIRONMENT, f"{out} cannot be written: {error.strerror or error}",
                      "what was there before is still there; name another place") from None


def written(model, source, named, form, options):
    """The Answer of a command that wrote a model, read from what was `named`, to options.out."""
    from ..files.fitting import n_rounded
    result = view.written_record(options.out, form, options.dtype, count_walk(model.weights),
                                 n_rounded(model.weights, dtype_of(options)))
    notes = notes_on(options.out, [file["name"] for file in result["files"]])
    described = record.model_record(source) if options.json else None
    following = f"{PROG} model check {options.out}"
    return Answer(described, {"source": named}, result, [], notes,
                  lambda look: view.written_lines(result, notes, following, look))


def notes_on(out, names):
    """Sentences on what was written: files of those names.

    >>> notes_on("small", ["config.json", "model.safetensors"])
    ['No tokenizer was written: the model has none that transformers reads.']
    """
    from ..files.export import has_tokenizer
    if out.endswith(".bin"):
        return ["A llama2.c file holds no tokenizer; llama2.c reads tokenizer.bin."]
    if "config.json" not in names:
        return []
    if not has_tokenizer(names):
        return ["No tokenizer was written: the model has none that transformers reads."]
    return ["README.md says how transformers loads it."]


def exported(options):
    """Write the folder -> Answer."""
    from ..files.export import check_place, export_folder
    if not options.out:
        raise Refused(USAGE, "export takes the folder to write", f"{PROG} export echo-folder")
    if options.out.endswith(OF_FILES):
        raise Refused(USAGE, f"{options.out} is the name of a file, and a folder is written",
                      f"{PROG} convert writes model files")
    with writing(options.out):
        check_place(options.out, options.force)     # before a model is read, which may take long
    named = options.model or "echo"
    model, source = read_model(named, options)
    with explained(), writing(options.out), \
            announced(f"writing {options.out}", options.verbose, options.quiet):
        values = export_folder(model, options.out, dtype_of(options), options.force,
                               named if os.path.isdir(named) else None)
    return written(model, source, named, values["architectures"][0], options)


COMMAND = Command("export", "FOLDER [--model FOLDER] [OPTIONS]",
                  "a model as a Hugging Face folder, for transformers", ("model",), add_options,
                  exported, ("export echo-folder", "export copy --model FOLDER --dtype bfloat16"))
