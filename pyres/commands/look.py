"""look: the one-screen answer.  What runs when no command is named.

The stream state by state at one position, what the model would say if it stopped there, who wrote
how much towards its answer, what one branch did, and how much of the gradient comes down.

    looked    options -> Answer

>>> COMMAND.name, COMMAND.takes
('look', ('model', 'ids', 'position', 'target', 'against'))
"""
from ..edits import scale
from ..nonlinear import softmax
from ..study.attribution import contributions
from ..study.effects import effect
from ..study.gradients import branch_gradients, gradient_length, state_gradients
from ..study.lens import lens
from ..view import between, record, trace_rows
from ..view.effects import check_record
from ..view.look import look_lines
from ..view.terminal import announced
from ..view.tokens import token_labels, token_text
from . import Answer, Command
from .ablate import check_named, notes_on
from .inputs import input_record, subject
from .options import explained, named

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of look."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is read; - is stdin")
    parser.option("--without", type=named, metavar="WRITER",
                  help="the writer switched off (L0.attn)")


def looked(options):
    """Look at what was given -> Answer."""
    of = subject(options)
    r, metric, at = of.run, of.metric, of.position
    off = options.without or (r.writers[1][0] if len(r.writers) > 1 else "embed")
    check_named(of.model, [off])
    with explained(), announced("looking at it", options.verbose, options.quiet):
        found = contributions(r, metric)
        readings = lens(r, targets=[of.target], top=3, positions=[at])
        done = effect(r, [scale(off, 0)], metric)
        gradient = {"whole": gradient_length(state_gradients(r, metric)[0][1].total),
                    "branches": gradient_length(branch_gradients(r, metric)[0])}
    states = rows_of(trace_rows(between(r, 0, len(r.steps.blocks)), at), readings, found.rows)
    chances = [softmax(one.logits[at])[of.target] for one in (r, done.edited_run)]
    result = {
        "states": states, "constant": found.constant, "logit": found.total,
        "effect": {"writer": off, "before": chances[0], "after": chances[1],
                   "direct": done.direct, "downstream": done.downstream, "rescale": done.rescale,
                   "total": done.total},
        "gradient": gradient}
    checks = [record.check_record(r), check_record(found.check), check_record(done.check)]
    notes = notes_on(of.model)
    described = record.model_record(of.source) if options.json else None
    words = {"model": f"{of.model.name}: {len(r.steps.blocks)} blocks, d_model "
                      f"{of.model.config.d_model}, {len(r.writers)} writers",
             "text": of.given if type(of.given) is str else None,
             "last": token_labels(of.model, r.tokens)[at],
             "target": token_text(of.model, of.target),
             "against": None if of.against is None else token_text(of.model, of.against),
             "notes": notes[1:]}                            # the heading names the model
    return Answer(described, input_record(of), result, checks, notes,
                  lambda look: look_lines(result, checks, words, lambda token: token_text(
                      of.model, token), look))


def rows_of(rows, readings, contributed):
    """A dict for every state: its writers, lengths, the angle, guesses, what was contributed."""
    guesses, given = {name: read[0].guesses for name, read in readings}, dict(contributed)
    return [{"name": row.name, "length": row.state_length, "added": row.update_length,
             "cosine": row.cosine,
             "guesses": [{"token": token, "probability": chance}
                         for token, chance in guesses.get(row.name) or []],
             "contribution": given[row.name] + given.get(f"{row.name}.norm_bias", 0)}
            for row in rows]


COMMAND = Command("look", "[TEXT] [OPTIONS]", "one screen: the stream, and who wrote what",
                  ("model", "ids", "position", "target", "against"), add_options, looked,
                  ("look mqzkbmqz", "look mqzkbmqz --without L0.mlp --target k"))
