"""ablate: switch writers off, or scale them, and say what that did to a logit.

    edits_named, check_named, of_metric    what was asked for
    ablate                                 options -> Answer

>>> edits_named(["L0.attn", "L1.mlp=0.5"])
[('L0.attn', 0.0), ('L1.mlp', 0.5)]
"""
import math

from ..edits import scale
from ..model import head_names, writer_names
from ..view import effects as view
from ..view import record
from ..view.terminal import announced
from ..view.tokens import token_labels, token_text
from . import Answer, Command
from .inputs import input_record, subject
from .options import BAD_INPUT, USAGE, Refused, explained, nearest

__all__ = ["COMMAND", "edits_named", "check_named", "of_metric", "asked_at", "notes_on"]


def add_options(parser):
    """The options of ablate."""
    parser.add_argument("writers", nargs="+", metavar="WRITER[=ALPHA]",
                        help="L0.attn, L0.attn.H1, L0.mlp.N3, ...; times ALPHA (0)")
    parser.option("-t", "--text", metavar="TEXT", help="what is run; - is stdin")
    add_at(parser)
    parser.option("--frozen", action="store_true", help="later writers keep their updates")


def add_at(parser):
    """The option --at, which patch has, too."""
    parser.option("--at", choices=("all", "here"), default="all",
                  help="at all positions, or only at the one asked about (all)")


def edits_named(words):
    """Words WRITER[=ALPHA] as pairs (writer, alpha); Refused where ALPHA is no finite number.

    >>> edits_named(["L0.attn=-2"])
    [('L0.attn', -2.0)]
    """
    pairs = []
    for word in words:
        writer, equals, given = word.partition("=")
        try:
            alpha = float(given) if equals else 0.0
        except ValueError:
            alpha = math.nan
        if not math.isfinite(alpha):
            raise Refused(USAGE, f"{given!r} is no number", f"{writer}=0.5 halves the update")
        pairs.append((writer, alpha))
    return pairs


def check_named(model, writers):
    """Refused for a writer whose branch the model has not; the run looks at finer ones closely."""
    known = writer_names(model.config)
    for writer in writers:
        if ".".join(writer.split(".")[:2]) not in known:
            raise Refused(BAD_INPUT, f"there is no writer {writer!r}", nearest(
                writer, known + head_names(model.config),
                f"there are {known[0]}, {known[1]} to {known[-1]}, heads L0.attn.H0, "
                "neurons L0.mlp.N0, ..."))


def of_metric(of):
    """The metric of a Subject in words: the logit of its target, less another's."""
    against = "" if of.against is None else f" less {token_text(of.model, of.against)}"
    return f"logit of {token_text(of.model, of.target)}{against}"


def asked_at(of):
    """Which model, and which position, of a Subject."""
    label = token_labels(of.model, of.run.tokens)[of.position]
    return f"{of.model.name}, after {label} at position {of.position}"


def notes_on(model):
    """What every edit says of the model it was made on, and of its metric."""
    notes = [f"On the weights of {model.name}: an edit of this trained model, not a model trained "
             "without the branch."]
    if model.config.logit_soft_cap is not None:
        notes.append("Logits are taken before the soft cap.")
    if any([block.placement == "post_norm" for block in model.config.blocks]):
        notes.append("Norms on the stream rescale what was written before the edit, too.")
    return notes


def ablate(options):
    """Run a model without the edits and with them -> Answer."""
    from ..study.effects import effect
    pairs = edits_named(options.writers)
    of = subject(options)
    check_named(of.model, [writer for writer, _ in pairs])
    positions = None if options.at == "all" else [of.position]
    edits = [scale(writer, alpha, positions) for writer, alpha in pairs]
    with explained(), announced("running it edited", options.verbose, options.quiet):
        found = effect(of.run, edits, of.metric, options.frozen)
    outcomes = [("before", view.outcome_record(of.run, of.position, found.before)),
                ("after", view.outcome_record(found.edited_run, of.position, found.after))]
    result = {"edits": [{"writer": writer, "alpha": alpha, "positions": positions}
                        for writer, alpha in pairs],
              "frozen": options.frozen, "effect": view.effect_record(found),
              "before": outcomes[0][1], "after": outcomes[1][1]}
    checks, notes = [view.check_record(found.check)], notes_on(of.model)
    where = "everywhere" if positions is None else f"at position {of.position} only"
    title = (f"{asked_at(of)}: " + ", ".join([f"{writer} times {alpha:g}"
                                              for writer, alpha in pairs]) + f", {where}")
    described = record.model_record(of.source) if options.json else None

    def draw(look):
        return view.effect_lines(title, of_metric(of), outcomes, found, options.frozen,
                                 lambda token: token_text(of.model, token), checks, notes, look)

    return Answer(described, input_record(of), result, checks, notes, draw)


COMMAND = Command("ablate", "WRITER[=ALPHA]... [-t TEXT] [OPTIONS]",
                  "switch writers off, and what that does",
                  ("model", "ids", "position", "target", "against"), add_options, ablate,
                  ("ablate L0.attn", "ablate L1.attn.H0=0.5 -t mqzkbmqz --at here --frozen"))
