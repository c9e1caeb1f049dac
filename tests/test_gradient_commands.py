"""grad and heads: what they print is what the functions say, at every width."""
import json
import math
import os
import tempfile
import unittest
from unittest import mock

import pyres
from pyres import cli
from pyres.commands.options import BAD_INPUT, NO
from pyres.model import run
from pyres.study import circuits, gradients, paths
from pyres.study.metrics import logit
from pyres.view import gradients as grad_view
from pyres.view import heads as heads_view
from pyres.view.text import Look
from tests.laws import Draw
from tests.placements import float_models
from tests.test_cli import GPT2, MODELS, Case, here, setUpModule      # noqa: F401

TEXT = "mqzkbmqz"
LLAMA = os.path.join(MODELS, "llama")
ECHO = pyres.load()
GRADS = (["grad", "mqz", "--check", "--paths"], ["grad", "--model", GPT2, "--ids", "3,1,4"],
         ["grad", "--model", LLAMA, "--ids", "3,1,4", "--target", "#5", "--against", "#6"])
HEADS = (["heads", "mqz", "--draws", "1"],
         ["heads", "--model", LLAMA, "--ids", "3,1,4,1,5", "--draws", "1"])


def answered(argv):
    """The Answer of a command, undrawn."""
    command = cli.command_named(argv[0])
    options = cli.command_parser(command).parse(argv[1:], cli.first_parser().parse([]))
    return command.run(options)


def saved(n_layers, folder):
    """The path of a small model of so many blocks."""
    config = pyres.model_config(2, 5, 4, n_layers,
                                pyres.block_config(2, pyres.attention_config(1, 2)))
    path = os.path.join(folder, "some.safetensors")
    pyres.save(pyres.make_model(config, pyres.random_weights(config, std=0.5)), path)
    return path


class Grad(Case):

    def test_the_numbers_are_those_of_the_functions(self):
        r = pyres.run(ECHO, TEXT)
        answer = self.parsed("grad", TEXT, "-p", "5", "--target", "k", "--against", "w")
        metric = logit(ECHO, 5, 11, foil=23)
        result, found = answer["result"], gradients.curves(r, metric)
        self.assertEqual((answer["input"]["target"], answer["input"]["against"]), (11, 23))
        self.assertEqual(result["states"], [name for name, _ in r.states])
        self.assertEqual(result["curves"], {"whole": found.whole, "branches": found.branches,
                                            "rerun": found.rerun})
        lengths = gradients.state_lengths(r, metric)
        for part in ("identity", "branch"):
            self.assertEqual(result[part], [getattr(one, part) for one in lengths])
            self.assertIsNone(result[part][-1])
        masses = paths.masses(paths.path_length_gradients(r, metric))
        self.assertEqual(result["by_path_length"], [
            {"branches": l, "paths": math.comb(4, l), "norm": mass.length, "share": mass.share}
            for l, mass in enumerate(masses)])
        self.assertNotIn("paths", result)
        self.assertEqual([check["ok"] for check in answer["checks"]], [True])

    def test_paths_and_checks_where_they_are_asked_for(self):
        answer = self.parsed(*GRADS[0])
        found = answer["result"]["paths"]
        self.assertEqual(len(found), 16)
        self.assertEqual((found[0]["through"], found[1]["through"]), ([], ["L0.attn"]))
        self.assertAlmostEqual(math.fsum(path["share"] for path in found), 1, delta=1e-12)
        self.assertEqual([check["name"] for check in answer["checks"][1:]], [
            f"the gradient at {name} against a complex step"
            for name in answer["result"]["states"]])
        self.assertEqual({check["ok"] for check in answer["checks"]}, {True})

    def test_a_check_that_fails_says_so_with_its_exit_code(self):
        wrong = paths.PathCheck(1.0, 1e-12, False)
        with mock.patch.object(paths, "path_check", return_value=wrong):
            done = here("grad", "mqz")
        self.assertEqual(done.code, NO)
        self.assertIn("DOES NOT HOLD", done.out)

    def test_too_many_steps_for_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            path = saved(6, folder)
            said = self.refused(BAD_INPUT, "paths: 12 steps", "grad", "--model", path, "--ids",
                                "3,1", "--paths")
            self.assertIn("path_length_gradients", said)
            result = self.parsed("grad", "--model", path, "--ids", "3,1")["result"]
        self.assertEqual([row["paths"] for row in result["by_path_length"]],
                         [math.factorial(12) // math.factorial(l) // math.factorial(12 - l)
                          for l in range(13)])

    def test_notes(self):
        from pyres.commands.grad import notes_on
        models = dict(float_models(1))
        self.assertEqual(notes_on(ECHO), [])
        self.assertIn("soft cap", notes_on(models["4 sandwich"])[0])
        self.assertIn("identity part", notes_on(models["8 post_norm"])[0])
        self.assertIn("one step", notes_on(models["3 parallel"])[-1])


class Heads(Case):

    def test_the_numbers_are_those_of_the_run_and_of_circuits(self):
        r = pyres.run(ECHO, TEXT)
        result = self.parsed("heads", TEXT, "-p", "7", "--draws", "2")["result"]
        self.assertEqual([head["name"] for head in result["heads"]],
                         ["L0.attn.H0", "L0.attn.H1", "L1.attn.H0", "L1.attn.H1"])
        for i, head in enumerate(result["heads"]):
            w, config = ECHO.weights.blocks[i // 2].attn, ECHO.config.blocks[0].attention
            pattern = r.steps.blocks[i // 2].attn.pattern[i % 2]
            self.assertEqual(head["pattern"], pattern)
            weights = [part["weight"] for part in head["looks_at"]]
            self.assertEqual(weights, sorted(pattern[7], reverse=True)[:3])
            self.assertEqual(weights, [pattern[7][part["position"]] for part in head["looks_at"]])
            self.assertEqual(head["qk_norm"], circuits.map_norm(circuits.qk_map(w, config, i % 2)))
            self.assertEqual(head["ov_norm"], circuits.map_norm(circuits.ov_map(w, config, i % 2)))
        self.assertEqual(result["compositions"], [c._asdict() for c in
                                                  circuits.compositions(ECHO, 2)])

    def test_some_layers(self):
        for layers, names, n in (("0:1", {"L0"}, 0), ("1:2", {"L1"}, 4)):
            answer = self.parsed("heads", "mqz", "--layers", layers, "--draws", "1")
            self.assertEqual({head["name"][:2] for head in answer["result"]["heads"]}, names)
            self.assertEqual(len(answer["result"]["compositions"]), n)
            self.assertEqual(bool(answer["notes"]), n == 0)

    def test_a_model_without_blocks(self):
        with tempfile.TemporaryDirectory() as folder:
            path = saved(0, folder)
            self.refused(BAD_INPUT, "no heads", "heads", "--model", path, "--ids", "3,1")
            result = self.parsed("grad", "--model", path, "--ids", "3,1")["result"]
        self.assertEqual((result["states"], result["identity"]), (["embed"], [None]))

    def test_normed_queries_have_no_qk(self):
        m = dict(float_models(1))["1 pre_norm"]
        found = heads_view.heads_of(run(m, [2, 4, 2]), 2, 0, 2)
        self.assertEqual({head.qk_norm for head in found}, {None})
        record = heads_view.heads_record(found, circuits.compositions(m, n_draws=1))
        self.assertIn('"query": null', json.dumps(record))
        table = heads_view.composition_table(circuits.compositions(m, n_draws=1), Look())
        self.assertIn(" . ", table[1])

    def test_rotary_positions_are_said(self):
        self.assertIn("Rotary", self.parsed(*HEADS[1])["notes"][0])

    def test_more_tokens_than_columns(self):
        n = 50
        pattern = [[float(s == t) for s in range(n)] for t in range(n)]
        head = heads_view.Head("L0.attn.H0", pattern, [], 1.0, 1.0)
        lines = heads_view.map_lines([head, head], [f"#{t}" for t in range(n)], Look(columns=30))
        self.assertEqual({len(line) <= 30 for line in lines}, {True})
        self.assertEqual(lines[:2], ["the last 25 of 50 tokens:", ""])
        self.assertEqual(len(lines), 2 + 2 * 26 + 1)    # twice, under a name
        self.assertEqual(lines[3].split(), ["#25", "#"])
        self.assertEqual(lines[-1], "#49" + " " * 26 + "#")

    def test_long_labels_give_way_to_long_names(self):
        head = heads_view.Head("L10.attn.H10", [[1.0]], [], 1.0, 1.0)
        lines = heads_view.map_lines([head], ["'a long token'"], Look(columns=20))
        self.assertEqual(lines, [" " * 8 + "L10.attn.H10", "'a lo~  #"])

    def test_more_pairs_than_are_shown(self):
        def pairs(n):
            return [circuits.Composition(f"L0.attn.H{i}", "L1.attn.H0", 0.5, 0.25 + i / 100, 0.0,
                                         0.25) for i in range(n)]

        for n, heading in ((10, False), (11, True)):
            lines = heads_view.heads_lines(pyres.run(ECHO, "m"), 0, ["'a'", "'m'"],
                                           heads_view.heads_of(pyres.run(ECHO, "m"), 0, 0, 1),
                                           pairs(n), [], Look())
            self.assertEqual("the 10 of 11 pairs that compose most" in lines, heading)
            self.assertEqual(sum(["L1.attn.H0" in line for line in lines]), 10)

    def test_what_is_no_number_is_shown_and_not_ranked(self):
        nan = float("nan")
        scores = [(0.1, 0.2, 0.3), (nan, 0.9, 0.1), (0.8, 0.1, 0.1), (0.1, 0.1, nan),
                  (None, None, 1)]
        for turn in range(5):
            given = scores[turn:] + scores[:turn]
            found = heads_view.most_composed([
                circuits.Composition(f"L0.attn.H{scores.index(one)}", "L1.attn.H0", *one, 0.5)
                for one in given])
            self.assertEqual([c.earlier[-1] for c in found], ["1", "3", "4", "2", "0"])
        w = ECHO.weights.blocks[0]
        w = w._replace(attn=w.attn._replace(w_q=[[nan] * 24] + w.attn.w_q[1:]))
        m = ECHO._replace(weights=ECHO.weights._replace(blocks=[w] + ECHO.weights.blocks[1:]))
        r = pyres.run(m, "mqz")
        lines = heads_view.heads_lines(r, 3, list("bmqz"), heads_view.heads_of(r, 3, 0, 2),
                                       circuits.compositions(m, 1), [], Look())
        self.assertIn("L0.attn.H0  ?", lines)
        self.assertIn("L0.attn.H0    nan  0.808", lines)


class Help(Case):

    def test_it_ends_with_two_examples_that_run(self):
        for name in ("grad", "heads"):
            usage, _, examples = self.good(name, "-h").partition("\nexamples:\n")
            self.assertIn(f"python3 -m pyres {name}", usage)
            examples = [line.split()[3:] for line in examples.splitlines()]
            self.assertEqual(len(examples), 2)
            for words in examples:
                self.good(*[GPT2 if word == "FOLDER" else word for word in words])


class Pictures(Case):

    def test_everything_fits_its_columns_in_ascii_and_colour_only_repeats(self):
        for argv in GRADS + HEADS:
            answer = answered(argv)
            for columns in (20, 40, 80, 200):
                for quiet in (False, True):
                    lines = answer.draw(Look(columns=columns, ascii=True, quiet=quiet))
                    longest = max(lines, key=len)
                    self.assertLessEqual(len(longest), columns, f"{argv}: {longest!r}")
                    self.assertTrue("".join(lines).isascii())
                    coloured = "\n".join(answer.draw(Look(columns, True, True, quiet=quiet)))
                    self.assertIn("\x1b[", coloured)
                    for code in ("\x1b[0m", "\x1b[1m", "\x1b[36m"):
                        coloured = coloured.replace(code, "")
                    self.assertEqual(coloured, "\n".join(lines))

    def test_letters_stand_in_the_order_of_their_lengths(self):
        for seed in (1, 2, 3):
            draw = Draw(seed)
            curves = [(letter, [10 ** (2 * draw.number()) for _ in range(4)]) for letter in "wbr"]
            names = [f"L{i}.attn" for i in range(4)]
            for columns in (30, 80):
                lines = grad_view.curve_picture(names, curves, Look(columns=columns))
                self.assertEqual(len(lines), 5)
                for i, line in enumerate(lines[1:]):
                    marks = line.partition("|")[2].rstrip("|").replace(" ", "")
                    order = "".join(letter for letter, _ in
                                    sorted(curves, key=lambda pair: pair[1][i]))
                    if "*" not in marks:
                        self.assertEqual(marks, order, f"seed {seed}: {lines}")
                    self.assertEqual(len(line), columns)

    def test_what_has_no_logarithm_is_left_out(self):
        nan, inf = float("nan"), float("inf")
        for values in ([0.0, 1.0], [nan, inf], [0.0, 0.0], [5e-324, 1.7e308], [-0.0, 3.0]):
            lines = grad_view.curve_picture(["a", "b"], [("w", values)], Look(columns=40))
            marks = [line.count("w") for line in lines[1:]]
            self.assertEqual(marks, [int(0 < value < inf) for value in values])

    def test_powers_of_ten_stand_above_their_column(self):
        for values, width in (([0.001, 1000.0], 60), ([2.0, 3.0], 10), ([1e-300, 1e300], 50)):
            column, labels = grad_view.log_axis(values, width)
            self.assertLessEqual(len(labels), width)
            for label in labels.split():
                at = column(float(label))
                start = (" " + labels + " ").index(f" {label} ")
                self.assertTrue(start <= at <= start + len(label), f"{labels!r}: {label} at {at}")


if __name__ == "__main__":
    unittest.main()
