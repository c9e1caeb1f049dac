"""patch: one update of a source run in place of the base's, and what that does to a logit.

    patched    options -> Answer

>>> COMMAND.examples[0]
'patch L0.attn --from mqzkbmqx'
"""
from ..view import effects as view
from ..view import record
from ..view.terminal import announced
from ..view.tokens import token_text
from . import Answer, Command
from .ablate import add_at, asked_at, check_named, notes_on, of_metric
from .inputs import input_record, run_of, subject
from .options import USAGE, Refused, explained, token_ids

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of patch."""
    parser.add_argument("writer", metavar="WRITER", help="whose update is moved")
    parser.option("--from", dest="source_text", metavar="TEXT", help="the source: what the update "
                  "is taken from; as many tokens as the base")
    parser.option("--from-ids", type=token_ids, metavar="N,N,...", help="the source as token ids")
    parser.option("-t", "--text", metavar="TEXT", help="the base: what is run; - is stdin")
    add_at(parser)
    parser.option("--frozen", action="store_true", help="later writers keep their updates")


def source_of(options):
    """The text of the source, or its ids."""
    if (options.source_text is None) == (options.from_ids is None):
        raise Refused(USAGE, "patch takes one source", "give --from TEXT, or --from-ids 3,1,4")
    return options.from_ids if options.source_text is None else options.source_text


def patched(options):
    """Run base and source, then the base with one update of the source -> Answer."""
    from ..study.effects import effect
    from ..study.metrics import value
    from ..study.patching import patch
    given = source_of(options)
    of = subject(options)
    check_named(of.model, [options.writer])
    source = run_of(of.model, given, options)
    positions = None if options.at == "all" else [of.position]
    with explained(), announced("running it patched", options.verbose, options.quiet):
        edit = patch(of.run, source, options.writer, positions)
        found = effect(of.run, [edit], of.metric, options.frozen)
    outcomes = [("base", view.outcome_record(of.run, of.position, found.before)),
                ("source", view.outcome_record(source, of.position, value(source, of.metric))),
                ("patched", view.outcome_record(found.edited_run, of.position, found.after))]
    result = {"writer": options.writer, "positions": positions, "frozen": options.frozen,
              "source_input": {"text": given if type(given) is str else None,
                               "tokens": source.tokens},
              "effect": view.effect_record(found)}
    result.update(dict(outcomes))
    checks, notes = [view.check_record(found.check)], notes_on(of.model)
    where = "everywhere" if positions is None else f"at position {of.position} only"
    title = f"{asked_at(of)}: {options.writer} as in the source, {where}"
    described = record.model_record(of.source) if options.json else None

    def draw(look):
        return view.effect_lines(title, of_metric(of), outcomes, found, options.frozen,
                                 lambda token: token_text(of.model, token), checks, notes, look)

    return Answer(described, input_record(of), result, checks, notes, draw)


COMMAND = Command("patch", "WRITER --from TEXT [-t TEXT] [OPTIONS]",
                  "one update of another run, and what that does",
                  ("model", "ids", "position", "target", "against"), add_options, patched,
                  ("patch L0.attn --from mqzkbmqx",
                   "patch L1.attn.H0 -t mqzkbmqz --from azzkbazz --at here"))
