"""writers: who wrote how much towards a token, less another one, at one position.

    writers    options -> Answer

>>> COMMAND.takes
('model', 'ids', 'position', 'target', 'against')
"""
from ..study.attribution import METHODS, contributions
from ..study.metrics import value
from ..study.writers import partition
from ..view import attribution, record
from ..view.effects import check_record
from ..view.terminal import announced
from ..view.tokens import token_labels, token_text
from . import Answer, Command
from .inputs import input_record, subject
from .options import explained, whole

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of writers."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is read; - is stdin")
    parser.option("--sort", choices=("order", "size"), default="order",
                  help="in the order of the run, or the largest first (order)")
    parser.option("--heads", action="store_true", help="attention by heads and its bias")
    parser.option("--sources", action="store_true", help="heads by the tokens they read from")
    parser.option("--neurons", action="store_true", help="MLPs by neurons and their bias")
    parser.option("--most", type=whole(2, 10 ** 9), metavar="N",
                  help="only the N largest rows, the others as one")
    parser.option("--method", choices=METHODS, default=METHODS[0],
                  help="with the final norm's divisor held, or the gradient (frozen_scale)")
    parser.option("--shares", action="store_true",
                  help="also lengths, cosines, shares of the stream, and what cancels")


def writers(options):
    """Take a token's logit apart -> Answer."""
    of = subject(options)
    grain = {"attn": "source" if options.sources else "head" if options.heads else "branch",
             "mlp": "neuron" if options.neurons else "branch"}
    with explained(), announced("adding up", options.verbose, options.quiet):
        split = partition(of.run, position=of.position, **grain)
        found = contributions(of.run, of.metric, split, options.method)
    result = attribution.contributions_record(found, split, value(of.run, of.metric))
    checks = [check_record(found.check)] + [check_record(check) for check in split.checks]
    notes = notes_on(of, split)
    described = record.model_record(of.source) if options.json else None

    def draw(look):
        lines = attribution.writers_lines(title(of), found, result, options.sort, options.most,
                                          checks, look, options.shares)
        said = [] if look.quiet else [line for note in notes
                                      for line in attribution.text.wrapped(note, look)]
        return lines + [""] * bool(said) + said

    return Answer(described, input_record(of), result, checks, notes, draw)


def title(of):
    """What the rows are of."""
    less = "" if of.against is None else f", less that of {token_text(of.model, of.against)}"
    return (f"{of.model.name}: what each writer gives to the logit of "
            f"{token_text(of.model, of.target)}{less}, at position {of.position}, after "
            f"{token_labels(of.model, of.run.tokens)[of.position]}.")


def notes_on(of, split):
    """Sentences on what the numbers are not."""
    config, notes = of.model.config, []
    is_finer = [name for name, _ in split.rows] != [name for name, _ in of.run.writers]
    if config.logit_soft_cap is not None:
        notes.append("Logits are taken before the soft cap, after which they are no sum.")
    if any([block.placement == "post_norm" for block in config.blocks]):
        notes.append("Each write is carried through the norms on the stream after it, with the "
                     "divisors of this run.")
    elif is_finer and any([block.attn_post_norm or block.mlp_post_norm
                           for block in config.blocks]):
        notes.append("What a part of a sublayer writes passes the norm behind it with that norm's "
                     "divisor in this run.")
    return notes


COMMAND = Command("writers", "[TEXT] [OPTIONS]", "who wrote how much towards a token",
                  ("model", "ids", "position", "target", "against"), add_options, writers,
                  ("writers mqzkbmqz", "writers mqzkbmqz --heads --sort size --against b"))
