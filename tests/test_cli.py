"""The command line: what it prints, where, and with which exit code.

Most tests run main() here, with captured streams; some start a process, because pipes, encodings
and what is imported show only there.
"""
import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections import namedtuple
from unittest import mock

import pyres
from pyres import cli
from pyres.files import safetensors
from pyres.files.characters import Characters
from pyres.view import look, text
from pyres.view.terminal import announced

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = os.path.join("tests", "data", "models")
GPT2 = os.path.join(MODELS, "gpt2")
NAMES = ("gpt2", "llama", "llama_tied")
TRACE = ["trace", "--model", GPT2, "--ids", "3,1,4"]
COMMANDS = ("look", "toy", "trace", "count", "model")
# one of each kind of answer, with all that it can show
ANSWERS = (
    ["toy"], ["toy", "--no-attn"],
    ["toy", "--no-attn", "--no-mlp", "--x", ",".join(["1.25"] * 40)],
    TRACE, TRACE + ["--vectors"], TRACE + ["--layers", "1:2"],
    ["count", "--layers", "32"], ["count", "--model", GPT2],
    ["count", "--layers", "12", "--width", "768", "--hidden", "3072", "--heads", "12", "--bias",
     "--norm", "layer", "--vocab", "50257", "--positions", "1024", "--tied"],
    ["model", "info", GPT2], ["model", "check", GPT2])

Done = namedtuple("Done", "code out err")


class Stream(io.StringIO):
    """A captured stream that may be a terminal, or fail."""

    def __init__(self, text="", terminal=False, error=None):
        super().__init__(text)
        self.terminal, self.error = terminal, error

    def isatty(self):
        return self.terminal

    def write(self, text):
        if self.error is not None:
            raise self.error
        return super().write(text)


def here(*argv, stdin="", stdout=None, **variables):
    """Run main(argv) in this process, with only these of the variables that it reads -> Done."""
    out, err = Stream() if stdout is None else stdout, Stream()
    given = None if stdin is None else io.StringIO(stdin)
    kept = {name: value for name, value in os.environ.items()
            if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "PYRES_TRACEBACK")}
    with mock.patch.dict(os.environ, {**kept, **variables}, clear=True):
        with mock.patch.object(sys, "stdin", given), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(list(argv))
    return Done(code, out.getvalue() if isinstance(out, Stream) else "", err.getvalue())


def process(*argv, **settings):
    """Run `python -m pyres` -> Done, of bytes."""
    done = subprocess.run([sys.executable, "-m", "pyres", *argv], cwd=ROOT, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)
    return Done(done.returncode, done.stdout, done.stderr)


def environment(**variables):
    """This process's variables and these; output is buffered, as it mostly is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, **variables}


class Case(unittest.TestCase):
    def good(self, *argv, **settings):
        """Run what must succeed and say nothing on stderr; return its stdout."""
        done = here(*argv, **settings)
        self.assertEqual((done.code, done.err), (0, ""), argv)
        return done.out

    def parsed(self, *argv, **settings):
        return json.loads(self.good(*argv, "--json", **settings))

    def refused(self, code, message, *argv, **settings):
        """Run what must be refused with nothing on stdout; return its stderr."""
        done = here(*argv, **settings)
        self.assertEqual((done.code, done.out), (code, ""), argv)
        self.assertIn(message, done.err)
        self.assertNotIn("Traceback", done.err)
        return done.err


def setUpModule():
    os.chdir(ROOT)


class Toy(Case):
    def vectors(self, *argv):
        result = self.parsed("toy", *argv)["result"]
        return ([state["vector"] for state in result["states"]],
                [writer["vector"] for writer in result["writers"]], result["total_update"])

    def test_the_lesson(self):
        self.assertEqual(self.vectors(), ([[1, 2, 3], [1.5, 1, 3], [1.5, 2, 4]],
                                          [[0.5, -1, 0], [0, 1, 1]], [0.5, 0, 1]))
        self.assertEqual(self.vectors("--no-attn"),
                         ([[1, 2, 3], [1, 3, 4]], [[0, 1, 1]], [0, 1, 1]))
        self.assertEqual(self.vectors("--no-mlp")[0][-1], [1.5, 1, 3])
        self.assertEqual(self.vectors("--no-mlp", "--no-attn"), ([[1, 2, 3]], [], [0, 0, 0]))

    def test_the_table(self):
        self.assertEqual(self.good("toy", "-q").splitlines(), [
            "stream       1     2  3", "+ attention  0.5  -1  0", "= stream     1.5   1  3",
            "+ MLP        0     1  1", "= stream     1.5   2  4"])
        self.assertIn("+ attention  off\n", self.good("toy", "--no-attn"))
        self.assertIn("0.5, 0, 1\n", self.good("toy"))

    def test_no_command_is_look(self):
        self.assertEqual(self.good(), self.good("look"))
        self.assertEqual(self.good("--json"), self.good("look", "mqzkbmqz", "--json"))

    def test_a_wrong_width_shows_the_real_error(self):
        error = self.refused(3, "shape (4,), the stream (3,)", "toy", "--mlp-width", "4")
        with self.assertRaises(ValueError) as raised:
            pyres.add_residual([1, 2, 3], [0, 1, 1, 0])
        self.assertIn(str(raised.exception), error)
        self.refused(3, "the update has shape (2,)", "toy", "--mlp-width", "2")
        self.refused(3, "the update has shape (2,)", "toy", "--attn", "1,2")
        self.assertEqual(self.good("toy", "--mlp-width", "3"), self.good("toy"))

    def test_values_that_begin_with_a_minus(self):
        want = self.vectors("--attn=-0.5,-1,0")
        self.assertEqual(want[1][0], [-0.5, -1, 0])
        self.assertEqual(self.vectors("--attn", "-0.5,-1,0"), want)
        self.assertEqual(self.vectors("--attn", "\u22120.5,\u22121,0"), want)
        self.assertEqual(self.vectors("--attn", "-.5,-1,0", "--x", "-1,2,3")[0][0], [-1, 2, 3])

    def test_numbers_are_exact(self):
        out = self.good("toy", "--x", "0.1,1/3", "--attn", "0.2,1/3", "--mlp", "0,1/3", "-q")
        self.assertEqual(out.splitlines()[-1].split(), ["=", "stream", "0.3", "1"])
        self.assertEqual(self.vectors("--x", "0.1", "--attn", "0.2", "--mlp", "0")[0][-1], [0.3])
        self.assertEqual(self.vectors("--x", "1/3", "--no-mlp", "--no-attn")[0], [[1 / 3]])

    def test_what_is_no_number(self):
        for value in ("1,,2", "a", "1/0", "nan", "1e9", "9" * 41, "", "True", "１"):
            with self.subTest(value=value):
                self.refused(2, "is no number such as 2, -0.5 or 1/3", "toy", "--x", value)
        self.refused(2, "not between 1 and 1000", "toy", "--mlp-width", "0")
        self.refused(2, "is no whole number", "toy", "--mlp-width", "four")


class Trace(Case):
    def test_json_has_the_numbers_of_a_run(self):
        for name in NAMES:
            folder = os.path.join(MODELS, name)
            model = pyres.load(folder)
            with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
                sequences = [golden["input_ids"] for golden in json.load(file)["runs"]]
            for ids in sequences:
                with self.subTest(model=name, ids=ids):
                    r = pyres.run(model, ids)
                    answer = self.parsed("trace", "--model", folder, "--vectors", "--ids",
                                         ",".join(map(str, ids)))
                    self.assertEqual(answer["input"]["tokens"], ids)
                    for kind in ("states", "writers"):
                        got = [(one["name"], one["vectors"]) for one in answer["result"][kind]]
                        self.assertEqual(got, getattr(r, kind))
                    self.assertEqual(answer["result"]["logits"], r.logits[-1])
                    check = pyres.sum_check(r)
                    self.assertEqual(answer["checks"], [{
                        "name": check.rule, "error": check.error, "tolerance": check.tolerance,
                        "ok": True}])

    def test_json_norms_are_lengths(self):
        r = pyres.run(pyres.load(GPT2), [3, 1, 4])
        states = self.parsed(*TRACE)["result"]["states"]
        for (name, rows), entry in zip(r.states, states):
            self.assertEqual(sorted(entry), ["name", "norm"])
            for row, norm in zip(rows, entry["norm"]):
                self.assertAlmostEqual(math.hypot(*row) / norm, 1, delta=1e-14)

    def test_json_fields(self):
        answer = self.parsed(*TRACE)
        self.assertEqual(list(answer), ["schema", "command", "model", "input", "result", "checks",
                                        "notes"])
        with open(os.path.join(GPT2, "model.safetensors"), "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.assertEqual(answer["model"], {
            "name": "gpt2", "sha256": digest, "family": "gpt2", "n_layers": 2, "d_model": 8,
            "d_mlp": 32, "n_heads": 2, "n_kv_heads": 2, "d_head": 4, "d_vocab": 29, "n_ctx": 16,
            "placement": "pre_norm"})
        self.assertEqual(answer["input"], {
            "text": None, "tokens": [3, 1, 4], "token_texts": None, "position": 2, "target": None,
            "against": None})
        self.assertEqual((answer["schema"], answer["command"]), ("pyres/1", "trace"))
        self.assertNotIn("logits", answer["result"])
        self.assertEqual(self.good(*TRACE, "--json"), self.good(*TRACE, "--json"))

    def test_a_position(self):
        r = pyres.run(pyres.load(GPT2), [3, 1, 4])
        for given, at in (("0", 0), ("last", 2), ("2", 2)):
            answer = self.parsed(*TRACE, "--vectors", "-p", given)
            self.assertEqual(answer["input"]["position"], at)
            self.assertEqual(answer["result"]["logits"], r.logits[at])
        self.assertIn("Token 1 at position 1 of 0 to 2", self.good(*TRACE, "--position=1"))
        self.refused(3, "there is no position 3; the last is 2", *TRACE, "-p", "3")
        self.refused(3, "there is no position -1", *TRACE, "-p", "-1")
        self.refused(2, "'first' is no whole number", *TRACE, "-p", "first")

    def test_some_layers(self):
        def names(*argv):
            result = self.parsed(*TRACE, *argv)["result"]
            return [[entry["name"] for entry in result[kind]] for kind in ("states", "writers")]
        self.assertEqual(names("--layers", "1:2"), [["L0.mlp", "L1.attn", "L1.mlp"],
                                                    ["L1.attn", "L1.mlp"]])
        self.assertEqual(names("--layers", ":1"), [["embed", "L0.attn", "L0.mlp"]] * 2)
        self.assertEqual(names("--layers", "0:"), names())
        for layers in ("1:1", "1:3", "2:", "9:1"):
            self.refused(3, "names no blocks; there are 2", *TRACE, "--layers", layers)
        self.refused(2, "is no range of blocks such as", *TRACE, "--layers", "1")

    def test_the_table(self):
        lines = self.good(*TRACE, "--columns", "80").splitlines()
        self.assertEqual(lines[0], "gpt2: 2 blocks, d_model 8, 5 writers.  "
                                   "Token 4 at position 2 of 0 to 2.")
        r, rows = pyres.run(pyres.load(GPT2), [3, 1, 4]), {}
        for line in lines[3:8]:
            name, state, update, cos = line.replace("+ ", "").split()
            rows[name] = (state, update, cos)
        before = None
        for (name, update), (_, state) in zip(r.writers, r.states):
            u, x = update[2], state[2]
            size = {"u": pyres.dot(u, u) ** 0.5, "x": pyres.dot(x, x) ** 0.5}
            cos = "." if before is None else "%.3f" % (
                pyres.dot(u, before) / size["u"] / pyres.dot(before, before) ** 0.5)
            self.assertEqual(rows[name], ("%.3f" % size["x"], "%.3f" % size["u"], cos))
            before = x
        self.assertIn("check: embed + sum of updates = final holds; the error is", lines[-2])

    def test_the_numbers(self):
        r = pyres.run(pyres.load(GPT2), [3, 1, 4])
        out = self.good(*TRACE, "--vectors", "--columns", "200", "--precision", "5")
        shown = [line.split()[-8:] for line in out.splitlines()
                 if re.match(r"(embed|\+ L\S+|= stream) .*(\..*){8}", line)]
        want = [r.writers[0][1][2]]
        for (_, update), (_, state) in zip(r.writers[1:], r.states[1:]):
            want += [update[2], state[2]]
        self.assertEqual(shown, [["%.5f" % a for a in vector] for vector in want])

    def test_other_placements(self):
        for placement, rows, rule in (
                ("parallel", ["embed", "+ L0.attn", "+ L0.mlp", "= stream"],
                 "embed + sum of updates = final holds"),
                ("post_norm", ["embed", "+ L0.attn", "= norm(sum)", "+ L0.mlp", "= norm(sum)"],
                 "each carried through the norms after it")):
            with self.subTest(placement=placement):
                block = pyres.block_config(8, pyres.attention_config(2, 2), placement=placement)
                config = pyres.model_config(4, 9, 8, 1, block)
                model = pyres.make_model(config, pyres.random_weights(config, std=1.0))
                with mock.patch("pyres.files.load", return_value=model):
                    out = self.good("trace", "--ids", "3,1,4", "--vectors", "--columns", "200")
                    states = self.parsed("trace", "--ids", "3,1,4")["result"]["states"]
                table = out.split("\n\n")[2].splitlines()
                self.assertEqual([re.split("  +", line)[0] for line in table], rows)
                self.assertIn(rule, out.replace("\n  ", " "))
                self.assertEqual(len(states), 2 if placement == "parallel" else 3)
                # a parallel block has no state after its attention: a point stands there
                self.assertEqual(out.splitlines()[4].split()[2] == ".", placement == "parallel")

    def test_without_a_tokenizer_a_text_is_refused(self):
        error = self.refused(3, "has no tokenizer", "trace", "hello", "--model", GPT2)
        self.assertIn("hint: give token ids in place of TEXT: --ids 3,1,4", error)

    def test_a_text_and_its_tokens(self):
        texts = ["\x1b"] + [chr(ord("a") + i) for i in range(1, 29)]
        model = pyres.load(GPT2)._replace(tokenizer=Characters(texts))
        with mock.patch("pyres.files.load", return_value=model):
            answer = self.parsed("trace", "d\x1bb", "--model", GPT2)
            self.assertEqual(answer["input"]["tokens"], [3, 0, 1])
            self.assertEqual(answer["input"]["token_texts"], ["d", "\x1b", "b"])
            self.assertEqual(answer["input"]["text"], "d\x1bb")
            self.assertIn("Token 1 'b' at", self.good("trace", "d\x1bb", "--model", GPT2))
            self.assertIn(r"Token 0 '\x1b' at", self.good("trace", "d\x1b", "--model", GPT2))
            for piped in ("d\x1bb", "d\x1bb\n", "d\x1bb\r\n"):
                again = self.parsed("trace", "-", "--model", GPT2, stdin=piped)
                self.assertEqual(again, answer)

    def test_what_is_traced_is_said_once(self):
        self.refused(2, "both TEXT and --ids were given", *TRACE, "text")
        self.refused(2, "there is nothing to run", "trace", "--model", GPT2)
        self.refused(2, "there is no place for 'too'", "trace", "one", "too", "--model", GPT2)

    def test_a_bad_sequence(self):
        self.refused(3, "token 1 is 29, the vocabulary has 29 (0 to 28)", *TRACE[:-1], "3,29")
        self.refused(3, "token 0 is -1", *TRACE[:-1], "-1,2")
        self.refused(3, "17 tokens, the model takes 1 to 16", *TRACE[:-1], ",".join(["1"] * 17))
        self.refused(2, "'x' is no whole number", *TRACE[:-1], "1,x")

    def test_a_bad_model(self):
        self.refused(3, "there is no folder or file 'nowhere'", "trace", "a", "--model", "nowhere")
        error = self.refused(3, "has no config.json", "model", MODELS)
        self.assertIn("hint: a model is a folder with config.json and model.safetensors", error)
        self.refused(3, "test_cli.py", "trace", "--model", __file__, "--ids", "1")

    def test_without_a_model_echo_is_asked_for(self):
        absent = FileNotFoundError("load: none; go")
        for argv in (["trace"], ["model"], ["model", "check"]):
            with mock.patch("pyres.files.load", side_effect=absent) as load:
                error = self.refused(3, "error: load: none\nhint: a model is a folder", *argv)
                self.assertNotIn("go", error)
                self.assertEqual(load.call_args[0][0], "echo")


class Count(Case):
    def total(self, *argv):
        return self.parsed("count", *argv)["result"]["total"]

    def test_totals(self):
        block = ["--width", "4", "--hidden", "8", "--heads", "4"]
        self.assertEqual(self.total(*block), 128)
        self.assertEqual(self.total(*block, "--gated"), 160)
        self.assertEqual(self.total(*block, "--kv-heads", "2"), 112)
        self.assertEqual(self.total(*block, "--head-width", "2"), 192)
        self.assertEqual(self.total(*block, "--norm", "rms", "--bias"), 128 + 8 + 16 + 12)
        self.assertEqual(self.total(*block, "--vocab", "10"), 208)
        self.assertEqual(self.total(*block, "--vocab", "10", "--tied", "--positions", "3"), 180)
        self.assertEqual(self.total(*block, "--norm", "none"), 128)
        self.assertEqual(self.total(*ANSWERS[-3][1:]), 124439808)

    def test_writers(self):
        self.assertEqual(self.parsed("count", "--layers", "32")["result"]["n_writers"], 65)
        out = self.good("count", "--layers", "32")
        self.assertIn("1 + 2·L = 1 + 2·32  65", out)
        self.assertIn("The embedding writes to the stream once, every block twice", out)
        self.assertEqual(self.parsed("count")["result"]["n_writers"], 3)

    def test_items(self):
        result = self.parsed("count", "--width", "4", "--hidden", "8", "--heads", "4")["result"]
        self.assertEqual(result["weights"][-1], {"name": "mlp w_up, w_down", "value": 64,
                                                 "formula": "2·d·f = 2·4·8"})
        self.assertEqual(sum(one["value"] for one in result["weights"]), result["total"])
        self.assertEqual([one["value"] for one in result["multiply_adds"]], [128, 8, 136])
        self.assertEqual([one["value"] for one in result["cache"]], [8, 16, 256])

    def test_a_model(self):
        for name in NAMES:
            folder = os.path.join(MODELS, name)
            answer = self.parsed("count", "--model", folder)
            self.assertEqual(answer["result"]["total"],
                             pyres.study.counting.count_walk(pyres.load(folder).weights))
            self.assertEqual(answer["model"]["name"], name)
        self.assertIsNone(self.parsed("count")["model"])

    def test_sizes_that_mean_nothing(self):
        self.refused(2, "--hidden means nothing without --width", "count", "--hidden", "8")
        self.refused(2, "--kv-heads means nothing without --heads", "count", "--width", "4",
                     "--kv-heads", "2")
        self.refused(2, "--bias means nothing without --hidden or --heads", "count", "--bias")
        self.refused(2, "--model has its own sizes, and --layers was given too",
                     "count", "--model", GPT2, "--layers", "2")
        self.refused(2, "invalid choice", "count", "--norm", "batch")
        self.refused(2, "not between", "count", "--width", "0")
        self.refused(3, "3 heads do not divide d_model 4", "count", "--width", "4", "--heads", "3")


class ModelFolder(Case):
    def folder(self, name="gpt2"):
        """A copy of a model's folder, gone after the test."""
        place = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, place)
        shutil.copytree(os.path.join(MODELS, name), os.path.join(place, name))
        return os.path.join(place, name)

    def rewrite(self, folder, change):
        """Write the folder's tensors again, as change(dict) leaves them."""
        path = os.path.join(folder, "model.safetensors")
        tensors = dict(safetensors.read(path))
        change(tensors)
        safetensors.write(path, tensors)

    def test_info(self):
        for name in NAMES:
            folder = os.path.join(MODELS, name)
            result = self.parsed("model", "info", folder)["result"]
            self.assertEqual(result["total"], sum(one["value"] for one in result["weights"]))
            self.assertEqual(result["tied"], name != "llama")
            for file in result["files"]:
                with open(os.path.join(folder, file["name"]), "rb") as opened:
                    data = opened.read()
                self.assertEqual((file["bytes"], file["sha256"]),
                                 (len(data), hashlib.sha256(data).hexdigest()))
            self.assertIn("dtype", result["config_keys_not_read"])
            self.assertEqual(self.good("model", folder), self.good("model", "info", folder))
            self.assertEqual(self.good("model", "--model", folder), self.good("model", folder))
        self.assertIn("weights      2,120\n", self.good("model", GPT2))

    def test_a_file_that_pyres_wrote(self):
        loaded = pyres.load(GPT2)
        path = os.path.join(os.path.dirname(self.folder()), "tiny.safetensors")
        pyres.files.save(loaded._replace(name="tiny"), path)
        answer = self.parsed("model", path)
        self.assertEqual((answer["model"]["name"], answer["model"]["family"]), ("tiny", "pyres"))
        self.assertEqual(answer["result"]["files"][0]["name"], "tiny.safetensors")
        self.assertEqual(answer["result"]["total"], 2120)
        self.assertEqual(self.parsed("count", "--model", path)["result"]["total"], 2120)
        self.good("model", "check", path)
        again = [path if word == GPT2 else word for word in TRACE] + ["--vectors"]
        self.assertEqual(self.parsed(*again)["result"],
                         self.parsed(*TRACE, "--vectors")["result"])
        with mock.patch("pyres.files.load", return_value=loaded):
            answer = self.parsed("model", "info")               # as of an embedded model
            self.assertEqual((answer["model"]["sha256"], answer["result"]["files"]), (None, []))
            self.assertIn("weights      2,120\n", self.good("model"))

    def test_info_reads_no_weight(self):
        with mock.patch("pyres.files.safetensors.Tensors.__getitem__", side_effect=AssertionError):
            self.good("model", "info", GPT2)
            self.good("count", "--model", GPT2)

    def test_buffers_are_listed(self):
        folder = self.folder()
        mask = "transformer.h.0.attn.bias"
        self.rewrite(folder, lambda tensors: tensors.update({mask: [[1.0]]}))
        self.assertEqual(self.parsed("model", folder)["result"]["buffers"], [mask])
        self.assertIn(mask, self.good("model", folder))
        self.good("model", "check", folder)

    def test_check(self):
        for name in NAMES:
            answer = self.parsed("model", "check", os.path.join(MODELS, name))
            self.assertEqual([check["ok"] for check in answer["checks"]], [True] * 3)
            self.assertEqual(len({tuple(ids) for ids in answer["result"]["sequences"]}), 3)
        self.assertIn("everything adds up", self.good("model", "check", GPT2))

    def test_a_check_that_answers_no(self):
        folder = self.folder()
        self.rewrite(folder, lambda tensors: tensors["transformer.h.1.mlp.c_proj.bias"]
                     .__setitem__(0, float("nan")))
        done = here("model", "check", folder)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertIn("NOT everything adds up", done.out)
        self.assertIn("DOES NOT HOLD", done.out)
        done = here("trace", "--model", folder, "--ids", "1", "--json", "--vectors")
        self.assertEqual((done.code, done.err), (1, ""))
        answer = json.loads(done.out, parse_constant=self.fail)
        self.assertEqual(answer["checks"][0]["error"], "nan")
        self.assertEqual(answer["result"]["states"][-1]["norm"], ["nan"])
        self.assertIn("nan", here("trace", "--model", folder, "--ids", "1", "--vectors").out)

    def test_a_folder_that_lies(self):
        folder = self.folder()
        self.rewrite(folder, lambda tensors: tensors.pop("transformer.wpe.weight"))
        for action in ("info", "check"):
            self.refused(3, "transformer.wpe.weight is missing", "model", action, folder)

    def test_words(self):
        error = self.refused(2, "model does not know 'chek'", "model", "chek", GPT2)
        self.assertIn("hint: did you mean check?", error)
        self.refused(2, "a model was named twice", "model", GPT2, "--model", GPT2)
        self.refused(3, "there is no folder or file 'chek'", "model", "chek")

    @unittest.skipIf(os.name == "nt", "a folder cannot have such a name there")
    def test_a_name_cannot_move_the_cursor(self):
        hostile = os.path.join(os.path.dirname(self.folder()), "gpt2\x1b[2J\n")
        shutil.copytree(GPT2, hostile)
        for argv in (["model", hostile], ["trace", "--model", hostile, "--ids", "1"],
                     ["model", "check", hostile]):
            out = self.good(*argv)
            self.assertNotIn("\x1b", out)
            self.assertIn(r"gpt2\x1b[2J\n", out)
        self.assertNotIn("\x1b", here("model", hostile + "x").err)


class Options(Case):
    def test_before_and_after_the_command(self):
        plain = self.good(*TRACE)
        for options in (["--json"], ["--columns", "40"], ["-q"], ["--color", "always"],
                        ["--precision", "1"], ["--precision=1"]):
            with self.subTest(options=options):
                after = self.good(*TRACE, *options)
                self.assertNotEqual(after, plain)
                self.assertEqual(self.good(*options, *TRACE), after)
                self.assertEqual(self.good(*options, *TRACE, *options), after)
        self.assertEqual(self.good("--model", GPT2, "-p", "0", "--ids=3,1,4", "trace"),
                         self.good(*TRACE, "-p", "0"))
        self.assertEqual(self.good("--columns", "40", *TRACE, "--columns", "70"),
                         self.good(*TRACE, "--columns", "70"))

    def test_options_change_what_they_say(self):
        self.assertNotEqual(self.good(*TRACE, "--precision", "1"), self.good(*TRACE))
        self.assertIn("3.0    3.0", self.good(*TRACE, "--precision", "1"))
        self.assertLess(len(self.good(*TRACE, "--quiet")), len(self.good(*TRACE)))
        done = here(*TRACE, "-v")
        self.assertEqual(done.out, self.good(*TRACE))
        self.assertEqual(done.err, f"pyres: reading {GPT2}\npyres: running the model\n")

    def test_abbreviations_are_off(self):
        for argv in (["count", "--lay", "3"], ["toy", "--js"], ["--colum", "40", "toy"]):
            self.refused(2, "there is no option", *argv)

    def test_did_you_mean(self):
        for argv, hint in (
                (["coutn"], "count"), (["Toy"], "toy"), (["count", "--layer", "3"], "--layers"),
                (["toy", "--jsno"], "--json"), (["--jsno", "toy"], "--json"),
                (["count", "--kv-head=3"], "--kv-heads")):
            with self.subTest(argv=argv):
                self.assertIn(f"hint: did you mean {hint}?", self.refused(2, "there is no", *argv))
        self.assertIn("-h lists the commands", self.refused(2, "no command 'xyzzy'", "xyzzy"))

    def test_an_option_that_means_nothing_is_refused(self):
        self.refused(2, "--position means nothing to toy", "-p", "1", "toy")
        self.refused(2, "--model means nothing to toy", "--model", GPT2, "toy")
        self.refused(2, "there is no option -p here", "count", "-p", "1")
        self.refused(2, "there is no place for '3'", "toy", "3")
        self.refused(2, "expected one argument", "--columns")
        self.refused(2, "not between 20 and 1000", "toy", "--columns", "3")
        self.refused(2, "invalid choice", "toy", "--color", "maybe")

    def test_a_text_that_begins_with_a_minus(self):
        self.refused(3, "has no tokenizer", "trace", "--model", GPT2, "--", "-x")

    def test_version(self):
        for argv in (["--version"], ["toy", "--version"]):
            self.assertEqual(self.good(*argv), f"pyres {pyres.__version__}\n")

    def test_help_ends_with_two_examples_that_run(self):
        for argv in [["-h"], ["--help"]] + [[command, "-h"] for command in COMMANDS]:
            text = self.good(*argv)
            examples = text.split("\nexamples:\n")[1].rstrip("\n").split("\n")
            self.assertEqual(len(examples), 2, argv)
            for example in examples:
                with self.subTest(argv=argv, example=example):
                    self.assertLessEqual(len(example), 80)
                    words = example.replace("FOLDER", GPT2.replace(os.sep, "/")).split()
                    self.assertEqual(words[:3], ["python3", "-m", "pyres"])
                    self.good(*words[3:])

    def test_help_lists_the_commands(self):
        for command in COMMANDS:
            self.assertRegex(self.good("-h"), rf"(?m)^  {command} ")


class Look(Case):
    def test_what_is_said_is_what_the_functions_give(self):
        result = json.loads(self.good("look", "mqzkbmqz", "--json"))["result"]
        r = pyres.run(pyres.load(), "mqzkbmqz")
        k = r.model.tokenizer.encode("k", special=False)[0]
        self.assertEqual(max(r.logits[-1]), r.logits[-1][k])
        self.assertAlmostEqual(result["logit"], r.logits[-1][k], delta=1e-12)
        whole = sum(state["contribution"] for state in result["states"]) + result["constant"]
        self.assertAlmostEqual(whole, result["logit"], delta=1e-12)
        self.assertEqual([state["name"] for state in result["states"]],
                         [name for name, _ in r.states])
        guess = result["states"][-1]["guesses"][0]
        self.assertEqual((guess["token"], guess["probability"]),
                         (k, pyres.softmax(r.logits[-1])[k]))
        off = pyres.run(r.model, "mqzkbmqz", [pyres.scale("L0.attn", 0)])
        effect = result["effect"]
        self.assertEqual(effect["after"], pyres.softmax(off.logits[-1])[k])
        self.assertAlmostEqual(effect["total"], off.logits[-1][k] - r.logits[-1][k], delta=1e-12)
        _, stream = pyres.model.run_backward(
            [[0.0] * 27] * (len(r.tokens) - 1) + [[float(v == k) for v in range(27)]], r)
        length = sum(d * d for row in stream[0][1].total for d in row) ** 0.5
        self.assertAlmostEqual(result["gradient"]["whole"], length, delta=1e-12)

    def test_one_screen_whose_sum_check_is_below_1e_12(self):
        for argv in ([], ["look", "mqzkbmqz", "--target", "m", "--against", "k", "-p", "5"]):
            with self.subTest(argv=argv):
                lines = self.good(*argv, "--columns", "80").splitlines()
                self.assertLessEqual(len(lines), 24)
                self.assertLessEqual(max(map(len, lines)), 80)
                argv = argv or ["look"]
                for check in json.loads(self.good(*argv, "--json"))["checks"]:
                    self.assertLess(check["error"], 1e-12)
                    self.assertTrue(check["ok"])

    def test_many_writers_share_a_row_and_the_column_still_sums(self):
        rows = [{"name": f"L{i}.mlp", "added": 1.0, "cosine": 0.0, "length": 1.0, "guesses": [],
                 "contribution": float(i)} for i in range(40)]
        shown = look.shortened(rows)
        self.assertEqual(len(shown), 10)
        self.assertEqual(shown[4]["name"], "31 writers")
        self.assertEqual(sum(row["contribution"] for row in shown), sum(range(40)))
        self.assertEqual([shown[3]["name"], shown[5]["name"]], ["L3.mlp", "L35.mlp"])

    def test_a_long_text_and_long_names_fit(self):
        self.assertEqual(look.said("a" * 40), "'" + "a" * 40 + "': ")
        self.assertEqual(look.said("x" + "a" * 40), "... '" + "a" * 40 + "': ")
        for columns in (20, 30, 36, 39, 40, 60):
            lines = self.good("look", "--columns", str(columns)).splitlines()
            self.assertLessEqual(max(map(len, lines)), columns)
        self.assertIn("  to 'k' +10.31", self.good("look", "--columns", "30").splitlines())

    def test_what_is_not_finite_is_no_rise(self):
        echo = pyres.load()
        broken = echo._replace(weights=echo.weights._replace(w_embed=[[math.nan] * 24] * 27))
        with mock.patch("pyres.files.load", return_value=broken):
            done = here("look", "mqz", "--target", "k")
        self.assertEqual(done.code, 1)
        self.assertIn("'k' goes from nan to nan", done.out)
        self.assertNotIn("+nan", done.out)
        head, row = ["state", "|x|", "|add|", "cos", "", "to 'k'"], ["embed"] + ["."] * 5
        for sizes in ([1.0, math.nan], [math.nan, 1.0], [1.0, math.inf]):
            lines = look.fitted(head, [row, row], sizes, text.Look())
            self.assertFalse(any("=" in line for line in lines))

    def test_it_says_what_an_edit_and_a_metric_are(self):
        notes = self.parsed("look")["notes"]
        self.assertIn("On the weights of echo: an edit of this trained model", notes[0])
        echo = pyres.load()
        capped = echo._replace(config=echo.config._replace(logit_soft_cap=30.0))
        with mock.patch("pyres.files.load", return_value=capped):
            lines = self.good("look", "--columns", "80").splitlines()
            self.assertNotIn("soft cap", self.good("look", "-q"))
        self.assertIn("Logits are taken before the soft cap.", lines)
        self.assertLessEqual(len(lines), 24)

    def test_what_is_not_there(self):
        self.refused(3, "there is no writer 'L7.mlp'\nhint: there are embed", "look", "--without",
                     "L7.mlp")
        self.refused(2, "the name is empty", "look", "--without", "")
        self.refused(4, "there is no standard input", "look", "-", stdin=None)
        self.refused(3, "2 tokens", "look", "--target", "ab")
        self.refused(3, "there is no token #27", "look", "--target", "#27")
        self.refused(2, "there is nothing to run", "look", "--model", GPT2)


class Looks(Case):
    def test_every_line_fits(self):
        for argv in ANSWERS:
            for columns in (30, 80):
                with self.subTest(argv=argv, columns=columns):
                    lines = self.good(*argv, "--columns", str(columns)).splitlines()
                    self.assertLessEqual(max(map(len, lines)), columns)
                    self.assertEqual([line for line in lines if line != line.rstrip()], [])
        self.assertLessEqual(max(map(len, self.good("--columns", "40").splitlines())), 40)

    def test_columns_from_the_environment(self):
        self.assertEqual(self.good(*TRACE, COLUMNS="40"), self.good(*TRACE, "--columns", "40"))
        self.assertEqual(self.good(*TRACE, COLUMNS="1"), self.good(*TRACE, "--columns", "20"))
        self.assertEqual(self.good(*TRACE), self.good(*TRACE, "--columns", "80"))

    def test_ascii(self):
        for argv in ANSWERS:
            with self.subTest(argv=argv):
                out = self.good(*argv, "--ascii")
                self.assertTrue(out.isascii())
                self.assertEqual(out, self.good(*argv).replace("·", "*"))
        self.assertTrue(self.good("count", "--layers", "3", "--json").isascii())

    def test_an_encoding_that_lacks_characters(self):
        argv = ["count", "--layers", "32"]
        for encoding, options in (("utf-8", []), ("cp1252", []), ("iso8859-5", ["--ascii"]),
                                  ("ascii", ["--ascii"])):
            with self.subTest(encoding=encoding):
                page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
                done = here(*argv, stdout=page)
                self.assertEqual((done.code, done.err), (0, ""))
                shown = page.buffer.getvalue().decode(encoding)
                self.assertEqual(shown, self.good(*argv, *options))

    def test_colour_repeats_what_is_said(self):
        for argv in ANSWERS:
            with self.subTest(argv=argv):
                colored = self.good(*argv, "--color", "always")
                self.assertEqual(re.sub("\x1b\\[[0-9;]*m", "", colored), self.good(*argv))
                self.assertIn("\x1b[", colored)
        self.assertNotIn("\x1b", self.good("toy", "--json", "--color", "always"))

    def test_when_there_is_colour(self):
        def colored(*argv, terminal=False, **variables):
            return "\x1b" in self.good("toy", *argv, stdout=Stream(terminal=terminal), **variables)
        self.assertFalse(colored())
        self.assertTrue(colored(terminal=True))
        self.assertFalse(colored(terminal=True, TERM="dumb"))
        self.assertFalse(colored(terminal=True, NO_COLOR="1"))
        self.assertTrue(colored(terminal=True, NO_COLOR=""))
        self.assertTrue(colored(FORCE_COLOR="1"))
        self.assertFalse(colored(FORCE_COLOR="0"))
        self.assertFalse(colored(FORCE_COLOR="1", NO_COLOR="1"))
        self.assertTrue(colored("--color", "always", NO_COLOR="1"))
        self.assertFalse(colored("--color", "never", terminal=True, FORCE_COLOR="1"))


class Waiting(unittest.TestCase):
    def said(self, seconds, terminal=True, **settings):
        """What is said within so many seconds, waiting no longer than until it is."""
        with contextlib.redirect_stderr(Stream(terminal=terminal)) as err:
            with announced("reading a model", **settings):
                for _ in range(round(seconds / 0.05)):
                    if not err.getvalue().endswith("...\n"):
                        time.sleep(0.05)
        return err.getvalue()

    def test_what_takes_long_is_said_on_a_terminal(self):
        self.assertEqual(self.said(20), "pyres: reading a model ...\n")
        self.assertEqual(self.said(0.0), "")
        self.assertEqual(self.said(0.8, terminal=False), "")
        self.assertEqual(self.said(0.8, quiet=True), "")
        self.assertEqual(self.said(0.0, verbose=True), "pyres: reading a model\n")


class ExitCodes(Case):
    """0, 1, 2 and 3 are what the tests above are about."""

    def test_an_error_as_json(self):
        for argv, code in ((["coutn", "--json"], 2), (["--json", "toy", "--mlp-width", "4"], 3)):
            done = here(*argv)
            self.assertEqual((done.code, done.out), (code, ""))
            error = json.loads(done.err)
            self.assertEqual((error["schema"], error["error"]["code"]), ("pyres/1", code))
            self.assertEqual(sorted(error["error"]), ["code", "hint", "message"])

    def test_an_error_as_text(self):
        self.assertEqual(here("coutn").err, "pyres: error: there is no command 'coutn'\n"
                                            "hint: did you mean count?\n")

    def test_a_traceback_where_it_is_asked_for(self):
        done = here("toy", "--mlp-width", "4", PYRES_TRACEBACK="1")
        self.assertEqual(done.code, 3)
        self.assertIn("in add_residual", done.err)
        self.assertIn("pyres: error: add_residual: ", done.err)

    def test_a_fault_of_pyres(self):
        for error in (RuntimeError("oh"), ValueError("oh"), KeyError("oh"), RecursionError("oh")):
            with mock.patch("pyres.view.text.toy_lines", side_effect=error):
                done = here("toy")
                self.assertEqual((done.code, done.out), (70, ""))
                self.assertIn(f"pyres: error: {type(error).__name__}: ", done.err)
                self.assertIn("PYRES_TRACEBACK=1", done.err)

    def test_interrupted(self):
        with mock.patch("pyres.view.text.toy_lines", side_effect=KeyboardInterrupt):
            self.assertEqual(here("toy"), Done(130, "", ""))

    def test_the_environment(self):
        full = Stream(error=OSError(errno.ENOSPC, "No space left on device"))
        done = here("toy", stdout=full)
        self.assertEqual(done.code, 4)
        self.assertIn("the result cannot be written: No space left on device", done.err)
        with mock.patch("pyres.view.text.toy_lines", side_effect=MemoryError):
            self.refused(4, "not enough memory", "toy")

    def test_a_closed_pipe(self):
        for argv in (["toy"], ["toy", "--json"], ["-h"]):
            closed = Stream(error=BrokenPipeError())
            self.assertEqual(here(*argv, stdout=closed), Done(141, "", ""))

    def test_the_console_script(self):
        with mock.patch.object(sys, "argv", ["pyres", "coutn"]), \
                contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
            cli.main_from_console()
        self.assertEqual(end.exception.code, 2)


class Processes(Case):
    def test_the_same_as_here(self):
        for argv, code in (([], 0), (TRACE + ["--json", "--vectors"], 0), (["coutn"], 2),
                           (["toy", "--mlp-width", "4"], 3)):
            with self.subTest(argv=argv):
                done, want = process(*argv, env=environment(PYTHONUTF8="1")), here(*argv)
                self.assertEqual(done.code, code)
                for got, text in ((done.out, want.out), (done.err, want.err)):
                    self.assertEqual(got.decode("utf-8").split(os.linesep), text.split("\n"))

    def test_encodings(self):
        for encoding in ("ascii", "cp1252", "utf-8"):
            done = process("count", "--layers", "32", env=environment(PYTHONIOENCODING=encoding))
            self.assertEqual((done.code, done.err), (0, b""))
            self.assertIn("65", done.out.decode(encoding))
        name = "caf\u00e9\u2603"
        done = process("model", name, env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="1"))
        self.assertEqual(done.code, 3)
        self.assertIn(rb"caf\xe9\u2603", done.err)

    def test_a_reader_that_went_away(self):
        child = subprocess.Popen([sys.executable, "-m", "pyres", "count", "--layers", "32"],
                                 cwd=ROOT, env=environment(), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        child.stdout.close()
        error = child.stderr.read()
        child.stderr.close()
        self.assertEqual((child.wait(timeout=60), error), (141, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_a_full_disk(self):
        with open("/dev/full", "wb") as full:
            child = subprocess.Popen([sys.executable, "-m", "pyres", "toy"], cwd=ROOT,
                                     env=environment(), stdout=full, stderr=subprocess.PIPE)
            error = child.stderr.read()
            child.stderr.close()
        self.assertEqual(child.wait(timeout=60), 4)
        self.assertEqual(error.count(b"\n"), 1, error)

    def test_toy_opens_no_files(self):
        code = ("import sys\nfrom pyres.cli import main\nmain(['toy', '-q'])\n"
                "print([m for m in sys.modules if m.startswith('pyres.files')])")
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.stdout.decode().splitlines()[-1], "[]")


if __name__ == "__main__":
    unittest.main()
