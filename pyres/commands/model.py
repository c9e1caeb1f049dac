"""model: what a model is (info), and whether its writers add up (check).

info reads of a folder the config and the headers of the tensors, check reads and runs the model.

    model_info, model_check    the two
    model                      options -> Answer, of either

>>> COMMAND.examples
('model info FOLDER', 'model check FOLDER')
"""
from ..model import run
from ..rng import Generator
from ..study import counting
from ..view import record, text
from ..view.terminal import announced
from . import Answer, Command, read_model, read_source
from .options import USAGE, Refused, explained, nearest

__all__ = ["COMMAND"]


def add_options(parser):
    """The options of model."""
    parser.add_argument("words", nargs="*", metavar="[info|check] FOLDER",
                        help="info: what it is; check: whether its writers add up")


def model(options):
    """info or check, of the model that was named -> Answer."""
    action, words = "info", list(options.words)
    if words and words[0] in ("info", "check"):
        action = words.pop(0)
    if len(words) > 1:
        raise Refused(USAGE, f"model does not know {words[0]!r}",
                      nearest(words[0], ["info", "check"], "name one model"))
    if words and options.model is not None:
        raise Refused(USAGE, "a model was named twice", "leave --model out")
    named = words[0] if words else options.model or "echo"
    return (model_info if action == "info" else model_check)(named, options)


def model_info(named, options):
    """What there is to know of a model without running it."""
    source = read_source(named, options)
    counts = counting.count_leaves(source.config, source.walked)    # raises where they disagree
    with explained(), announced("reading the files", options.verbose, options.quiet):
        sizes, files = record.model_record(source), record.file_records(source)
    leaves = [leaf for names, _ in source.walked for leaf in names]
    result = {"weights": record.count_record(counts)["weights"], "total": counts.total,
              "tied": "w_unembed" not in leaves, "files": files, "buffers": source.buffers,
              "config_keys_not_read": source.keys_not_read}
    checks = [{"name": "weights counted from the sizes = numbers in the file", "error": 0,
               "tolerance": 0, "ok": True}]
    return Answer(sizes, {"action": "info", "source": named}, result, checks, [],
                  lambda look: text.info_lines(sizes, result, checks, look))


N_RUNS, N_TOKENS = 3, 8


def model_check(named, options):
    """Run a model on random ids, the same each time, and add up what its writers wrote."""
    loaded, source = read_model(named, options)
    config, generator = loaded.config, Generator(0)
    sequences = [[generator.below(config.d_vocab) for _ in range(min(N_TOKENS, config.n_ctx))]
                 for _ in range(N_RUNS)]
    with announced("running the model", options.verbose, options.quiet):
        checks = [record.check_record(run(loaded, ids), f"run {i}: ")
                  for i, ids in enumerate(sequences, 1)]
    described = record.model_record(source) if options.json else None
    title = f"{loaded.name}, {N_RUNS} runs of {len(sequences[0])} random tokens"
    return Answer(described, {"action": "check", "source": named}, {"sequences": sequences},
                  checks, [], lambda look: text.verdict_lines(title, checks, look))


COMMAND = Command("model", "[info|check] FOLDER [OPTIONS]",
                  "what a model is, and whether its writers add up", ("model",), add_options,
                  model, ("model info FOLDER", "model check FOLDER"))
