"""writers, lens, norms, tokens, loss: what they print is what the functions give."""
import math
import os
import re
import shutil
import tempfile
import unittest
from unittest import mock

import pyres
from pyres.data import text_loss
from pyres.files import safetensors
from pyres.study import metrics, writers
from pyres.study.attribution import contributions
from pyres.study.lens import lens, lens_logits, rank
from pyres.study.writers import partition, shares
from pyres.view import attribution, heat, text
from tests.test_cli import ROOT, Case, here

GPT2 = os.path.join("tests", "data", "models", "gpt2")
IDS = ["--model", GPT2, "--ids", "3,1,4"]
ECHO = "mqzkbmqz"
ANSWERS = (
    ["writers", "--heads", "--shares", "--sort", "size"],
    ["writers", "--sources", "--neurons", "--most", "5"],
    ["writers", *IDS, "--method", "gradient"],
    ["writers", *IDS, "--against", "#2", "-p", "0"], ["lens"],
    ["lens", *IDS, "--top", "3", "--here", "--method", "jacobian"], ["norms"],
    ["norms", *IDS, "--of", "cosine"], ["tokens"], ["loss", *IDS])


def setUpModule():
    os.chdir(ROOT)


class Writers(Case):
    def test_json_has_the_contributions_of_the_run(self):
        r = pyres.run(pyres.load(), ECHO)
        k, b = [r.model.tokenizer.encode(letter, special=False)[0] for letter in "kb"]
        for argv, grain, metric in (
                ([], {}, metrics.logit(r.model, 8, k)),
                (["--heads", "--against", "b"], {"attn": "head"}, metrics.logit(r.model, 8, k, b)),
                (["--sources", "--neurons", "-p", "4"], {"attn": "source", "mlp": "neuron"},
                 metrics.logit(r.model, 4, pyres.study.lens.best(r.logits[4])[0]))):
            with self.subTest(argv=argv):
                answer = self.parsed("writers", ECHO, *argv)
                split = partition(r, position=metric.position, **grain)
                found = contributions(r, metric, split)
                result = answer["result"]
                self.assertEqual(result["contributions"],
                                 [{"name": name, "value": value} for name, value in
                                  found.rows + [("constant", found.constant)]])
                self.assertEqual(result["logit"], metrics.value(r, metric))
                self.assertAlmostEqual(sum(row["value"] for row in result["contributions"]),
                                       result["logit"], delta=1e-12)
                self.assertEqual([(one["name"], one["share"]) for one in result["measures"]],
                                 shares(split, metric.position))
                self.assertTrue(all(check["ok"] for check in answer["checks"]))
                self.assertEqual(len(answer["checks"]), 3)

    def test_the_gradient_is_another_number(self):
        plain, other = [self.parsed("writers", "--method", method)["result"]
                        for method in ("frozen_scale", "gradient")]
        self.assertEqual(plain["logit"], other["logit"])
        self.assertAlmostEqual(plain["total"], plain["logit"], delta=1e-12)
        self.assertLess(abs(other["total"]), 1e-3)
        self.assertEqual(other["contributions"][-1], {"name": "constant", "value": 0.0})

    def test_rows_in_the_order_of_the_run_or_by_size(self):
        result = self.parsed("writers")["result"]
        order = [row["name"] for row in result["contributions"]]
        for sort, want in (("order", order), ("size", sorted(order, key=lambda name: -abs(
                dict((row["name"], row["value"]) for row in result["contributions"])[name])))):
            table = self.good("writers", "--sort", sort, "-q").split("\n\n")[1]
            self.assertEqual([line.split()[0] for line in table.splitlines()], want)

    def test_the_largest_rows_and_the_rest_still_sum(self):
        table = self.good("writers", "--heads", "--neurons", "--most", "5", "-q",
                          "--precision", "6").split("\n\n")[1].splitlines()
        self.assertEqual(len(table), 6)
        self.assertRegex(table[4], r"^\d+ others")
        values = [float(re.search(r" ([-+]?\d+\.\d{6})", line).group(1)) for line in table]
        self.assertAlmostEqual(sum(values), self.parsed("writers")["result"]["logit"], delta=1e-4)

    def test_shares_of_the_largest_rows_and_of_the_rest(self):
        parts = self.good("writers", "--neurons", "--most", "4", "--shares", "-q",
                          "--precision", "6").split("\n\n")
        rows, table = parts[1].splitlines(), parts[3].splitlines()[1:]
        self.assertEqual([line.split()[0] for line in table],
                         [line.split()[0] for line in rows[:-1]])
        self.assertAlmostEqual(sum(float(line.split()[-1]) for line in table), 1, delta=1e-5)

    def test_norms_behind_sublayers_are_named_where_rows_pass_them(self):
        for name, has_norms in (("gemma2", True), ("falcon", False)):
            folder = os.path.join("tests", "data", "families", name)
            for argv in ([], ["--heads"], ["--neurons"]):
                with self.subTest(name, argv=argv):
                    notes = self.parsed("writers", "--model", folder, "--ids", "3,4",
                                        *argv)["notes"]
                    self.assertEqual(any("passes the norm behind" in note for note in notes),
                                     has_norms and argv != [])

    def test_a_waterfall_begins_where_the_row_above_ended(self):
        rows = [("a", 4.0), ("b", -6.0), ("c", 3.0), ("d", -1.0)]
        lines = attribution.waterfall(rows, text.Look(columns=31, precision=0))
        bars = [line[6:] for line in lines]
        ends = []
        for (name, value), bar in zip(rows, bars):
            cells = bar.replace("|", "")
            mark = "=" if value > 0 else "-"
            self.assertEqual(set(cells) - {" "}, {mark}, name)
            ends.append((cells.index(mark), cells.rindex(mark) + 1))
        self.assertEqual(ends[0][1], ends[1][1])            # b goes down from where a ended
        self.assertEqual(ends[1][0], ends[2][0])
        self.assertEqual(ends[2][1], ends[3][1])

    def test_what_is_not_finite_has_no_bars(self):
        lines = attribution.waterfall([("a", 1.0), ("b", float("nan"))], text.Look())
        self.assertEqual(lines, ["a  +1.000", "b     nan"])

    def test_a_check_that_fails_is_said(self):
        honest = writers.finer_write

        def lying(r, name):
            return [[a + 1e-6 for a in row] for row in honest(r, name)]

        with mock.patch.object(writers, "finer_write", lying):
            done = here("writers", "--heads")
        self.assertEqual(done.code, 1)
        self.assertIn("DOES NOT HOLD", done.out)

    def test_refusals(self):
        self.refused(3, "there is no position 9", "writers", "-p", "9")
        self.refused(3, "2 tokens", "writers", "--target", "ab")
        self.refused(2, "invalid choice", "writers", "--method", "integrated")
        self.refused(2, "there is nothing to run", "writers", "--model", GPT2)


class Lens(Case):
    def test_json_has_the_readings_of_the_run(self):
        r = pyres.run(pyres.load(GPT2), [3, 1, 4])
        for method in ("own", "frozen", "jacobian"):
            result = self.parsed("lens", *IDS, "--method", method, "--top", "2")["result"]
            positions = [2] if method == "jacobian" else [0, 1, 2]
            found = lens(r, method, top=2, positions=positions)
            self.assertEqual(result["positions"], positions)
            self.assertEqual([row["name"] for row in result["grid"]],
                             [name for name, _ in r.states])
            for row, one in zip(result["grid"], found):
                self.assertEqual([[(guess["token"], guess["probability"]) for guess in guesses]
                                  for guesses in row["guesses"]],
                                 [said.guesses for said in one.readings])
                for field in ("rank", "entropy", "kl", "probability"):
                    self.assertEqual(row[field], [getattr(said, field) for said in one.readings])
            self.assertEqual(result["grid"][-1]["rank"], [1] * len(positions))

    def test_a_target(self):
        r = pyres.run(pyres.load(), ECHO)
        result = self.parsed("lens", ECHO, "--target", "b", "-p", "3", "--here")["result"]
        self.assertEqual((result["positions"], result["targets"]), ([3], [2]))
        for row in result["grid"]:
            self.assertEqual(row["rank"], [rank(lens_logits(r, row["name"])[3], 2)])

    def test_the_last_state_is_always_kept(self):
        for stride, want in ((1, 5), (2, 3), (3, 3), (4, 2), (100, 2)):
            names = [row["name"] for row in
                     self.parsed("lens", ECHO, "--stride", str(stride))["result"]["grid"]]
            self.assertEqual((names[0], names[-1], len(names)), ("embed", "L1.mlp", want))

    def test_the_grid_shows_every_position(self):
        out = self.good("lens", ECHO, "-q", "--columns", "40")
        heads = [line for line in out.splitlines() if line.split() and line.split()[0].isdigit()]
        self.assertEqual([int(head) for line in heads for head in line.split()], list(range(9)))

    def test_a_model_with_a_nan(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                shutil.copy(os.path.join(GPT2, name), folder)
            path = os.path.join(folder, "model.safetensors")
            tensors = safetensors.read(path)
            values = {name: [list(row) for row in tensors[name]] if len(tensors.shape(name)) == 2
                      else tensors[name] for name in tensors}
            values["transformer.wte.weight"][4][0] = float("nan")
            safetensors.write(path, values)
            argv = ["--model", folder, "--ids", "3,1,4"]
            row = self.parsed("lens", *argv)["result"]["grid"][0]
            self.assertEqual(row["guesses"], [None] * 3)            # the table is tied
            self.assertIn(" nan", self.good("lens", *argv))
            self.assertIn("nan ?", self.good("norms", *argv))
            done = here("writers", *argv, "--target", "#2", "--sort", "size", "--most", "2")
            self.assertEqual(done.code, 1)                          # nothing adds up to nan
            self.assertRegex(done.out, r"(?s)embed +nan.*L1.mlp +nan\nconstant")


class Norms(Case):
    def test_json_has_lengths_and_cosines(self):
        r = pyres.run(pyres.load(), ECHO)
        grid = self.parsed("norms")["result"]["grid"]
        for row, (name, state) in zip(grid, r.states):
            self.assertEqual(row["name"], name)
            for got, x in zip(row["values"], state):
                self.assertAlmostEqual(got, math.sqrt(sum(a * a for a in x)), delta=1e-12)
        grid = self.parsed("norms", "--of", "update")["result"]["grid"]
        for row, (name, update) in zip(grid, r.writers):
            self.assertAlmostEqual(row["values"][5], math.sqrt(sum(a * a for a in update[5])),
                                   delta=1e-12)
        grid = self.parsed("norms", "--of", "cosine")["result"]["grid"]
        states, updates = dict(r.states), dict(r.writers)
        for row, before in zip(grid, ("embed", "L0.attn", "L0.mlp", "L1.attn")):
            x, u = states[before][5], updates[row["name"]][5]
            want = sum(a * b for a, b in zip(x, u)) / math.sqrt(
                sum(a * a for a in x) * sum(a * a for a in u))
            self.assertAlmostEqual(row["values"][5], want, delta=1e-12)

    def test_shades_grow_with_the_number(self):
        for scale in ("log", "linear"):
            found = heat.heat_of([("a", [0.5, 1.0, 3.0]), ("b", [2.0, 9.0, 10.0])], scale)
            levels = [heat.SHADES.index(heat.level(x, found)) for x in (0.5, 1, 2, 3, 9, 10)]
            self.assertEqual(levels, sorted(levels))
            self.assertEqual((heat.level(10.0, found), heat.level(None, found)), ("@", "?"))
        self.assertEqual(levels, [0, 1, 2, 3, 8, 9])

    def test_position_0_may_be_left_out_and_that_is_said(self):
        found = heat.heat_of([("a", [1000.0, 1.0, 2.0]), ("b", [3.0, 1.5, 4.0])], "log")
        self.assertEqual((found.low, found.high, found.first_left_out), (1.0, 4.0, True))
        self.assertEqual(heat.level(1000.0, found), "@")
        found = heat.heat_of([("a", [10.0, 1.0, 4.0])], "linear")
        self.assertEqual((found.low, found.high, found.first_left_out), (0, 10.0, False))
        self.assertFalse(heat.heat_of([("a", [1000.0])], "log").first_left_out)
        self.assertTrue(self.parsed("norms")["result"]["position_0_in_scale"])

    def test_cosines_have_no_logarithm(self):
        self.refused(2, "--scale log means nothing to cosines", "norms", "--of", "cosine",
                     "--scale", "log")

    def test_a_parallel_block_has_no_state_between(self):
        rows = self.parsed("norms", "--model", os.path.join("tests", "data", "families", "falcon"),
                           "--ids", "3,4")["result"]["grid"]
        self.assertNotIn("L0.attn", [row["name"] for row in rows])
        self.assertIn("L0.mlp", [row["name"] for row in rows])


class TokensAndLoss(Case):
    def test_tokens(self):
        tokenizer = pyres.load().tokenizer
        result = self.parsed("tokens", "mqm")["result"]
        self.assertEqual(result["tokens"], tokenizer.encode("mqm"))
        self.assertEqual(result["token_texts"], ["<bos>", "m", "q", "m"])
        long = self.parsed("tokens", "a" * 100)["result"]           # longer than the context
        self.assertEqual(long["n_tokens"], 101)
        self.assertIsNone(self.parsed("tokens", *IDS)["result"]["token_texts"])
        self.refused(3, "no tokenizer", "tokens", "abc", "--model", GPT2)
        self.refused(3, "there is no token 29", "tokens", "--model", GPT2, "--ids", "3,29")
        self.refused(3, "not in the vocabulary", "tokens", "A")

    def test_loss_scores_every_token_once(self):
        model = pyres.load()
        for given in ("mqzkb", "mqzkb" * 6):
            ids = model.tokenizer.encode(given)
            loss, n = text_loss(model, ids)
            result = self.parsed("loss", given)["result"]
            self.assertEqual(result, {"loss": loss, "perplexity": math.exp(loss), "n_scored": n,
                                      "n_tokens": len(ids)})
            self.assertEqual(n, len(ids) - 1)
        other = self.parsed("loss", "mqzkb" * 6, "--stride", "3")["result"]
        self.assertEqual(other["loss"], text_loss(model, ids, 3)[0])
        self.assertNotEqual(other["loss"], result["loss"])

    def test_loss_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "some.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("mqzkbmqzkb")
            answer = self.parsed("loss", path)
            self.assertEqual(answer["result"], self.parsed("loss", "mqzkbmqzkb")["result"])
            self.assertEqual((answer["input"]["text"], answer["input"]["file"]), (None, path))
            with open(path, "wb") as file:
                file.write(b"ab\xff")
            self.refused(3, "not a text in UTF-8", "loss", path)

    def test_loss_refuses(self):
        self.refused(3, "at least 2 are needed", "loss", "--ids", "3")
        self.refused(3, "the stride is 24", "loss", "ab", "--stride", "24")

    def test_a_text_from_stdin(self):
        self.assertEqual(self.parsed("loss", "-", stdin="mqzkbm\n")["result"],
                         self.parsed("loss", "mqzkbm")["result"])


class Looks(Case):
    def test_every_line_fits(self):
        for argv in ANSWERS:
            for columns in (30, 40, 80):
                with self.subTest(argv=argv, columns=columns):
                    lines = self.good(*argv, "--columns", str(columns)).splitlines()
                    self.assertLessEqual(max(map(len, lines)), columns)
                    self.assertEqual([line for line in lines if line != line.rstrip()], [])

    def test_ascii_and_colour_say_the_same(self):
        for argv in ANSWERS:
            with self.subTest(argv=argv):
                plain = self.good(*argv)
                self.assertTrue(self.good(*argv, "--ascii").isascii())
                colored = self.good(*argv, "--color", "always")
                self.assertEqual(re.sub("\x1b\\[[0-9;]*m", "", colored), plain)

    def test_quiet_leaves_out_explanations_alone(self):
        for argv in ANSWERS:
            with self.subTest(argv=argv):
                whole, quiet = [self.good(*argv, *more).splitlines() for more in ((), ("-q",))]
                self.assertLess(len(quiet), len(whole))
                self.assertEqual([line for line in quiet if line not in whole], [])


if __name__ == "__main__":
    unittest.main()
