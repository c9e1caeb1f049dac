"""rounding: the stream of a model with every addition rounded, and what each addition lost.

    rounded    options -> Answer

>>> COMMAND.examples[0]
'rounding mqzkbmqz --to bfloat16'
"""
from ..view import record, text
from ..view import rounding as view
from ..view.terminal import announced
from ..view.tokens import token_text
from . import Answer, Command
from .inputs import Subject, checked_position, input_record, read_subject, run_of
from .options import explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of rounding."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is run; - is stdin")
    parser.option("--to", choices=("float32", "float16", "bfloat16"), default="bfloat16",
                  help="the format that the stream is rounded to (bfloat16)")


def rounded(options):
    """Run a model on what was given, then again rounded -> Answer."""
    from ..study.rounding import rounding_ledger
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    at = checked_position(options.position, len(r.tokens))
    with explained(), announced("running it rounded", options.verbose, options.quiet):
        ledger = rounding_ledger(r, options.to)
    checks = [view.check_record(ledger)]
    described = record.model_record(source) if options.json else None
    of = Subject(model, source, given, r, at, None, None, None)

    def draw(look):
        return view.ledger_lines(ledger, at, lambda token: token_text(model, token), checks, look)

    return Answer(described, input_record(of), view.ledger_record(ledger, at), checks, [], draw)


COMMAND = Command("rounding", "[TEXT] [--to FORMAT] [OPTIONS]",
                  "the stream rounded, and what each addition lost",
                  ("model", "ids", "position"), add_options, rounded,
                  ("rounding mqzkbmqz --to bfloat16",
                   "rounding --model FOLDER --ids 3,1,4 --to float16"))
