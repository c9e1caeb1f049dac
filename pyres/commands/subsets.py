"""subsets: every subset of some writers, what each writer is worth alone and together.

    all_subsets    options -> Answer

>>> COMMAND.examples[0]
'subsets mqzkbmqz'
"""
import sys

from ..model import writer_names
from ..view import effects as view
from ..view import record
from ..view.progress import Progress
from . import Answer, Command
from .ablate import asked_at, check_named, notes_on, of_metric
from .inputs import input_record, subject
from .options import explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of subsets."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is run; - is stdin")
    parser.option("--writers", metavar="A,B,...",
                  help="at most 12, of any kind (both branches of every block)")


def all_subsets(options):
    """Run a model with every subset of writers switched off -> Answer."""
    from ..study.subsets import MOST_WRITERS, subsets
    of = subject(options)
    writers = (writer_names(of.model.config)[1:] if options.writers is None
               else [writer.strip() for writer in options.writers.split(",")])
    check_named(of.model, writers)
    # only a terminal is shown how far it is
    quiet = options.quiet or sys.stderr is None or not sys.stderr.isatty()
    too_many = len(writers) > MOST_WRITERS
    with explained("--writers L0.attn,L0.mlp names fewer" if too_many else None):
        with Progress(2 ** len(writers), quiet) as progress:
            found = subsets(of.run, writers, of.metric,
                            progress=lambda done, total: progress(done, "subsets"))
    with explained("trace shows which writer is not finite, ablate what is left without it"):
        result = view.subsets_record(found)
    checks = [view.check_record(check) for check in found.checks]
    notes = notes_on(of.model)
    title = (f"{asked_at(of)}: {len(writers)} writers, {len(found.values)} subsets of them "
             "switched on, the others off")
    described = record.model_record(of.source) if options.json else None

    def draw(look):
        return view.subsets_lines(title, of_metric(of), found, checks, notes, look)

    return Answer(described, input_record(of), result, checks, notes, draw)


COMMAND = Command("subsets", "[TEXT] [--writers A,B,...] [OPTIONS]",
                  "all subsets of writers: Shapley values, interactions",
                  ("model", "ids", "position", "target", "against"), add_options, all_subsets,
                  ("subsets mqzkbmqz", "subsets --writers embed,L0.attn,L1.attn.H0,L1.attn.H1"))
