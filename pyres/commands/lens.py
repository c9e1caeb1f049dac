"""lens: what the model would guess if it stopped at a state, at every position.

    read    options -> Answer

>>> COMMAND.takes
('model', 'ids', 'position', 'target')
"""
from ..study.lens import METHODS, best, is_finite, lens
from ..view import record
from ..view.lens import lens_lines, lens_record
from ..view.terminal import announced
from ..view.tokens import bare_text, token_labels, token_text
from . import Answer, Command
from .inputs import Subject, checked_position, input_record, read_subject, run_of, token_named
from .options import explained, whole

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of lens."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is read; - is stdin")
    parser.option("--top", type=whole(1, 100), default=1, metavar="N", help="guesses a cell (1)")
    parser.option("--stride", type=whole(1, 10 ** 6), default=1, metavar="N",
                  help="every Nth state, and always the last (1)")
    parser.option("--method", choices=METHODS, default=METHODS[0],
                  help="the state's own statistics, the last state's divisor, or the exact "
                  "derivative (own)")
    parser.option("--here", action="store_true",
                  help="only the position of -p; with jacobian always")


def read(options):
    """Read every state at every position -> Answer."""
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    at = checked_position(options.position, len(r.tokens))
    # the derivative takes d_model backward passes for every position
    here = options.here or options.method == "jacobian"
    positions = [at] if here else list(range(len(r.tokens)))
    if options.target is None:
        targets = [best(r.logits[t])[0] if is_finite(r.logits[t]) else None for t in positions]
    else:
        targets = [token_named(model, options.target)] * len(positions)
    names = [name for name, _ in r.states]
    chosen = names[:-1][::options.stride] + names[-1:]
    with explained(), announced("reading every state", options.verbose, options.quiet):
        found = lens(r, options.method, targets, min(options.top, model.config.d_vocab), chosen,
                     positions)
    k = positions.index(at)
    of = Subject(model, source, given, r, at, targets[k], None, None)
    result = lens_record(found, options.method, positions, targets,
                         lambda token: bare_text(model, token))
    described = record.model_record(source) if options.json else None
    labels = token_labels(model, r.tokens)

    def draw(look):
        title = f"{model.name}: the best guess for the next token at every state"
        return lens_lines(title, found, positions, [labels[t] for t in positions], k,
                          options.method, token_name(model, targets[k]),
                          lambda token: token_text(model, token), look)

    return Answer(described, input_record(of), result, [], [], draw)


def token_name(model, target):
    """A target as text; there is none where the logits are no numbers."""
    return "none" if target is None else token_text(model, target)


COMMAND = Command("lens", "[TEXT] [OPTIONS]", "the top guess at every state and position",
                  ("model", "ids", "position", "target"), add_options, read,
                  ("lens mqzkbmqz", "lens mqzkbmqz --top 3 --here --target k"))
