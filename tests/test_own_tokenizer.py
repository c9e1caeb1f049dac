"""A text, a model with its own tokenizer, a command: what is said about tokens is right, and no
two tokens look alike.

The models are a GPT-2 and a Llama with random weights, as an export writes them, with the
tokenizers of tests/data beside; "padded" ones have more tokens than their tokenizer, as Qwen's.
"""
import ast
import os
import re
import shutil
import tempfile
import unittest
from unittest import mock

import pyres
from pyres.commands.inputs import token_named
from pyres.commands.options import Refused
from pyres.config import RotaryConfig, attention_config, block_config, model_config, norm_config
from pyres.files import export
from pyres.files.tokenizers.reading import tokenizer_from_json
from pyres.rng import Generator
from pyres.rotary import frequencies
from pyres.view.text import Look, wrapped
from pyres.view.tokens import text_runs, token_labels, token_text, tokens_named
from pyres.weights import random_weights
from tests.test_cli import ROOT, Case

DATA = os.path.join(ROOT, "tests", "data", "tokenizers")
TEXT = "the  \n\U0001f680 the"          # two spaces, a newline, four bytes, the twice
PADDED = 512
ALL = (("gpt2", 400, "gpt2_bpe"), ("llama", 480, "llama_bpe"),
       ("metaspace", 480, "llama_bpe_metaspace"), ("gpt2_padded", PADDED, "gpt2_bpe"),
       ("llama_padded", PADDED, "llama_bpe"))
FOLDERS, MODELS = {}, {}


def random_model(name, d_vocab):
    """A GPT-2, or a Llama, of two small blocks."""
    of_gpt2 = name.startswith("gpt2")
    norm, rates = norm_config("layer" if of_gpt2 else "rms"), frequencies(4, 10000.0)
    attention = attention_config(1, 4, rotary=None if of_gpt2 else RotaryConfig("half", rates))
    block = block_config(4, attention, norm=norm, activation="gelu_tanh" if of_gpt2 else "silu")
    config = model_config(4, d_vocab, 48, 2, block, final_norm=norm)
    return pyres.make_model(config, random_weights(
        config, std=0.5, biases=of_gpt2, gated=not of_gpt2, positions=of_gpt2), name)


def setUpModule():
    os.chdir(ROOT)
    parent = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, parent)
    for name, d_vocab, tokenizer in ALL:
        FOLDERS[name] = os.path.join(parent, name)
        with mock.patch.object(os, "fsync"):
            export.export_folder(random_model(name, d_vocab), FOLDERS[name])
        shutil.copy(os.path.join(DATA, tokenizer, "tokenizer.json"), FOLDERS[name])
        MODELS[name] = pyres.load(FOLDERS[name])


def of_text(command, text=TEXT):
    """The words of a command that looks at a text."""
    return command.split() + (["-t", text] if command.startswith(("ablate", "patch")) else [text])


COMMANDS = ("look", "lens --stride 4", "trace", "writers", "tokens", "norms", "grad", "loss",
            "generate -n 9", "ablate L0.attn")


class EveryCommand(Case):
    def test_a_text_becomes_the_models_own_tokens(self):
        for name, commands in (("gpt2", COMMANDS), ("llama_padded", COMMANDS[-4:])):
            model = MODELS[name]
            want = model.tokenizer.encode(TEXT)
            for command in commands:
                with self.subTest(command, model=name):
                    said = self.parsed(*of_text(command), "--model", FOLDERS[name])["input"]
                    self.assertEqual((said["text"], said["tokens"]), (TEXT, want))
                    if "token_texts" in said:
                        self.assertEqual(said["token_texts"], [
                            model.tokenizer.decode([token], continues=True) for token in want])

    def test_lines_fit(self):
        for columns, commands in ((40, COMMANDS[::2]), (80, COMMANDS[1::2])):
            for command in commands:
                out = self.good(*of_text(command), "--model", FOLDERS["llama"], "--columns",
                                str(columns))
                self.assertLessEqual(max(map(len, out.splitlines())), columns, command)

    def test_standard_input_is_a_text_too(self):
        for command in ("look", "tokens"):
            words = [command, "--model", FOLDERS["gpt2"], "--json"]
            self.assertEqual(self.good(*words, "-", stdin=TEXT + "\n"), self.good(*words, TEXT))

    def test_repeated_tokens_are_numbered(self):
        for command in ("lens", "norms"):
            out = self.good(*of_text(command), "--model", FOLDERS["llama"])
            for label in ("' the' (1)", "' the' (2)", "'  '", r"b'\n'", r"b'\x80'"):
                self.assertIn(label, out, command)
        for command in ("ablate L0.attn", "writers"):
            out = self.good(*of_text(command), "--model", FOLDERS["llama"])
            self.assertRegex(out, r"after ' the'\s\(2\)")


class Tokens(Case):
    def test_what_is_shown_gives_the_text_back(self):
        """Every space, every newline and every byte of an emoji can be read off the table."""
        for name, before in (("gpt2", b""), ("llama", b"<s> "), ("metaspace", b"<s> ")):
            lines = self.good("tokens", TEXT, "-q", "--model", FOLDERS[name]).splitlines()[1:]
            found = b""
            for line in lines:
                text = ast.literal_eval(re.fullmatch(r" *\d+ +\d+ +(.*)", line).group(1))
                found += text if type(text) is bytes else text.encode("utf-8")
            self.assertEqual(found, before + TEXT.encode("utf-8"), name)

    def test_no_two_tokens_look_alike(self):
        for name, model in MODELS.items():
            shown = {}
            for token in range(model.config.d_vocab):
                shown.setdefault(token_text(model, token), []).append(token)
            self.assertEqual([ids for ids in shown.values() if len(ids) > 1], [], name)

    def test_no_two_places_look_alike(self):
        for seed in range(20):
            draw, model = Generator(seed), MODELS["llama_padded"]
            few = [draw.below(PADDED) for _ in range(5)]
            tokens = [few[draw.below(5)] for _ in range(12)]
            labels = token_labels(model, tokens)
            self.assertEqual(len(set(labels)), 12, (seed, labels))

    def test_no_line_is_broken_in_a_token(self):
        """Where "after ' the'" is wrapped behind the first quote, the token's space is gone."""
        for model in (MODELS["gpt2"], MODELS["llama"]):
            spaced = [token_text(model, token) for token in range(model.config.d_vocab)]
            spaced = [shown for shown in spaced if " " in shown]
            self.assertGreater(len(spaced), 30)
            for columns in range(40, 60):
                for a, b in zip(spaced, spaced[1:]):
                    lines = wrapped(f"the logit of {a} less {b}, at position 3, after {a} (2).",
                                    Look(columns=columns))
                    self.assertEqual("\n".join(lines).count(a), 2, lines)
                    self.assertIn(b, "\n".join(lines))

    def test_a_byte_is_not_its_character(self):
        model = MODELS["llama"]
        self.assertEqual([token_text(model, token) for token in (3 + 65, 3 + 10, 3 + 0xf0)],
                         ["b'A'", r"b'\n'", r"b'\xf0'"])
        self.assertEqual(token_text(model, tokens_named(model, "A")[0]), "'A'")


class Targets(Case):
    def test_a_token_is_named_as_it_is_shown(self):
        for name in ("gpt2", "llama_padded"):
            model = MODELS[name]
            for token in range(model.config.d_vocab):
                shown = token_text(model, token)
                if shown.startswith("b"):
                    shown = f"#{token}"
                named = shown if shown.startswith("#") else ast.literal_eval(shown)
                if token % 29 == 0 or named[:1] in " \n<":
                    self.assertEqual(token_named(model, named), token, (name, named))

    def test_every_command_takes_a_word_with_its_space(self):
        for name in ("gpt2", "llama", "metaspace"):
            the = MODELS[name].tokenizer.encode(" the" if name == "gpt2" else "the")[-1]
            for command in ("look", "lens --here", "ablate L0.attn"):
                words = of_text(command) + ["--model", FOLDERS[name], "--target", " the"]
                self.assertEqual(self.parsed(*words)["input"]["target"], the, (name, command))
            self.assertRegex(self.good(*words), "logit of ' the'")
            r = pyres.run(MODELS[name], TEXT)
            said = self.parsed("writers", TEXT, "--model", FOLDERS[name], "--target", " the",
                               "--against", "\n", "-p", "2")
            newline = tokens_named(MODELS[name], "\n")[0]
            self.assertAlmostEqual(said["result"]["logit"],
                                   r.logits[2][the] - r.logits[2][newline], delta=1e-12)

    def test_a_letter_is_not_the_letter_behind_a_space(self):
        """A tokenizer that puts a space before every text has one before a target, too."""
        model = MODELS["llama"]
        for text in ("c", "he", "A", " ", "  ", "\n"):
            token = token_named(model, text)
            self.assertEqual(model.tokenizer.token_bytes(token), text.encode())

    def test_what_is_no_token_is_refused_with_what_it_would_be(self):
        for name, text, message in (
                ("gpt2", "the", "'the' is no token; as a text it is 2 tokens: 't' #83, 'he' #256"),
                ("gpt2", " cat", "as a text it is 2 tokens: ' c' #292, 'at' #373"),
                ("gpt2", "\U0001f680", r"4 tokens: b'\xf0' #172"),
                ("llama", "the", "'the' is no token; as a text it is 1 token: ' the' #266"),
                ("llama", "<0x41>", "'<0x41>' is no token"),
                ("gpt2", "#400", "there is no token #400"), ("gpt2", "\udcff", "surrogate")):
            error = self.refused(3, message, "look", TEXT, "--model", FOLDERS[name], "--target",
                                 text)
            self.assertIn("hint: a token is its text with its spaces, or # and its id: #0", error)

    def test_two_tokens_of_one_text_are_named_by_their_ids(self):
        values = {"decoder": {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
                  "model": {"vocab": {"_a": 0, " a": 1, "b": 2}, "merges": []}}
        model = MODELS["gpt2"]._replace(tokenizer=tokenizer_from_json(values, "small.json"))
        self.assertEqual(token_named(model, "b"), 2)
        with self.assertRaisesRegex(Refused, "' a' is the text of several tokens: #0, #1"):
            token_named(model, " a")


class Padded(Case):
    """A model with more tokens than its tokenizer has."""

    def test_every_command_takes_and_shows_them(self):
        words = ["--ids", "500,3,500", "--model", FOLDERS["gpt2_padded"]]
        for command in ("look", "lens --here", "writers", "ablate L0.attn", "subsets"):
            out = self.good(*command.split(), *words, "--target", "#511")
            self.assertIn("#511", out, command)
        for command in ("trace", "tokens", "norms", "heads"):
            self.assertIn("#500", self.good(command, *words), command)
        texts = self.parsed("tokens", *words)["result"]["token_texts"]
        self.assertEqual(texts, [None, MODELS["gpt2"].tokenizer.decode([3]), None])

    def test_generate_shows_ids_for_what_has_no_text(self):
        for name in ("gpt2_padded", "llama_padded"):
            model, words = MODELS[name], ["generate", "the cat", "-n", "30", "--temperature", "2",
                                          "--model", FOLDERS[name]]
            result = self.parsed(*words)["result"]
            n_known = model.tokenizer.n_tokens
            strange = [token for token in result["tokens"] if token >= n_known]
            self.assertTrue(0 < len(strange) < 30)
            runs = text_runs(model, result["tokens"])
            self.assertEqual([run for run in runs if type(run) is int], strange)
            self.assertEqual("".join([run for run in runs if type(run) is str]), result["text"])
            out = self.good(*words, "--columns", "1000")
            line, note = out.splitlines()
            self.assertEqual([int(found) for found in re.findall(r"#(\d+)(?= |$)", line)], strange)
            self.assertTrue(line.startswith("'the cat"))
            self.assertIn(f"has 512 tokens, its tokenizer {n_known}", note)

    def test_runs_of_known_tokens_are_the_text(self):
        model = MODELS["gpt2_padded"]
        for seed in range(20):
            draw = Generator(seed)
            tokens = [draw.below(400) for _ in range(10)]
            self.assertEqual(text_runs(model, tokens),
                             [model.tokenizer.decode(tokens, continues=True)])
        self.assertEqual(text_runs(model, []), [])


class Generate(Case):
    def test_it_goes_on_with_the_text(self):
        for name in ("gpt2", "llama"):
            model = MODELS[name]
            new = pyres.generate(model, TEXT, 9)
            result = self.parsed("generate", TEXT, "-n", "9", "--model", FOLDERS[name])["result"]
            self.assertEqual(result["tokens"], new)
            whole = model.tokenizer.decode(model.tokenizer.encode(TEXT) + new, skip_special=True)
            out = self.good("generate", TEXT, "-n", "9", "--model", FOLDERS[name], "--columns",
                            "1000")
            self.assertEqual(ast.literal_eval(out), whole)
            self.assertEqual(TEXT + result["text"], whole)

    def test_no_space_is_lost_at_the_end_of_a_line(self):
        text, words = "a  b   " * 9, ["-n", "1", "--model", FOLDERS["gpt2"], "-q", "--columns"]
        whole = self.good("generate", text, *words, "1000")[:-1]
        self.assertTrue(whole.startswith("'" + text))
        for columns in range(20, 40, 3):
            out = self.good("generate", text, *words, str(columns))
            self.assertEqual(out.replace("\n", ""), whole)
            self.assertLessEqual(max(map(len, out.splitlines())), columns)


class WithoutATokenizer(Case):
    def test_what_would_help_is_said(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = os.path.join(parent, "llama")
            shutil.copytree(FOLDERS["llama"], folder)
            os.remove(os.path.join(folder, "tokenizer.json"))
            for hint in ("give token ids in place of TEXT: --ids 3,1,4",
                         "tokenizer.model is not read; give token ids (--ids 3,1,4), or let"):
                for command in COMMANDS:
                    error = self.refused(3, "has no tokenizer", *of_text(command), "--model",
                                         folder)
                    self.assertIn(f"hint: {hint}", error, command)
                with open(os.path.join(folder, "tokenizer.model"), "wb") as file:
                    file.write(b"\n\x0e\n\x05<unk>")


if __name__ == "__main__":
    unittest.main()
