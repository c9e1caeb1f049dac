"""Laws of rounding: what round_to gives, what the ledger says, what the command prints.

round_to is arithmetic on one float.  The oracle here reads bit patterns through struct, where
neighbours are codes that differ by 1, and measures distances in Fractions.
"""
import json
import math
import os
import struct
import tempfile
import unittest
from decimal import Decimal, localcontext
from fractions import Fraction

import pyres
from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.edits import scale, set_state
from pyres.files.dtypes import decode, encode
from pyres.model import make_model, run, small_model
from pyres.rng import Generator
from pyres.study import rounding
from pyres.study.rounding import (ledger_check, lost_in, round_to, rounding_ledger, step_at,
                                  two_sum)
from pyres.weights import map_leaves
from tests.laws import TIGHT, Draw, assert_close, copied, flat, model_weights, walk
from tests.test_cli import GPT2, MODELS, here

SEEDS = (1, 2, 3)
NAMES = [form.name for form in rounding.FORMATS]
CODES = {"float32": ("<f", "<I", 0), "float16": ("<e", "<H", 0), "bfloat16": ("<f", "<I", 16)}
SMALLEST = {"float32": 2.0 ** -149, "float16": 2.0 ** -24, "bfloat16": 2.0 ** -133}
LARGEST = {"float32": (2 - 2.0 ** -23) * 2.0 ** 127, "float16": 65504.0,
           "bfloat16": (2 - 2.0 ** -7) * 2.0 ** 127}


# ---- the oracle ----

def code_of(y, to):
    """The bit pattern of a number of the format that is not negative; fails for any other."""
    number, bits, dropped = CODES[to]
    (code,) = struct.unpack(bits, struct.pack(number, y))
    if struct.unpack(number, struct.pack(number, y)) != (y,) or code % 2 ** dropped:
        raise AssertionError(f"{y!r} is no {to}")
    return code >> dropped


def value_of(code, to):
    """The number of a bit pattern, exactly; of infinity's, the number that would come next."""
    number, bits, dropped = CODES[to]
    (y,) = struct.unpack(number, struct.pack(bits, code << dropped))
    return Fraction(2) * Fraction(2) ** (math.frexp(LARGEST[to])[1] - 1) if y == math.inf \
        else Fraction(y)


def is_nearest(x, y, to):
    """Whether y is the nearest number of the format to x >= 0, of two the one with even code."""
    code, exact = code_of(y, to), Fraction(x)
    gap = abs(exact - value_of(code, to))
    below = abs(exact - value_of(code - 1, to)) if code else None
    above = abs(exact - value_of(code + 1, to)) if y < math.inf else None
    return all(other is None or gap < other or gap == other and code % 2 == 0
               for other in (below, above))


def any_float(generator, to):
    """A float >= 0, of any size that the format has and somewhat beyond, or near a tie."""
    lowest, highest = math.frexp(SMALLEST[to])[1] - 3, math.frexp(LARGEST[to])[1] + 2
    exponent = lowest + generator.below(highest - lowest)
    x = math.ldexp(0.5 + generator.below(2 ** 52) / 2 ** 53, exponent)
    if generator.below(2):
        half = step_at(x, to) / 2
        x = math.floor(x / half) * half if x / half < 2 ** 52 else x
        x += (generator.below(3) - 1) * math.ldexp(1.0, math.frexp(x)[1] - 53)
    return abs(x)


class RoundToLaws(unittest.TestCase):
    def for_all(self, check, n=200):
        for to in NAMES:
            for seed in SEEDS:
                generator = Generator(seed)
                for _ in range(n):
                    check(any_float(generator, to), to, f"{to}, seed {seed}")

    def test_it_is_the_nearest_number_and_of_two_the_even_one(self):
        def check(x, to, what):
            self.assertTrue(is_nearest(x, round_to(x, to), to), f"{what}: {x!r}")

        self.for_all(check)

    def test_struct_rounds_alike(self):
        def check(x, to, what):
            number, _, dropped = CODES[to]
            if dropped:
                return
            try:
                (want,) = struct.unpack(number, struct.pack(number, x))
            except OverflowError:
                want = math.inf
            self.assertEqual(round_to(x, to), want, f"{what}: {x!r}")

        self.for_all(check)

    def test_every_number_of_a_format_stays_and_every_middle_goes_to_the_even_one(self):
        for to in NAMES:
            top = code_of(math.inf, to)
            for code in range(0, top, 1 + top // 800):
                low, high = float(value_of(code, to)), float(value_of(code + 1, to))
                self.assertEqual(round_to(low, to), low)
                even = low if code % 2 == 0 else high
                want = math.inf if even > LARGEST[to] else even
                self.assertEqual(round_to((low + high) / 2, to), want, (to, code))

    def test_it_is_odd_idempotent_and_rises(self):
        def check(x, to, what):
            y = round_to(x, to)
            self.assertEqual(round_to(y, to), y, f"{what}: {x!r}")
            self.assertEqual(round_to(-x, to), -y, f"{what}: {x!r}")

        self.for_all(check)
        for to in NAMES:
            generator = Generator(4)
            rising = sorted([any_float(generator, to) for _ in range(300)])
            self.assertEqual(round_to(rising, to), sorted(round_to(rising, to)))

    def test_the_ends(self):
        for to in NAMES:
            largest, step = LARGEST[to], step_at(LARGEST[to], to)
            self.assertEqual(round_to(largest + step / 2, to), math.inf)
            self.assertEqual(round_to(-largest - step, to), -math.inf)
            self.assertEqual(round_to(largest + step * 0.499, to), largest)
            self.assertEqual(round_to(SMALLEST[to] / 2, to), 0.0)
            self.assertEqual(round_to(SMALLEST[to] * 0.501, to), SMALLEST[to])
            self.assertEqual(round_to([5e-324, 1.7e308, math.inf, -math.inf], to),
                             [0.0, math.inf, math.inf, -math.inf])
            self.assertTrue(math.isnan(round_to(math.nan, to)))
            for zero in (-0.0, -SMALLEST[to] / 4):
                self.assertEqual(math.copysign(1, round_to(zero, to)), -1)
            self.assertEqual(math.copysign(1, round_to(0.0, to)), 1)

    def test_a_bfloat16_is_not_rounded_twice(self):
        """Just above a middle, and just below: float32 would make a middle of both."""
        for low, sign, want in ((1.0, 1, 1.0078125), (1.0078125, -1, 1.0078125)):
            x = low + 2.0 ** -8 + sign * 2.0 ** -40
            self.assertEqual(round_to(x, "bfloat16"), want)
            self.assertNotEqual(round_to(round_to(x, "float32"), "bfloat16"), want)

    def test_steps(self):
        def check(x, to, what):
            y = min(round_to(x, to), LARGEST[to])
            self.assertEqual(step_at(y, to),
                             float(value_of(code_of(y, to) + 1, to) - Fraction(y)), what)

        self.for_all(check, 100)

    def test_what_is_not_finite_has_no_step(self):
        for x in (math.inf, -math.inf, math.nan):
            with self.assertRaisesRegex(ValueError, "step_at: .* has no neighbours"):
                step_at(x, "float16")

    def test_a_bf16_in_a_file_is_the_same_number(self):
        def check(x, to, what):
            y = round_to(x, "bfloat16")
            if y < math.inf:
                for number in (x, -x):
                    self.assertEqual(decode(encode([number], "BF16"), "BF16"),
                                     [math.copysign(y, number)], f"{what}: {x!r}")
            else:
                with self.assertRaises(OverflowError):
                    encode([math.inf, x], "BF16")

        self.for_all(check, 50)
        self.assertEqual(decode(encode([math.inf, -math.inf], "BF16"), "BF16"),
                         [math.inf, -math.inf])

    def test_any_depth_in_fresh_lists(self):
        x = [[2049.0], [1.0, -3.0]]
        y = round_to(x, "float16")
        self.assertEqual((x, y), ([[2049.0], [1.0, -3.0]], [[2048.0], [1.0, -3.0]]))
        y[1][0] = 7.0
        self.assertEqual(x[1][0], 1.0)

    def test_only_floats_and_only_these_formats(self):
        for x in (1, True, Fraction(1, 2), Decimal(1), 1j, "1.0", None, [1.0, 2]):
            with self.assertRaisesRegex(TypeError, "only floats are rounded, got "):
                round_to(x, "float16")
        with self.assertRaisesRegex(ValueError, "no format 'half'; there are float32, float16, "):
            round_to(1.0, "half")


class ExactSums(unittest.TestCase):
    def test_a_sum_and_its_error_are_the_exact_sum(self):
        for seed in SEEDS:
            generator = Generator(seed)
            for _ in range(300):
                a, b = [(1 - 2 * generator.below(2)) * any_float(generator, "bfloat16")
                        for _ in range(2)]
                total, error = two_sum(a, b)
                self.assertEqual(total, a + b)
                self.assertEqual(Fraction(total) + Fraction(error), Fraction(a) + Fraction(b),
                                 f"seed {seed}: {a!r}, {b!r}")

    def test_what_is_lost_is_exact(self):
        for to in NAMES:
            for seed in SEEDS:
                draw = Draw(seed)
                for exponent in range(-60, 13):
                    x = round_to(draw.number(), to)
                    u = math.ldexp(draw.number(), exponent)
                    s = round_to(x + u, to)
                    want = Fraction(x) + Fraction(u) - Fraction(s)
                    self.assertEqual(Fraction(lost_in([x, u], s)), want,
                                     f"{to}, seed {seed}: {x!r} + {u!r} is {s!r}")
                    # the stream itself is one of the numbers to choose from
                    self.assertTrue(abs(want) <= abs(Fraction(u)))
                    self.assertTrue(abs(want) <= Fraction(max(step_at(s, to), step_at(x + u, to))))

    def test_past_infinity(self):
        self.assertEqual(lost_in([65504.0, 32.0], math.inf), -math.inf)
        self.assertTrue(math.isnan(lost_in([math.inf, 1.0], math.inf)))


# ---- the ledger ----

TOKENS = [0, 3, 1, 4]


def random_run(seed, placement="pre_norm", edits=(), size=1):
    block = block_config(3, attention_config(2, 2), placement, norm_config("layer"), "gelu_tanh")
    config = model_config(4, 5, 4, 2, block, final_norm=norm_config("layer"))
    return run(make_model(config, model_weights(Draw(seed, size=size), config)), TOKENS, edits)


def exact(x):
    return walk(Fraction, x)


def plus(*tensors):
    return walk(lambda *entries: sum(entries), *tensors)


def minus(x, y):
    return walk(lambda a, b: a - b, x, y)


class LedgerLaws(unittest.TestCase):
    def for_all(self, check, placements=("pre_norm", "sandwich", "output_norm")):
        for placement in placements:
            for seed in SEEDS:
                to = NAMES[seed % 3]
                with self.subTest(placement=placement, seed=seed, to=to):
                    plain = random_run(seed, placement)
                    check(plain, rounding_ledger(plain, to), to)

    def test_every_state_is_of_the_format_and_the_update_is_not_touched(self):
        def check(plain, ledger, to):
            for name, state in ledger.rounded.states:
                self.assertEqual(state, round_to(state, to), name)
            updates = [update for _, update in ledger.rounded.writers]
            self.assertEqual([row.update for row in ledger.rows], updates)
            self.assertNotEqual(updates, round_to(updates, to))

        self.for_all(check)

    def test_state_after_is_state_before_and_update_less_what_was_lost(self):
        """In the fractions that the floats are, with ==; and so along the whole stream."""
        def check(plain, ledger, to):
            before = exact(walk(lambda a: 0, ledger.rows[0].update))
            total = before
            for row, (name, state) in zip(ledger.rows, ledger.rounded.states):
                self.assertEqual((row.name, row.writers), (name, [name]))
                u, lost = exact(row.update), exact(row.lost)
                self.assertEqual(exact(state), minus(plus(before, u), lost), name)
                before, total = exact(state), minus(plus(total, u), lost)
            self.assertEqual(exact(ledger.rounded.states[-1][1]), total)

        self.for_all(check)

    def test_a_parallel_block_is_rounded_once(self):
        """x + a + m has three terms, and what is lost of it is a float that is nearly exact."""
        def check(plain, ledger, to):
            self.assertEqual([row.writers for row in ledger.rows],
                             [["embed"], ["L0.attn", "L0.mlp"], ["L1.attn", "L1.mlp"]])
            writers, before = dict(ledger.rounded.writers), ledger.rounded.states[0][1]
            for row, (_, state) in zip(ledger.rows[1:], ledger.rounded.states[1:]):
                terms = [exact(x) for x in [before] + [writers[name] for name in row.writers]]
                want = minus(plus(*terms), exact(state))
                for got, lost in zip(flat(row.lost), flat(want)):
                    self.assertTrue(abs(Fraction(got) - lost) <= abs(lost) / 2 ** 50)
                before = state
            self.assertTrue(ledger_check(ledger).ok)

        self.for_all(check, ["parallel"])

    def test_lengths_and_counts_by_loops(self):
        def check(plain, ledger, to):
            before = walk(lambda a: 0.0, ledger.rows[0].update)
            unrounded = dict(plain.states)
            for row, (name, state) in zip(ledger.rows, ledger.rounded.states):
                for t in range(4):
                    swallowed = 0
                    for i in range(4):
                        if row.update[t][i] != 0 and state[t][i] == before[t][i]:
                            swallowed += 1
                            self.assertEqual(row.lost[t][i], row.update[t][i])
                    self.assertEqual(row.swallowed[t], swallowed)
                    for got, v in ((row.added, row.update[t]), (row.lost_length, row.lost[t]),
                                   (row.drift, minus(state[t], unrounded[name][t]))):
                        assert_close(self, got[t], math.dist(v, [0] * 4), name, "a length")
                    self.assertEqual(row.share[t], row.lost_length[t] / row.added[t])
                    self.assertLessEqual(row.share[t], 1 + 1e-15)
                before = state
            self.assertEqual(ledger.rows[0].drift, ledger.rows[0].lost_length)

        self.for_all(check)

    def test_a_stream_that_has_grown_swallows(self):
        """The embedding times 2**20, and then nothing of size 1 reaches half a step."""
        plain = random_run(5)
        config = plain.model.config._replace(embed_multiplier=2.0 ** 20)
        long = run(plain.model._replace(config=config), TOKENS)
        rows = rounding_ledger(long, "bfloat16").rows
        self.assertEqual([row.swallowed for row in rows], [[0] * 4] + [[4] * 4] * 4)
        self.assertEqual([row.share for row in rows[1:]], [[1.0] * 4] * 4)
        swallowed = flat([row.swallowed for row in rounding_ledger(plain, "bfloat16").rows])
        self.assertLess(sum(swallowed), len(swallowed))

    def test_where_all_numbers_fit_nothing_is_lost(self):
        plain = run(small_model(), [0, 1])
        for to in NAMES:
            ledger = rounding_ledger(plain, to)
            self.assertEqual(set(flat([row.lost for row in ledger.rows])), {0.0})
            self.assertEqual((ledger.rounded.states, ledger.rounded.logits),
                             (plain.states, plain.logits))
            self.assertEqual(ledger.divergence + ledger.logit_difference, [0.0] * 4)
            self.assertEqual(ledger.changed, [False] * 2)

    def test_the_ledger_is_checked_and_the_check_can_fail(self):
        def check(plain, ledger, to):
            self.assertTrue(ledger_check(ledger).ok)
            rows = copied(ledger.rows)
            rows[2].lost[1][3] += 1e-9
            self.assertFalse(ledger_check(ledger._replace(rows=rows)).ok)
            forgotten = ledger._replace(rows=[row for row in ledger.rows if row.name != "L0.attn"])
            self.assertFalse(ledger_check(forgotten).ok)

        self.for_all(check)

    def test_edits_hold_in_both_runs(self):
        off = [scale("L0.attn", 0)]
        plain = random_run(6, edits=off)
        ledger = rounding_ledger(plain, "float16")
        self.assertEqual(set(flat(dict(ledger.rounded.writers)["L0.attn"])), {0.0})
        row = ledger.rows[1]
        self.assertEqual((row.share, row.swallowed), ([None] * 4, [0] * 4))
        self.assertEqual(row.lost_length, [0.0] * 4)
        self.assertEqual(plain.edits, off)

    def test_the_largest_loss(self):
        def check(plain, ledger, to):
            row, t, i = rounding.largest_loss(ledger)
            self.assertEqual(abs(row.lost[t][i]),
                             max([abs(a) for a in flat([row.lost for row in ledger.rows])]))
            rows = copied(ledger.rows)
            rows[1].lost[2][3] = math.nan
            row, t, i = rounding.largest_loss(ledger._replace(rows=rows))
            self.assertEqual((row.name, t, i), (rows[1].name, 2, 3))

        self.for_all(check)

    def test_divergence_by_forty_digits(self):
        """KL of float32 is near 1e-14, where sum of p (log p - log q) in floats is noise."""
        def probabilities(logits):
            weights = [Decimal(a).exp() for a in logits]
            return [a / sum(weights) for a in weights]

        def check(got, logits, other, seed, what, tolerance):
            with localcontext() as context:
                context.prec = 40
                pairs = list(zip(probabilities(logits), probabilities(other)))
                want = float(sum([p * (p / q).ln() for p, q in pairs]))
            assert_close(self, got, want, seed, what, tolerance)

        for seed in SEEDS:
            for to in NAMES:
                ledger = rounding_ledger(random_run(seed), to)
                for at in zip(ledger.divergence, ledger.plain.logits, ledger.rounded.logits):
                    # log p - log q is known to some 2**-52 of the logs, which are of size 10
                    check(*at, seed, to, 1e-7 if to == "float32" else 1e-10)
            draw = Draw(seed, size=2)
            logits, other = draw.tensor(5), draw.tensor(5)
            check(rounding._divergence(logits, other), logits, other, seed, "a draw", TIGHT)

    def test_divergence_far_apart(self):
        for a, b in (([0.0, 900.0], [900.0, 0.0]), ([0.0, 900.0], [0.0, -900.0])):
            self.assertEqual(rounding._divergence(a, b), 900.0)
        self.assertEqual(rounding._divergence([0.0, -2000.0], [0.0, -1000.0]), 0.0)

    def test_overflow_is_said(self):
        plain = random_run(7, size=100)
        config = plain.model.config._replace(embed_multiplier=1e4)
        ledger = rounding_ledger(run(plain.model._replace(config=config), TOKENS), "float16")
        row, t, i = rounding.largest_loss(ledger)
        self.assertEqual(row.name, "embed")
        self.assertTrue(math.isinf(row.lost[t][i]))
        self.assertFalse(ledger_check(ledger).ok)
        self.assertEqual(ledger.changed, [None] * 4)

    def test_what_has_no_ledger_is_refused(self):
        with self.assertRaisesRegex(ValueError, "under post-norm a state is what a norm made"):
            rounding_ledger(random_run(1, "post_norm"), "float16")
        with self.assertRaisesRegex(ValueError, "the run's edits set a state"):
            rounding_ledger(run(small_model(), [0], [set_state("embed", [[1.0]])]), "float16")
        with self.assertRaisesRegex(ValueError, "no format 'float64'"):
            rounding_ledger(run(small_model(), [0]), "float64")
        exactly = small_model()._replace(weights=map_leaves(exact, small_model().weights))
        with self.assertRaisesRegex(TypeError, "only floats are rounded, got Fraction"):
            run(exactly, [0], rounding.rounding_edits(exactly, "float16"))


# ---- the command ----

SHORT = ["rounding", "--model", GPT2, "--ids", "3,1,4"]


class Command(unittest.TestCase):
    def test_json_has_the_numbers_of_the_ledger(self):
        done = here(*SHORT, "--to", "float16", "-p", "1", "--json")
        self.assertEqual((done.code, done.err), (0, ""))
        answer = json.loads(done.out)
        ledger = rounding_ledger(run(pyres.load(GPT2), [3, 1, 4]), "float16")
        result = answer["result"]
        self.assertEqual(result["to"], "float16")
        self.assertEqual(result["rows"], [
            {"name": row.name, "writers": row.writers, "added": row.added,
             "lost": row.lost_length, "share": row.share, "swallowed": row.swallowed,
             "drift": row.drift} for row in ledger.rows])
        self.assertEqual((result["divergence"], result["logit_difference"], result["changed"]),
                         (ledger.divergence, ledger.logit_difference, ledger.changed))
        for name, r in (("before", ledger.plain), ("after", ledger.rounded)):
            guesses = result[name]["guesses"]
            p = pyres.softmax(r.logits[1])
            self.assertEqual([guess["probability"] for guess in guesses],
                             sorted(p, reverse=True)[:5])
            self.assertEqual([p[guess["token"]] for guess in guesses],
                             [guess["probability"] for guess in guesses])
        self.assertEqual(answer["input"]["position"], 1)
        self.assertEqual([check["ok"] for check in answer["checks"]], [True])
        self.assertEqual(here(*SHORT, "--to", "float16", "-p", "1", "--json").out, done.out)

    def test_echo_without_a_word_more(self):
        done = here("rounding")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("Every state is rounded to bfloat16.", done.out)
        self.assertIn("Only the stream is rounded", done.out)
        self.assertNotIn("Only the stream is rounded", here("rounding", "-q").out)

    def test_every_line_fits(self):
        for columns in (40, 60, 80):
            done = here(*SHORT, "--to", "float32", "--columns", str(columns), "--ascii")
            self.assertEqual(done.code, 0)
            self.assertLessEqual(max(map(len, done.out.split("\n"))), columns)

    def test_its_examples_run(self):
        for example in pyres.cli.command_named("rounding").examples:
            done = here(*example.replace("FOLDER", GPT2).split())
            self.assertEqual((done.code, done.err), (0, ""), example)

    def test_other_placements(self):
        config = model_config(4, 5, 4, 1, block_config(3, attention_config(2, 2), "parallel"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "parallel.safetensors")
            pyres.save(make_model(config, model_weights(Draw(8), config)), path)
            done = here("rounding", "--model", path, "--ids", "1,2")
            self.assertRegex(done.out, r"(?m)^\+ L0.attn \+ L0.mlp  ")
            self.assertEqual(done.code, 0)
            config = config._replace(blocks=[block_config(3, attention_config(2, 2), "post_norm")])
            pyres.save(make_model(config, model_weights(Draw(8), config)), path)
            done = here("rounding", "--model", path, "--ids", "1,2")
            self.assertEqual((done.code, done.out), (3, ""))
            self.assertIn("under post-norm", done.err)

    def test_overflow_is_a_check_that_answers_no(self):
        model = pyres.load(GPT2)
        table = [[a * 1e6 for a in row] for row in model.weights.w_embed]
        weights = model.weights._replace(w_embed=table)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "large.safetensors")
            pyres.save(model._replace(weights=weights), path)
            words = ["rounding", "--model", path, "--ids", "3,1", "--to", "float16"]
            done = here(*words)
            self.assertEqual(done.code, 1)
            self.assertRegex(done.out, r"overflow +channel \d of embed at position 0")
            self.assertIn("rounded no guess", done.out)
            self.assertIn("DOES NOT HOLD", done.out)
            answer = json.loads(here(*words, "--json").out)
            self.assertEqual(answer["result"]["after"]["guesses"], [])
            self.assertEqual(answer["result"]["changed"], [None, None])
            table = [[math.nan] * 8 for _ in model.weights.w_embed]
            pyres.save(model._replace(weights=model.weights._replace(w_embed=table)), path)
            done = here(*words)
            self.assertEqual(done.code, 1)
            self.assertRegex(done.out, r"no number +channel 0 of embed at position 0")

    def test_what_is_refused(self):
        for words, code, message in (
                (["rounding", "--to", "float64"], 2, "float64"),
                (["rounding", "--to"], 2, "--to"),
                (SHORT + ["-p", "3"], 3, "there is no position 3; the last is 2"),
                (["rounding", "abc", "--model", GPT2], 3, "give token ids in place of TEXT"),
                (["rounding", "--model", os.path.join(MODELS, "none")], 2, "nothing to run")):
            done = here(*words)
            self.assertEqual((done.code, done.out), (code, ""), words)
            self.assertIn(message, done.err)


if __name__ == "__main__":
    unittest.main()
