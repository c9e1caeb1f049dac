"""train: a small model from a text, or echo from its task.

    python3 -m pyres train book.txt --out book.safetensors
    python3 -m pyres train --task echo --out echo.safetensors

OUT is the finished model.  While training, OUT.resume holds all that the run knows; it is written
whole every few steps and when Ctrl-C is pressed, and --resume goes on from it to the same bits.

    RECIPES            every option's value for a text and for echo
    recipe_of          the options of this run
    Material           what a run is trained and judged on
    trained            the loop
    train              options -> Answer

What opens files is imported where it is used, so that other commands start without it.

>>> RECIPES["echo"]["steps"], COMMAND.examples[1]
(600, 'train --task echo --out echo.safetensors')
"""
import os
import signal
import time
from collections import namedtuple
from contextlib import contextmanager

from ..config import RotaryConfig, attention_config, block_config, model_config, norm_config
from ..data import ECHO_TOKENS, echo_batch, echo_sequence, text_batch, text_loss, unigram_loss
from ..generation import generate
from ..model import make_model, run
from ..rng import Generator
from ..rotary import frequencies
from ..show import quoted
from ..study.counting import count_walk
from ..training import settings, start, step
from ..view import record, text
from ..view.curve import averaged, curve_lines
from ..view.progress import Progress, duration
from ..weights import random_weights
from . import Answer, Command
from .options import BAD_INPUT, ENVIRONMENT, PROG, USAGE, Refused, explained, from_0, whole

__all__ = ["COMMAND", "RECIPES"]


# ---- the recipe ----

RECIPES = {
    "text": {"width": 32, "blocks": 2, "heads": 2, "hidden": 128, "norm": "layer", "gated": False,
             "positions": "learned", "context": 32, "steps": 1000, "batch": 8, "rate": 3e-3,
             "warm_up": 50, "seed": 1},
    "echo": {"width": 24, "blocks": 2, "heads": 2, "hidden": 48, "norm": "layer", "gated": False,
             "positions": "learned", "context": 24, "steps": 600, "batch": 16, "rate": 5e-3,
             "warm_up": 60, "seed": 3},
}
INITIAL_STD = 0.1
LEAST_ECHO_CONTEXT = 14                 # BOS, eleven letters, and two of them again
SAVE_EVERY = 25


def add_options(parser):
    """The options of train; what is not given is None, so that a run that goes on can tell."""
    parser.add_argument("file", nargs="?", metavar="FILE.txt", help="any text")
    parser.option("--task", choices=("echo",), help="train on a task instead of a text")
    parser.option("--out", metavar="FILE", help="the model file to write")
    parser.option("--resume", action="store_true", help="go on from OUT.resume")
    parser.option("--force", action="store_true", help="overwrite what is there")
    for flag, what in (("--width", "d_model"), ("--blocks", "blocks"), ("--heads", "heads"),
                       ("--hidden", "d_mlp (4 times the width)"),
                       ("--context", "longest sequence, at least 2"),
                       ("--steps", "steps"), ("--batch", "sequences a step"),
                       ("--warm-up", "steps until the rate is reached")):
        parser.option(flag, type=whole(1, 10 ** 9), metavar="N", help=what)
    parser.option("--seed", type=whole(), metavar="N", help="of the weights and the batches")
    parser.option("--norm", choices=("layer", "rms"), help="LayerNorm or RMSNorm")
    parser.option("--gated", action="store_const", const=True, help="a gated MLP (SiLU)")
    parser.option("--positions", choices=("learned", "rotary", "none"),
                  help="how positions are told")
    parser.option("--rate", type=from_0, metavar="X", help="the highest learning rate")
    parser.option("--workers", type=whole(1, 256), metavar="N",
                  help="processes (as many as there are processors, at most 4)")


def recipe_of(options):
    """Every option's value for this run; Refused where they do not go together.

    >>> from argparse import Namespace
    >>> given = dict.fromkeys(RECIPES["text"])
    >>> recipe_of(Namespace(task=None, **dict(given, width=16)))["hidden"]
    64
    """
    recipe = dict(RECIPES[options.task or "text"])
    given = {name: getattr(options, name) for name in recipe if getattr(options, name) is not None}
    if "width" in given and "hidden" not in given:
        recipe["hidden"] = recipe["hidden"] // recipe["width"] * given["width"]
    recipe.update(given)
    if recipe["context"] < 2:
        raise Refused(BAD_INPUT, "a context of 1 token has nothing to predict the next one from",
                      "--context 2 is the least")
    if recipe["width"] % recipe["heads"]:
        width, heads = recipe["width"], recipe["heads"]
        raise Refused(BAD_INPUT, f"a width of {width} cannot be cut into {heads} heads",
                      "choose a width that the number of heads divides")
    return recipe


def new_model(recipe, tokenizer, name):
    """A model with random weights, as the recipe says."""
    d_head = recipe["width"] // recipe["heads"]
    with explained("rotary positions turn channels in pairs: choose an even width per head"):
        rotary = None
        if recipe["positions"] == "rotary":
            rotary = RotaryConfig("half", frequencies(d_head))
    norm = norm_config(recipe["norm"])
    attention = attention_config(recipe["heads"], d_head, rotary=rotary)
    block = block_config(recipe["hidden"], attention, norm=norm,
                         activation="silu" if recipe["gated"] else "gelu_tanh")
    config = model_config(recipe["width"], len(tokenizer.tokens), recipe["context"],
                          recipe["blocks"], block, final_norm=norm)
    weights = random_weights(config, recipe["seed"], INITIAL_STD, gated=recipe["gated"],
                             tied=False, positions=recipe["positions"] == "learned")
    return make_model(config, weights, name, tokenizer)


# ---- what it is trained and judged on ----

class Material(namedtuple("Material", ("tokenizer", "draw", "about", "judge"))):
    """tokenizer; draw(generator, n) -> a batch; about, a dict of str that a run to go on must
    share; judge(model) -> (a dict of figures, lines that say them, a sample).
    """


def echo_material(recipe):
    """Random strings, judged on fresh ones."""
    if recipe["context"] < LEAST_ECHO_CONTEXT:
        raise Refused(BAD_INPUT,
                      f"a context of {recipe['context']} is too short to repeat a string",
                      f"--context {LEAST_ECHO_CONTEXT} is the least for echo")

    def judge(model):
        right, n = echo_score(model, Generator(recipe["seed"] + 1), 100)
        new = generate(model, "mqzkbmqz", 8)
        sample = "mqzkbmqz" + model.tokenizer.decode(new)
        return ({"accuracy": right / n, "n_targets": n},
                [f"on 100 fresh strings its top guess is right "
                 f"{100 * right / n:.1f} % of {n} times"], sample)

    from ..files.characters import Characters
    return Material(Characters(ECHO_TOKENS, bos=0), echo_batch(recipe["context"]),
                    {"task": "echo"}, judge)


def echo_score(model, generator, n_sequences):
    """How often the model's top guess is right at a counted target of fresh echo strings, and of
    how many."""
    right = n = 0
    for _ in range(n_sequences):
        tokens, targets = echo_sequence(generator, model.config.n_ctx)
        for logits, target in zip(run(model, tokens).logits, targets):
            if target is not None:
                right, n = right + (logits.index(max(logits)) == target), n + 1
    return right, n


def text_material(path, recipe):
    """A text: nine tenths to train on, the last tenth to judge by."""
    from ..files.characters import Characters, vocabulary_of
    content = read_text(path)
    tokenizer = Characters(vocabulary_of(content))
    tokens = tokenizer.encode(content)
    cut = len(tokens) - max(2, len(tokens) // 10)
    train, held_out = tokens[:cut], tokens[cut:]
    with explained():
        draw = text_batch(train, recipe["context"])

    def judge(model):
        loss, n = text_loss(model, held_out)
        unigram = unigram_loss(train, held_out[1:], model.config.d_vocab)
        prompt = model.tokenizer.decode(held_out[:2])
        new = generate(model, held_out[:2], model.config.n_ctx, 0.8)
        return ({"loss": loss, "unigram_loss": unigram, "n_targets": n},
                [f"held-out loss {loss:.3f} nats over {n} characters, each scored once; "
                 f"counting characters alone gives {unigram:.3f}"],
                prompt + model.tokenizer.decode(new))

    return Material(tokenizer, draw, {"task": "text", "sha256": record.digest(path)}, judge)


def material_of(options, recipe):
    """The Material of the task or the text that was named."""
    return echo_material(recipe) if options.task else text_material(options.file, recipe)


def read_text(path):
    """The text of a file; Refused where it is none."""
    with explained(unread="name a text file"):
        with open(path, "rb") as file:
            data = file.read()
    if not data:
        raise Refused(BAD_INPUT, f"{path} is empty", "name a file with some text")
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(BAD_INPUT, f"{path} is not a text in UTF-8: byte {error.start} is wrong",
                      "convert it to UTF-8 first")
    if "\0" in content:
        raise Refused(BAD_INPUT, f"{path} is not a text: it holds a NUL character",
                      "name a text file")
    return content


# ---- the run ----

def check_place(options):
    """Refused where OUT is a folder, or something is there that would be lost."""
    if os.path.isdir(options.out):
        raise Refused(ENVIRONMENT, f"{options.out} exists, and is a folder",
                      "name a file for the model")
    hints = ((options.out, "--force overwrites it"),
             (options.out + ".resume", "--resume goes on from it, --force begins anew"))
    for path, hint in hints:
        if os.path.exists(path) and not options.force and not options.resume:
            raise Refused(ENVIRONMENT, f"{path} exists", hint)


def begun(options, recipe, material):
    """A Training before its first step."""
    name = os.path.basename(options.out).partition(".")[0] or "unnamed"
    name = name.encode("utf-8", "replace").decode("utf-8")      # a file's name may be no text
    with explained():
        rule = settings(recipe["steps"], recipe["batch"], recipe["rate"], recipe["warm_up"],
                        seed=recipe["seed"])
    return start(new_model(recipe, material.tokenizer, name), rule)


def resumed(options):
    """Return (training, recipe, about) from OUT.resume; Refused where an option says otherwise."""
    from ..files.native import load_training
    path = options.out + ".resume"
    with explained("without --resume a new run begins",
                   unread="there is nothing to resume; leave --resume out"):
        training, about = load_training(path)
    if about.get("task") != (options.task or "text"):
        raise Refused(BAD_INPUT, f"{path} is of a run on another task",
                      "name what it was trained on")
    recipe = about.get("recipe")
    if type(recipe) is not dict or set(recipe) != set(RECIPES["text"]):
        raise Refused(BAD_INPUT, f"{path} does not say how the run was begun",
                      "begin anew with --force")
    for name in recipe:
        given = getattr(options, name)
        if given is not None and given != recipe[name]:
            raise Refused(BAD_INPUT, f"{path} is of a run with {name} {recipe[name]}, "
                          f"this asks for {given}",
                          "leave the option out, or begin anew with --force")
    recipe["context"] = training.model.config.n_ctx
    return training, recipe, about


def check_same(about, material, path):
    """Refused where a run to go on with was on another text."""
    if about.get("sha256") != material.about.get("sha256"):
        raise Refused(BAD_INPUT, f"{path} is of a run on another text",
                      "name what it was trained on")


def prepare_worker():
    """In a worker: Ctrl-C is the main process's to answer, and when that is gone, so is this."""
    import threading
    from multiprocessing import connection, parent_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = parent_process().sentinel        # getppid() is another process where a server forks

    def watch():
        connection.wait([main])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def trained(training, material, recipe, options):
    """Return (training, losses) once all steps are done; what is known is saved on the way."""
    about = dict(material.about, recipe=recipe)
    losses, n_targets = [], 0
    workers = options.workers or min(4, os.cpu_count() or 1)
    n_steps = training.settings.n_steps
    pool = None
    if workers > 1:
        from concurrent.futures import ProcessPoolExecutor      # slow to import, used only here
        pool = ProcessPoolExecutor(workers, initializer=prepare_worker)
    saved(training, options.out, about)         # what cannot be written is known before any work
    try:
        with Progress(n_steps, options.quiet) as progress:
            while training.moments.step < n_steps:
                with explained("a smaller learning rate may help, --rate"):
                    training, report = step(training, material.draw, pool)
                losses.append(report.loss)
                n_targets += report.n_targets
                progress(training.moments.step, said(report, n_targets, progress))
                if training.moments.step % SAVE_EVERY == 0:
                    saved(training, options.out, about)
    except KeyboardInterrupt:
        saved(training, options.out, about)
        raise
    finally:
        if pool is not None:
            pool.shutdown()
    return training, losses


def said(report, n_targets, progress):
    """What progress says of a step."""
    pace = n_targets / max(progress.seconds(), 1e-9)
    return f"loss {report.loss:.3f}, {pace:.0f} targets/s"


def saved(training, out, about):
    """Write OUT.resume; Refused where that cannot be done, and what was there is then still
    there."""
    from ..files.native import save_training
    with writing(out + ".resume"):
        save_training(training, out + ".resume", about)


@contextmanager
def writing(path):
    """Inside, an OSError means that a file cannot be written: Refused."""
    try:
        yield
    except OSError as error:
        raise Refused(ENVIRONMENT, f"{path} cannot be written: {error.strerror or error}",
                      "what was there before is still there; --out names another place") from None


def train(options):
    """Train, write OUT, and judge what was written -> Answer."""
    from ..files.native import load, save
    if (options.file is None) == (options.task is None):
        raise Refused(USAGE, "train takes a text file, or --task echo", "give one of them")
    if options.out is None:
        raise Refused(USAGE, "there is nowhere to write the model",
                      "--out model.safetensors names it")
    check_place(options)
    if options.resume:
        training, recipe, about = resumed(options)
        material = material_of(options, recipe)
        check_same(about, material, options.out + ".resume")
    else:
        recipe = recipe_of(options)
        material = material_of(options, recipe)
        training = begun(options, recipe, material)
    begin = time.monotonic()
    training, losses = trained(training, material, recipe, options)
    with explained("a smaller learning rate may help, --rate"), writing(options.out):
        save(training.model, options.out)
        os.remove(options.out + ".resume")
    model = load(options.out)                       # as it is in the file, in float32
    figures, lines, sample = material.judge(model)
    result = {"out": options.out, "sha256": record.digest(options.out),
              "total": count_walk(model.weights), "steps": training.moments.step,
              "loss": averaged(losses, 50) if losses else [], "judged": figures, "sample": sample}
    seconds = time.monotonic() - begin
    asked = {"file": options.file, "task": options.task, "recipe": recipe}
    return Answer(None, asked, result, [], [],
                  lambda look: train_lines(result, losses, lines, sample, seconds, look))


def train_lines(result, losses, judged, sample, seconds, look):
    """What is said at the end: the loss as a picture, how good the model is, a sample, and what is
    next."""
    lines = text.painted("heading", ["loss by step, in nats"], look) + curve_lines(losses, look)
    lines += [line for said in judged for line in text.wrapped(said, look)]
    lines += text.wrapped(f"sample: {quoted(sample)}", look)
    n_weights = text.counted(result["total"], "weight")
    lines += text.wrapped(f"{result['out']}: {n_weights}, {result['steps']} steps, "
                          f"{duration(seconds)}", look)
    following = f"Next: {PROG} trace --model {result['out']} TEXT"
    return lines + ([] if look.quiet else text.wrapped(following, look))


COMMAND = Command("train", "FILE.txt|--task echo --out FILE [OPTIONS]",
                  "train a small model from a text, or echo", (), add_options, train,
                  ("train book.txt --out book.safetensors --steps 200",
                   "train --task echo --out echo.safetensors"))
