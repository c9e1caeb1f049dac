"""norms: how long the stream is, how long what is added to it, or at which angle, everywhere.

    norms    options -> Answer

>>> COMMAND.takes
('model', 'ids')
"""
from ..view import Selection, heat, record, text, trace_rows
from ..view.tokens import token_labels
from . import Answer, Command
from .inputs import Subject, input_record, read_subject, run_of
from .options import USAGE, Refused

__all__ = ["COMMAND"]

OF = {"stream": ("state_length", "length of the stream after every writer"),
      "update": ("update_length", "length of what every writer added"),
      "cosine": ("cosine", "cosine of what every writer added with the stream before it")}


def add_options(parser):
    """The options of norms."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is read; - is stdin")
    parser.option("--of", choices=tuple(OF), default="stream",
                  help="lengths of the stream or of updates, or their cosine (stream)")
    parser.option("--scale", choices=("log", "linear"), help="of the shades (log; of cosines "
                  "always linear)")


def norms(options):
    """Measure every state or update at every position -> Answer."""
    if options.of == "cosine" and options.scale == "log":
        raise Refused(USAGE, "--scale log means nothing to cosines, which may be 0 or below",
                      "leave it out")
    scale = options.scale or ("linear" if options.of == "cosine" else "log")
    model, source, given = read_subject(options)
    r = run_of(model, given, options)
    field, what = OF[options.of]
    by_position = [trace_rows(Selection(r.states, r.writers), t) for t in range(len(r.tokens))]
    rows = [(of_writer[0].name, [getattr(row, field) for row in of_writer])
            for of_writer in zip(*by_position)]
    # the embedding has no stream before it, and a parallel block no state between
    rows = [(name, cells) for name, cells in rows if any([a is not None for a in cells])]
    found = heat.heat_of(rows, scale)
    if options.of == "cosine":
        found = found._replace(low=0, high=1, first_left_out=False)
    notes = (["position 0 is far larger than the others, and left out of the scale"]
             if found.first_left_out else [])
    result = {"of": options.of, "scale": scale,
              "grid": [{"name": name, "values": cells} for name, cells in rows],
              "low": found.low, "high": found.high,
              "position_0_in_scale": not found.first_left_out}
    described = record.model_record(source) if options.json else None
    of = Subject(model, source, given, r, None, None, None, None)

    def draw(look):
        heads = heat.position_heads(token_labels(model, r.tokens))
        lines = text.wrapped(f"{model.name}: {what}, at every position", look) + [""]
        return lines + heat.heat_lines(found, heads, look) + legend(found, notes, look)

    return Answer(described, input_record(of), result, [], notes, draw)


def legend(found, notes, look):
    """What the shades mean, and the notes."""
    if look.quiet:
        return []
    low, high = text.figure(found.low, look), text.figure(found.high, look)
    said = (f"The sign behind a number is its size on a {found.scale} scale, "
            f"from {low} to {high}: {' '.join(heat.SHADES[1:])}")
    return [line for note in [said] + notes for line in [""] + text.wrapped(note, look)]


COMMAND = Command("norms", "[TEXT] [OPTIONS]", "a heat map of lengths, state by position",
                  ("model", "ids"), add_options, norms,
                  ("norms mqzkbmqz", "norms mqzkbmqz --of cosine"))
