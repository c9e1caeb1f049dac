"""ablate, patch and subsets: what they print is what the functions say."""
import json
import math
import unittest
from unittest import mock

import pyres
from pyres.study.effects import effect
from pyres.study.metrics import logit, value
from pyres.study.patching import patch
from pyres.study.subsets import subsets
from pyres.view.effects import few_rows
from tests.test_cli import GPT2, Case, setUpModule      # noqa: F401

TEXT, OTHER = "mqzkbmqz", "mqxkbmqx"
SENTENCE = "an edit of this trained model, not a model trained without the branch"


def echo_run(text=TEXT):
    """A run of echo and the metric that the commands take by default."""
    r = pyres.run(ECHO, text)
    row = r.logits[8]
    return r, logit(ECHO, 8, row.index(max(row)))


ECHO = pyres.load()


class Ablate(Case):

    def test_the_numbers_are_those_of_effect(self):
        clean, metric = echo_run()
        for words, edits, frozen in (
                (["L0.attn"], [pyres.scale("L0.attn", 0)], False),
                (["L1.attn.H0=-0.5", "L0.mlp=2", "--frozen", "--at", "here"],
                 [pyres.scale("L1.attn.H0", -0.5, [8]), pyres.scale("L0.mlp", 2, [8])], True)):
            answer = self.parsed("ablate", *words, "-t", TEXT)
            found, result = effect(clean, edits, metric, frozen), answer["result"]
            for name in ("direct", "downstream", "rescale", "total", "first_order"):
                self.assertEqual(result["effect"][name], getattr(found, name))
            self.assertEqual(result["effect"]["ledger"], [
                {"name": name, "value": part} for name, part in found.ledger])
            self.assertEqual((result["before"]["logit"], result["after"]["logit"]),
                             (found.before, found.after))
            self.assertEqual(result["frozen"], frozen)
            self.assertTrue(answer["checks"][0]["ok"])
            self.assertIn(SENTENCE, answer["notes"][0])
            self.assertEqual(answer["model"]["name"], "echo")

    def test_guesses_before_and_after(self):
        result = self.parsed("ablate", "L0.attn", "-t", TEXT, "--target", "k")["result"]
        self.assertEqual(result["before"]["guesses"][0]["token"], 11)
        self.assertNotEqual(result["after"]["guesses"][0]["token"], 11)
        self.assertEqual(result["edits"], [{"writer": "L0.attn", "alpha": 0.0,
                                            "positions": None}])

    def test_the_text_shows_them_with_their_sign_and_the_weights(self):
        out = self.good("ablate", "L0.attn", "--precision", "1")
        for part in ("direct        -0.8", "total        -15.3", "L1.attn  -12.0 ====", "echo",
                     "after 'z' (2) at position 8"):
            self.assertIn(part, out)
        self.assertIn(SENTENCE, out.replace("\n", " "))
        self.assertNotIn("estimate", self.good("ablate", "L0.attn", "-q"))

    def test_another_model_with_a_foil(self):
        answer = self.parsed("ablate", "L0.mlp.N3", "--model", GPT2, "--ids", "3,1,4",
                             "--target", "#5", "--against", "#6", "-p", "1")
        m = pyres.load(GPT2)
        found = effect(pyres.run(m, [3, 1, 4]), [pyres.scale("L0.mlp.N3", 0)], logit(m, 1, 5, 6))
        self.assertEqual(answer["result"]["effect"]["total"], found.total)

    def test_what_is_refused(self):
        self.refused(3, "there is no writer 'L0.atn'\nhint: did you mean L0.attn?", "ablate",
                     "L0.atn")
        self.refused(3, "no writer 'L0.attn.H2' to scale", "ablate", "L0.attn.H2")
        for given in ("x", "nan", "inf", ""):
            self.refused(2, f"{given!r} is no number", "ablate", f"L0.attn={given}")
        self.refused(2, "the following arguments are required: WRITER[=ALPHA]", "ablate")


class Patch(Case):

    def test_the_numbers_are_those_of_a_patch(self):
        base, metric = echo_run()
        source, _ = echo_run(OTHER)
        answer = self.parsed("patch", "L0.attn", "--from", OTHER, "-t", TEXT)
        found = effect(base, [patch(base, source, "L0.attn")], metric)
        self.assertEqual(answer["result"]["effect"]["total"], found.total)
        logits = [answer["result"][name]["logit"] for name in ("base", "source", "patched")]
        self.assertEqual(logits, [value(base, metric), value(source, metric), found.after])
        self.assertEqual(answer["result"]["source_input"],
                         {"text": OTHER, "tokens": source.tokens})
        self.assertEqual(answer["input"]["text"], TEXT)
        self.assertIn(SENTENCE, answer["notes"][0])

    def test_ids_and_one_position(self):
        answer = self.parsed("patch", "L1.attn.H1", "--model", GPT2, "--ids", "3,1,4",
                             "--from-ids", "2,2,5", "--at", "here")
        m = pyres.load(GPT2)
        base, source = pyres.run(m, [3, 1, 4]), pyres.run(m, [2, 2, 5])
        metric = logit(m, 2, answer["input"]["target"])
        found = effect(base, [patch(base, source, "L1.attn.H1", [2])], metric)
        self.assertEqual(answer["result"]["effect"]["direct"], found.direct)

    def test_which_is_base_and_which_is_source_is_said(self):
        out = self.good("patch", "L0.attn", "--from", OTHER)
        self.assertIn("base   source  patched", out)
        self.assertIn("L0.attn as in the source, everywhere", out)

    def test_what_is_refused(self):
        self.refused(2, "patch takes one source", "patch", "L0.attn")
        self.refused(2, "patch takes one source", "patch", "L0.attn", "--from", "a",
                     "--from-ids", "1")
        self.refused(3, "the base has 9 tokens, the source 4", "patch", "L0.attn", "--from", "abc")


class Subsets(Case):

    def test_the_numbers_are_those_of_subsets(self):
        clean, metric = echo_run()
        answer = self.parsed("subsets", TEXT, "--writers", "L0.attn,L1.attn.H1,embed")
        result = answer["result"]
        found = subsets(clean, ["L0.attn", "L1.attn.H1", "embed"], metric)
        self.assertEqual([one["value"] for one in result["values"]], found.values)
        self.assertEqual(result["values"][5]["writers"], ["L0.attn", "embed"])
        self.assertEqual([one["value"] for one in result["shapley"]], found.shapley)
        self.assertEqual(len(result["interactions"]), 4)
        self.assertEqual((result["none"], result["all"]), (found.values[0], found.values[-1]))
        self.assertEqual([check["ok"] for check in answer["checks"]], [True, True])
        self.assertIn(SENTENCE, answer["notes"][0])

    def test_by_default_both_branches_of_every_block(self):
        result = self.parsed("subsets")["result"]
        self.assertEqual(result["writers"], ["L0.attn", "L0.mlp", "L1.attn", "L1.mlp"])

    def test_what_is_refused(self):
        many = ",".join(f"L0.mlp.N{i}" for i in range(20))
        error = self.refused(3, "20 writers have 2^20 subsets", "subsets", "--writers", many)
        self.assertIn("hint: --writers L0.attn,L0.mlp names fewer", error)
        self.refused(3, "there is no writer 'attn'", "subsets", "--writers", "attn")
        for given in ("L0.attn.H9", "L0.attn,L0.attn"):
            self.assertNotIn("fewer", self.refused(3, "", "subsets", "--writers", given))
        broken = ECHO._replace(weights=ECHO.weights._replace(
            w_embed=[[math.nan] * 24] * 27))
        with mock.patch("pyres.files.load", return_value=broken):
            self.refused(3, "number 0 is nan, which has no place among the others\nhint: trace",
                         "subsets", "--target", "k", "--writers", "L0.attn, L1.attn")


class Tables(unittest.TestCase):

    def test_few_rows_keep_what_is_not_finite(self):
        rows = [(f"L{i}.mlp", float(i)) for i in range(20)]
        rows[3], rows[5] = ("L3.mlp", math.nan), ("L5.mlp", -math.inf)
        kept = few_rows(rows, 4)
        self.assertEqual([name for name, _ in kept], ["L3.mlp", "L5.mlp", "L19.mlp", "17 others"])
        self.assertEqual(kept[-1][1], sum(i for i in range(19) if i not in (3, 5)))


class Fitting(Case):

    def test_every_line_fits(self):
        for argv in (["ablate", "L0.attn"], ["ablate", "L1.attn.H0=0.5", "--against", "q"],
                     ["patch", "L0.mlp", "--from", OTHER], ["subsets"]):
            for columns in (30, 40, 80):
                lines = self.good(*argv, "--columns", str(columns), "--ascii").splitlines()
                self.assertLessEqual(max(map(len, lines)), columns, argv)
                self.assertEqual([line for line in lines if line != line.rstrip()], [])
                self.assertTrue(all(line.isascii() for line in lines))

    def test_the_same_bytes_again(self):
        for argv in (["ablate", "L0.attn"], ["subsets", "--writers", "L0.attn,L1.mlp"]):
            self.assertEqual(self.good(*argv, "--json"), self.good(*argv, "--json"))
            json.loads(self.good(*argv, "--json"), parse_constant=lambda name: self.fail(name))


if __name__ == "__main__":
    unittest.main()
