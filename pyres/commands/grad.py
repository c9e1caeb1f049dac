"""grad: how the gradient of a logit flows down the stream.

    title_of, notes_on    what is shown, in words
    grad                  options -> Answer

>>> COMMAND.examples[0]
'grad mqzkbmqz --check'
"""
from ..view import gradients as view
from ..view import record
from ..view.terminal import announced
from ..view.tokens import token_labels, token_text
from . import Answer, Command
from .inputs import input_record, subject
from .options import explained

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of grad."""
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what is run; - is stdin")
    parser.option("--check", action="store_true",
                  help="move every state a little, and compare")
    parser.option("--paths", action="store_true",
                  help="every path by itself, where there are at most 10 steps")


def title_of(of):
    """What is shown of a Subject."""
    against = "" if of.against is None else f" less that of {token_text(of.model, of.against)}"
    label = token_labels(of.model, of.run.tokens)[of.position]
    return (f"{of.model.name}: the gradient of the logit of {token_text(of.model, of.target)}"
            f"{against}, at position {of.position}, after {label}, at every state.")


def notes_on(model):
    """What a model's placement and its soft cap mean for its gradients."""
    notes = []
    if model.config.logit_soft_cap is not None:
        notes.append("Logits are taken before the soft cap.")
    if any([block.placement == "post_norm" for block in model.config.blocks]):
        notes.append("Norms stand on the stream itself here, and the identity part goes through "
                     "them, too.")
    if any([block.placement == "parallel" for block in model.config.blocks]):
        notes.append("Attention and MLP of a parallel block are one step, and one branch.")
    return notes


def grad(options):
    """Follow the gradient of a metric down the stream -> Answer."""
    from ..study import gradients, paths, slopes
    of = subject(options)
    r, metric = of.run, of.metric
    with explained(), announced("following the gradient", options.verbose, options.quiet):
        found = paths.paths(r, metric) if options.paths else []
        lengths = gradients.state_lengths(r, metric)
        curves = gradients.curves(r, metric)
        parts = paths.path_length_gradients(r, metric)
        slope_checks = slopes.slope_checks(r, metric) if options.check else []
        whole = gradients.state_gradients(r, metric)[0][1].total
    by_length = paths.masses(parts)
    by_path = list(zip(found, paths.masses([path.gradient for path in found]))) if found else []
    result = view.grad_record(lengths, curves, by_length, by_path)
    checks = view.check_records(paths.path_check(parts, whole), slope_checks)
    notes = notes_on(of.model)
    described = record.model_record(of.source) if options.json else None
    return Answer(described, input_record(of), result, checks, notes,
                  lambda look: view.grad_lines(title_of(of), lengths, curves, by_length, by_path,
                                               checks, notes, look))


COMMAND = Command("grad", "[TEXT] [--check] [--paths] [OPTIONS]",
                  "how the gradient flows: its parts, three curves, path lengths",
                  ("model", "ids", "position", "target", "against"), add_options, grad,
                  ("grad mqzkbmqz --check", "grad --model FOLDER --ids 3,1,4 --paths"))
