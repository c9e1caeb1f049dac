"""Training: the optimiser against a second formula, one batch however it is cut, what a text and
echo give to train on, and a run that goes on as if it had not stopped.
"""
import math
import os
import tempfile
import unittest
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction

from pyres import linalg
from pyres.config import attention_config, block_config, model_config, norm_config
from pyres.data import (ECHO_TOKENS, echo_batch, echo_sequence, scoring_windows, text_batch,
                        text_loss, unigram_loss)
from pyres.files import safetensors
from pyres.files.characters import Characters, vocabulary_of
from pyres.files.native import load_training, save_training
from pyres.loss import next_token_targets
from pyres.model import loss_and_gradients, make_model, run
from pyres.rng import Generator
from pyres.training import (Moments, adamw, batch_loss_and_gradients, clip_factor, gradient_length,
                            no_moments, rate_at, settings, start, step)
from pyres.weights import ModelWeights, leaves, map_leaves, random_weights
from tests.laws import (Draw, assert_close, copied, difference, flat, inner, model_weights, walk)

PRINTED = 1e-8              # numbers that are given to nine decimals


def small_config(n_ctx=6, d_vocab=5, n_layers=1, placement="pre_norm"):
    block = block_config(3, attention_config(2, 2), placement, norm_config("layer", 0.1))
    return model_config(4, d_vocab, n_ctx, n_layers, block, final_norm=norm_config("rms", 0.1))


def small_model(seed, tied=False, **sizes):
    """A model with every kind of leaf: matrices, vectors and a number."""
    config = small_config(**sizes)
    draw = Draw(seed, size=0.5)
    return make_model(config, model_weights(draw, config, tied=tied, multipliers=True))


def small_batch(seed, n=5, n_ctx=6, d_vocab=5):
    """n pairs (tokens, targets) of unequal lengths; a third of the targets does not count."""
    g, batch = Generator(seed), []
    for _ in range(n):
        length = 1 + g.below(n_ctx)
        tokens = [g.below(d_vocab) for _ in range(length)]
        batch.append((tokens, [g.below(d_vocab) if g.below(3) else None for _ in tokens]))
    batch[0][1][0] = 1                                  # at least one counts
    return batch


def n_counted(batch):
    return sum(target is not None for _, targets in batch for target in targets)


def draw_from(n_ctx=6, d_vocab=5):
    """A draw of random sequences whose targets are the next tokens."""
    def draw(generator, n):
        batch = []
        for _ in range(n):
            tokens = [generator.below(d_vocab) for _ in range(n_ctx)]
            batch.append((tokens, next_token_targets(tokens)))
        return batch

    return draw


def is_matrix(tensor):
    return isinstance(tensor, list) and isinstance(tensor[0], list)


def without_tokenizer(training):
    """A Training to compare: a tokenizer is equal to itself alone."""
    return training._replace(model=training.model._replace(tokenizer=None))


# ---- AdamW ----

def weighted_mean(values, beta):
    """The mean of values, the last with weight 1, the one before with beta, then beta**2, ..."""
    shares = [beta ** age for age in reversed(range(len(values)))]
    return sum(share * a for share, a in zip(shares, values)) / sum(shares)


def walked(w, gradients, rule, rates, decay):
    """One weight after a step for each gradient.  A corrected moment is the weighted mean of what
    has been seen so far, whatever the moments that are kept."""
    for t, rate in enumerate(rates, 1):
        seen = gradients[:t]
        root = math.sqrt(weighted_mean([g * g for g in seen], rule.beta2))
        w = w - rate * weighted_mean(seen, rule.beta1) / (root + rule.eps) - rate * decay * w
    return w


class AdamWTest(unittest.TestCase):
    def steps(self, weights, gradients, rule, rates):
        moments = no_moments(weights)
        for gradient, rate in zip(gradients, rates):
            weights, moments = adamw(weights, gradient, moments, rule, rate)
        return weights, moments

    def test_every_number_against_the_second_formula(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                draw = Draw(seed)
                weights = small_model(seed).weights
                n = 1 + draw.generator.below(6)
                # an eps as large as the roots: its place shows
                rule = settings(beta1=draw.generator.uniform(), beta2=draw.generator.uniform(),
                                eps=draw.generator.uniform(), decay=draw.generator.uniform())
                gradients = [draw.like(weights) for _ in range(n)]
                rates = [draw.generator.uniform() for _ in range(n)]
                got, moments = self.steps(weights, gradients, rule, rates)
                self.assertEqual(moments.step, n)
                by_name = [dict(leaves(gradient)) for gradient in gradients]
                for name, before in leaves(weights):
                    decay = rule.decay if is_matrix(before) else 0
                    want = walk(lambda w, *g: walked(w, list(g), rule, rates, decay),
                                before, *[found[name] for found in by_name])
                    assert_close(self, dict(leaves(got))[name], want, seed, name)

    def test_matrices_decay_and_vectors_and_numbers_do_not(self):
        weights = small_model(1).weights
        kinds = Counter()
        rule = settings(decay=0.25, eps=1.0)
        nothing = map_leaves(lambda tensor: walk(lambda a: 0.0, tensor), weights)
        moved, _ = adamw(weights, nothing, no_moments(weights), rule, rate=0.5)
        for (name, before), (_, after) in zip(leaves(weights), leaves(moved)):
            keep = 0.875 if is_matrix(before) else 1
            kinds[keep, isinstance(before, list)] += 1
            self.assertEqual(after, walk(lambda a: a * keep, before), name)
        self.assertEqual(len(kinds), 3, f"matrices, vectors and a number: {kinds}")

    def test_the_arguments_are_left_as_they_are(self):
        weights = small_model(2).weights
        gradient, moments = Draw(3).like(weights), no_moments(weights)
        kept = copied((weights, gradient, moments))
        adamw(weights, gradient, moments, settings(), 0.1)
        self.assertEqual(copied((weights, gradient, moments)), kept)

    def test_a_first_step_is_as_long_as_the_rate_whatever_the_gradient(self):
        for size in (1e-100, 1e-3, 1.0, 1e100):
            w, _ = adamw([0.0], [-size], no_moments([0.0]), settings(eps=0, decay=0), 0.25)
            assert_close(self, w, [0.25], "none", f"gradient {size}")


class AdamWMistakesTest(unittest.TestCase):
    """Rules that differ quietly, each with the number that it gives instead."""

    def one_step(self, w, gradient, **rule):
        rule = settings(beta1=0.9, beta2=0.999, eps=1e-8, **rule)
        return flat(adamw(w, gradient, no_moments(w), rule, 0.1)[0])[0]

    def assertPrinted(self, got, want, *wrong):
        assert_close(self, [got], [want], "none", self.id().rpartition(".")[2], PRINTED)
        for other in wrong:
            self.assertGreater(difference([want], [other]), 100 * PRINTED)

    def test_the_decay_is_of_the_weight_as_it_was_and_no_part_of_the_gradient(self):
        """After the step it is of another weight; in the gradient it is divided by the root."""
        after_the_step, in_the_gradient = 0.891000002, 0.900000002
        self.assertPrinted(self.one_step([[1.0]], [[0.5]], decay=0.1), 0.890000002,
                           after_the_step, in_the_gradient)

    def test_eps_is_added_to_the_corrected_root(self):
        """Before the correction a small gradient hardly moves anything at first."""
        self.assertPrinted(self.one_step([[0.0]], [[1e-8]], decay=0), -0.05, -0.003065343)

    def test_gains_and_biases_do_not_decay(self):
        self.assertEqual(self.one_step([1.0], [0.0], decay=0.1), 1.0)
        self.assertEqual(self.one_step(1.0, 0.0, decay=0.1), 1.0)
        self.assertPrinted(self.one_step([[1.0]], [[0.0]], decay=0.1), 0.99)

    def test_steps_are_counted_from_1(self):
        """From 0 the first correction divides by 0."""
        _, moments = adamw([1.0], [1.0], no_moments([1.0]), settings(), 0.1)
        self.assertEqual(moments.step, 1)


class ExactAdamWTest(unittest.TestCase):
    """With beta2 = 1/2 and gradients 5, 1, 3 the corrected squares are 25, 9, 9."""

    HALF = Fraction(1, 2)

    def table(self, w, gradient, eps, decay, rate):
        rule = settings(rate=rate, beta1=self.HALF, beta2=self.HALF, eps=eps, decay=decay)
        moments = no_moments(w)
        for number in (5, 1, 3):
            w, moments = adamw(w, walk(lambda a: a * number, gradient), moments, rule, rate)
            yield flat(w)[0], flat(moments.first)[0], flat(moments.second)[0]

    def test_three_steps(self):
        got = list(self.table([Fraction(0)], [Fraction(1)], 0, 0, Fraction(1)))
        self.assertEqual(got, [(-1, Fraction(5, 2), Fraction(25, 2)),
                               (Fraction(-16, 9), Fraction(7, 4), Fraction(27, 4)),
                               (Fraction(-169, 63), Fraction(19, 8), Fraction(63, 8))])

    def test_three_steps_of_a_matrix_with_decay_and_eps(self):
        # 1 - 1/2 (5/6 + 1/4), then 11/24 - 1/2 (7/12 + 11/96), then 7/64 - 1/2 (19/28 + 7/256)
        got = [w for w, _, _ in self.table([[Fraction(1)]], [[Fraction(1)]], Fraction(1),
                                           Fraction(1, 4), self.HALF)]
        self.assertEqual(got, [Fraction(11, 24), Fraction(7, 64), Fraction(-873, 3584)])
        self.assertEqual({type(w) for w in got}, {Fraction})


# ---- clipping, the schedule, the settings ----

def times(factor, gradients):
    def of_leaf(tensor):
        return linalg.scale(factor, tensor) if isinstance(tensor, list) else factor * tensor

    return map_leaves(of_leaf, gradients)


class ClipTest(unittest.TestCase):
    def test_the_length_is_at_most_the_limit(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                gradients = Draw(seed).like(small_model(seed).weights)
                length = math.sqrt(sum(a * a for a in flat(gradients)))
                limit = length * 2 * Generator(seed).uniform()
                factor, found = clip_factor(gradients, limit)
                assert_close(self, found, length, seed, "length")
                assert_close(self, gradient_length(times(factor, gradients)), min(length, limit),
                             seed, "shortened")

    def test_what_is_short_enough_stays_as_it_is(self):
        gradients = Draw(1).like(small_model(1).weights)
        length = gradient_length(gradients)
        for limit in (length, length * 1.001, None, math.inf):
            self.assertEqual(clip_factor(gradients, limit), (1, length))
        self.assertEqual(clip_factor([0.0, 0.0], 1.0), (1, 0.0))

    def test_it_is_exact_where_the_numbers_are(self):
        got = clip_factor([[Fraction(3)], [Fraction(4)]], Fraction(5, 2))
        self.assertEqual(got, (Fraction(1, 2), 5))

    def test_a_step_with_the_factor_is_one_on_gradients_multiplied_by_it(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                w, g = [[Fraction(1), Fraction(-2)]], [[Fraction(3, seed + 1), Fraction(5)]]
                rule = settings(eps=0, decay=Fraction(1, 8), beta1=self.HALF, beta2=self.HALF)
                rate, factor = Fraction(1, 4), Fraction(1, seed + 2)
                self.assertEqual(adamw(w, g, no_moments(w), rule, rate, factor),
                                 adamw(w, times(factor, g), no_moments(w), rule, rate))

    HALF = Fraction(1, 2)

    def test_what_is_not_finite_is_refused(self):
        for wrong in (math.nan, math.inf, -math.inf, 1e200):
            for limit in (1.0, None):
                with self.subTest(wrong=wrong, limit=limit):
                    with self.assertRaisesRegex(ValueError, "length is (nan|inf)"):
                        clip_factor([1.0, wrong], limit)


class ScheduleTest(unittest.TestCase):
    def test_up_in_a_line_and_down_along_a_squared_cosine(self):
        for seed in range(8):
            with self.subTest(seed=seed):
                g = Generator(seed)
                rule = settings(n_steps=2 + g.below(50), warm_up=g.below(20), rate=g.uniform())
                falling = max(1, rule.n_steps - rule.warm_up)
                for t in range(rule.n_steps + 5):
                    if t < rule.warm_up:
                        want = rule.rate / rule.warm_up * (t + 1)
                    else:       # (1 + cos 2a) / 2 = cos² a
                        want = rule.rate * math.cos(
                            math.pi / 2 * min(1, (t - rule.warm_up) / falling)) ** 2
                    self.assertAlmostEqual(rate_at(t, rule), want, delta=1e-15)

    def test_it_rises_then_falls_and_ends_at_0(self):
        for warm_up in (0, 1, 7, 39, 40, 90):
            rule = settings(n_steps=40, warm_up=warm_up, rate=0.5)
            rates = [rate_at(t, rule) for t in range(max(41, warm_up + 1))]
            top = rates.index(max(rates))
            self.assertEqual(max(rates), 0.5, f"warm_up {warm_up}")
            self.assertEqual(rates[:top + 1], sorted(rates[:top + 1]), f"warm_up {warm_up}")
            self.assertEqual(rates[top:], sorted(rates[top:], reverse=True), f"warm_up {warm_up}")
            self.assertGreater(min(rates[:40]), 0, f"warm_up {warm_up}")
        self.assertEqual(rate_at(40, settings(n_steps=40, warm_up=4)), 0)


class SettingsTest(unittest.TestCase):
    def test_what_cannot_be_is_refused_by_name(self):
        for name, values in (("n_steps", (0, -1, 1.0, True, "1", None)),
                             ("batch", (0, -2, 2.0, True)),
                             ("rate", (-1e-9, math.nan, math.inf)),
                             ("warm_up", (-1, math.nan)), ("eps", (-1.0, math.nan)),
                             ("decay", (-0.1, math.nan, math.inf)),
                             ("beta1", (1, -0.1, math.nan)), ("beta2", (1.0, 2, math.nan)),
                             ("clip", (-1.0, math.nan))):
            for value in values:
                with self.subTest(name=name, value=value):
                    with self.assertRaisesRegex(ValueError, f"settings: {name} is"):
                        settings(**{name: value})


# ---- a batch ----

def known_model():
    """A model of two tokens without blocks: token 0 is followed by token 0 with a loss of 4 nats,
    token 1 with one of 2."""
    def logit(loss):
        return math.log(math.exp(-loss) / (1 - math.exp(-loss)))

    config = model_config(1, 2, 4, 0, None, final_norm=None)
    return make_model(config, ModelWeights([[logit(4)], [logit(2)]], None, [], None,
                                           [[1.0], [0.0]], None))


class BatchTest(unittest.TestCase):
    def test_the_mean_is_over_targets_and_not_over_means(self):
        """4 nats at one target and 6 at three are 10 at four; the mean of the means is 3."""
        model = known_model()
        for batch in ([([0], [0]), ([1, 1, 1], [0, 0, 0])],
                      [([0, 1], [0, None]), ([1, 1, 0, 1], [0, 0, None, 0])]):
            loss, _ = batch_loss_and_gradients(model, batch)
            assert_close(self, loss, 2.5, "none", "loss of 4 + 6 nats")

    def test_what_does_not_count_is_not_in_the_divisor(self):
        """Equal logits cost log 2 a target; halved by a target that does not count, 0.347."""
        model = known_model()
        equal = model._replace(weights=model.weights._replace(w_embed=[[0.0], [0.0]]))
        # token 0's logit is the embedding, its slope what the model expected less what came
        for targets, want in (([None, 1], [[0], [0.5]]), ([1, None], [[0.5], [0]]),
                              ([1, 1], [[0.25], [0.25]]), ([0, 1], [[-0.25], [0.25]])):
            with self.subTest(targets=targets):
                loss, gradients = batch_loss_and_gradients(equal, [([0, 1], targets)])
                assert_close(self, loss, math.log(2), "none", "log 2")
                self.assertEqual(gradients.w_embed, want)

    def test_only_none_does_not_count(self):
        for wrong in (-100, -1, 2):
            with self.assertRaisesRegex(ValueError, f"the target at 1 is {wrong}"):
                batch_loss_and_gradients(known_model(), [([0, 1], [1, wrong])])

    def test_where_none_counts_there_is_nothing_to_average(self):
        model = known_model()
        for batch in ([], [([0], [None])], [([0, 1], [None, None]), ([1], [None])]):
            with self.subTest(batch=batch):
                with self.assertRaisesRegex(ValueError, "none of the targets"):
                    batch_loss_and_gradients(model, batch)

    def test_a_sequence_in_which_none_counts_adds_nothing(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                model, batch = small_model(seed), small_batch(seed, 3)
                nothing = ([1, 2], [None, None])
                want = batch_loss_and_gradients(model, batch)
                for more in ([nothing] + batch, [nothing] * 3 + batch, batch + [nothing]):
                    got = batch_loss_and_gradients(model, more)
                    assert_close(self, got[0], want[0], seed, "loss")
                    assert_close(self, got[1], want[1], seed, "gradients")

    def test_gradients_are_the_sum_of_every_sequences(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                model, batch = small_model(seed, tied=seed % 2 == 1), small_batch(seed)
                loss, gradients = batch_loss_and_gradients(model, batch)
                n, want_loss, want = n_counted(batch), 0, None
                for tokens, targets in batch:
                    of_one = n_counted([(tokens, targets)])
                    if of_one:
                        one_loss, one, _ = loss_and_gradients(model, tokens, targets)
                        want_loss += one_loss * of_one / n
                        one = walk(lambda a: a * of_one / n, one)
                        want = one if want is None else walk(lambda a, b: a + b, want, one)
                assert_close(self, loss, want_loss, seed, "loss")
                assert_close(self, gradients, want, seed, "gradients")

    def test_gradients_agree_with_differences(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                model, batch = small_model(seed, tied=seed % 2 == 1), small_batch(seed)
                _, gradients = batch_loss_and_gradients(model, batch)
                direction, ends, h = Draw(seed + 50).like(model.weights), [], 1e-5
                for move in (h, -h):
                    moved = walk(lambda a, d: a + move * d, model.weights, direction)
                    ends.append(batch_loss_and_gradients(model._replace(weights=moved), batch)[0])
                along, size = inner(gradients, direction)
                slope, tolerance = (ends[0] - ends[1]) / (2 * h), 1e-6 * size
                self.assertLessEqual(
                    abs(slope - along), tolerance,
                    f"seed {seed}: differences {slope!r}, gradients {along!r}, "
                    f"tolerance {tolerance:g}")


class Backwards:
    """An executor that takes the last task first."""

    def map(self, f, tasks):
        return reversed([f(task) for task in reversed(list(tasks))])


class ExecutorTest(unittest.TestCase):
    def test_the_same_bits_however_many_work(self):
        cases = []
        for n in (1, 2, 5, 8):
            model, batch = small_model(n), small_batch(n, n)
            cases.append((n, model, batch, repr(batch_loss_and_gradients(model, batch))))
        makers = [("in reverse", Backwards), ("3 threads", lambda: ThreadPoolExecutor(3))]
        makers += [(f"{k} processes", lambda k=k: ProcessPoolExecutor(k)) for k in (1, 2, 3)]
        for name, make in makers:
            executor = make()
            try:
                for n, model, batch, want in cases:
                    with self.subTest(executor=name, n=n):
                        got = batch_loss_and_gradients(model, batch, executor)
                        self.assertEqual(repr(got), want)
            finally:
                getattr(executor, "shutdown", lambda: None)()

    def test_steps_too(self):
        rule = settings(n_steps=3, batch=5, warm_up=0)
        alone = together = start(small_model(1), rule)
        with ProcessPoolExecutor(2) as executor:
            for _ in range(3):
                alone, report = step(alone, draw_from())
                together, its_report = step(together, draw_from(), executor)
                self.assertEqual(repr(its_report), repr(report))
        self.assertEqual(repr(together), repr(alone))


# ---- a step ----

class StepTest(unittest.TestCase):
    def test_it_is_what_its_parts_do(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                rule = settings(n_steps=9, batch=3, warm_up=2, clip=0.1, seed=seed)
                training = start(small_model(seed), rule)
                kept = copied(training.model.weights), copied(training.moments)
                after, report = step(training, draw_from())

                generator = Generator(seed)
                batch = draw_from()(generator, 3)
                loss, gradients = batch_loss_and_gradients(training.model, batch)
                factor, length = clip_factor(gradients, 0.1)
                weights, moments = adamw(training.model.weights, gradients, training.moments, rule,
                                         rate_at(0, rule), factor)
                self.assertEqual(report, (loss, length, rule.rate / 2, 15))
                self.assertGreater(length, 0.1, "the clip is to be seen")
                self.assertEqual(after.model.weights, weights)
                self.assertEqual(after.moments, moments)
                self.assertEqual(after.random_state, generator.state)
                self.assertEqual(after.settings, rule)
                self.assertEqual((copied(training.model.weights), copied(training.moments)), kept)

    def test_a_tied_table_is_stepped_once_by_both_its_gradients(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                tied = small_model(seed, tied=True)
                w = tied.weights
                twin = tied._replace(weights=w._replace(w_unembed=copied(w.w_embed)))
                batch = small_batch(seed)
                rule = settings(batch=5, rate=0.5, warm_up=0, eps=0.25, decay=0.5, clip=None)
                after, _ = step(start(tied, rule), lambda generator, n: batch)
                _, apart = batch_loss_and_gradients(twin, batch)
                want = walk(lambda a, read, written: walked(
                    a, [read + written], rule, [rule.rate], rule.decay),
                    w.w_embed, apart.w_embed, apart.w_unembed)
                assert_close(self, after.model.weights.w_embed, want, seed, "w_embed")
                self.assertIsNone(after.model.weights.w_unembed)

    def test_a_batch_that_counts_nothing_or_is_not_finite_is_refused(self):
        training = start(small_model(1), settings(batch=1))
        with self.assertRaisesRegex(ValueError, "none of the targets"):
            step(training, lambda generator, n: [([1], [None])])
        w = training.model.weights
        wrong = training.model._replace(weights=w._replace(b_unembed=[math.nan] * 5))
        with self.assertRaisesRegex(ValueError, "length is nan"):
            step(training._replace(model=wrong), lambda generator, n: [([1], [2])])

    def test_a_text_that_repeats_is_learned(self):
        text = "the cat sat on the mat. " * 16
        tokenizer = Characters(vocabulary_of(text))
        tokens = tokenizer.encode(text)
        train, held_out = tokens[:-30], tokens[-30:]
        block = block_config(16, attention_config(1, 8))
        config = model_config(8, len(tokenizer.tokens), 8, 1, block)
        model = make_model(config, random_weights(config, 1, 0.1, tied=False), "cat", tokenizer)
        training = start(model, settings(n_steps=40, batch=3, rate=0.03, warm_up=4, seed=1))
        while training.moments.step < 40:
            training, _ = step(training, text_batch(train, 8))
        before, after = [text_loss(m, held_out)[0] for m in (model, training.model)]
        unigram = unigram_loss(train, held_out[1:], config.d_vocab)
        self.assertGreater(before, unigram, "a new model knows nothing yet")
        self.assertLess(after, 0.5 * unigram)


# ---- what a text is scored by ----

def direct_losses(model, tokens, stride):
    """The loss of every token but the first, each from the first window, n_ctx long and then
    `stride` further each time, that holds it."""
    n, n_ctx, losses = len(tokens), model.config.n_ctx, []
    for t in range(1, n):
        end = min(n, n_ctx)
        while end <= t:
            end = min(n, end + stride)
        begin = max(0, end - n_ctx)
        logits = run(model, tokens[begin:end]).logits[t - 1 - begin]
        losses.append(math.log(sum(math.exp(a) for a in logits)) - logits[tokens[t]])
    return losses


class ScoringTest(unittest.TestCase):
    def test_twenty_tokens_by_ten_and_five(self):
        """Without care the overlaps are scored twice, or the first token without any context."""
        windows = scoring_windows(20, 10, 5)
        self.assertEqual([(begin, end) for begin, end, _ in windows], [(0, 10), (5, 15), (10, 20)])
        self.assertEqual([end - first for _, end, first in windows], [9, 5, 5])
        # sums of 18, 5 and 10 nats: the mean is of tokens, and the mean of the windows' is 5/3
        self.assertAlmostEqual((18 + 5 + 10) / 19, 1.736842105, delta=1e-9)

    def assertScoredOnce(self, n_tokens, window, stride):
        scored = []
        for begin, end, first in scoring_windows(n_tokens, window, stride):
            self.assertTrue(0 <= begin < end <= n_tokens and end - begin <= window)
            self.assertGreater(first, begin, "what nothing stands before has no score")
            scored += range(first, end)
        self.assertEqual(scored, list(range(1, n_tokens)))

    def test_every_token_but_the_first_exactly_once(self):
        for seed in range(60):
            g = Generator(seed)
            n_tokens, window = 1 + g.below(60), 2 + g.below(20)
            stride = 1 + g.below(window - 1)
            with self.subTest(seed=seed, n_tokens=n_tokens, window=window, stride=stride):
                self.assertScoredOnce(n_tokens, window, stride)

    def test_a_stride_that_leaves_a_token_without_context_is_refused(self):
        """With windows end to end the first token of each would be scored by nothing."""
        for window, stride in ((10, 10), (2, 2), (1, 1), (10, 11), (10, 0), (10, -1)):
            with self.subTest(window=window, stride=stride):
                with self.assertRaisesRegex(ValueError, "stride"):
                    scoring_windows(20, window, stride)

    def test_the_loss_of_a_text_is_a_direct_mean(self):
        for seed in range(6):
            g = Generator(seed)
            model = small_model(seed, n_ctx=4 + g.below(4))
            tokens = [g.below(5) for _ in range(2 + g.below(24))]
            stride = 1 + g.below(model.config.n_ctx - 1)
            with self.subTest(seed=seed, n_tokens=len(tokens), stride=stride):
                losses = direct_losses(model, tokens, stride)
                loss, n_scored = text_loss(model, tokens, stride)
                self.assertEqual(n_scored, len(tokens) - 1)
                assert_close(self, loss, sum(losses) / len(losses), seed, "loss")
                half = direct_losses(model, tokens, model.config.n_ctx // 2)
                assert_close(self, text_loss(model, tokens)[0], sum(half) / len(half), seed,
                             "loss with a stride of half the context")

    def test_a_stride_of_the_whole_context_is_no_quiet_mistake(self):
        model, tokens = small_model(1), [1, 2, 3, 4, 0] * 4
        with self.assertRaisesRegex(ValueError, "stride"):
            text_loss(model, tokens, model.config.n_ctx)

    def test_a_model_that_reads_one_token_scores_no_text(self):
        with self.assertRaisesRegex(ValueError, "context|stride|window"):
            text_loss(small_model(1, n_ctx=1), [1, 2, 3])

    def test_too_short_a_text_is_refused(self):
        for tokens in ([], [1]):
            with self.assertRaisesRegex(ValueError, "at least 2"):
                text_loss(small_model(1), tokens)


class UnigramTest(unittest.TestCase):
    def test_it_counts(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                g = Generator(seed)
                d_vocab = 2 + g.below(8)
                train = [g.below(d_vocab) for _ in range(g.below(50))]
                held_out = [g.below(d_vocab) for _ in range(1 + g.below(20))]
                counts = Counter(train)
                chances = [Fraction(counts[v] + 1, len(train) + d_vocab) for v in range(d_vocab)]
                self.assertEqual(sum(chances), 1)
                want = -sum(math.log(chances[v]) for v in held_out) / len(held_out)
                assert_close(self, unigram_loss(train, held_out, d_vocab), want, seed, "loss")


class TextBatchTest(unittest.TestCase):
    def test_windows_and_what_follows_them(self):
        for seed in range(5):
            with self.subTest(seed=seed):
                g = Generator(seed)
                n_ctx = 1 + g.below(6)
                tokens = list(range(100, 100 + n_ctx + 1 + g.below(5)))
                begins = Counter()
                for window, targets in text_batch(tokens, n_ctx)(g, 200):
                    begin = window[0] - 100
                    begins[begin] += 1
                    self.assertEqual(window, tokens[begin:begin + n_ctx])
                    self.assertEqual(targets, [token + 1 for token in window])
                self.assertEqual(sorted(begins), list(range(len(tokens) - n_ctx)),
                                 "every place is drawn, the first and the last too")

    def test_too_short_a_text_is_refused(self):
        with self.assertRaisesRegex(ValueError, "4 tokens, a context of 4 needs at least 5"):
            text_batch([1, 2, 3, 4], 4)


class EchoTest(unittest.TestCase):
    def test_a_target_counts_from_the_second_pass_on(self):
        for seed in range(150):
            g = Generator(seed)
            n_ctx = 13 + g.below(20)
            with self.subTest(seed=seed, n_ctx=n_ctx):
                tokens, targets = echo_sequence(g, n_ctx)
                self.assertEqual((len(tokens), len(targets), tokens[0]), (n_ctx, n_ctx, 0))
                letters = tokens[1:]
                length = letters[1:].index(letters[0]) + 1
                self.assertTrue(3 <= length <= 11, length)
                self.assertEqual(len(set(letters[:length])), length, "distinct letters")
                self.assertTrue(all(1 <= letter <= 26 for letter in letters))
                for t, target in enumerate(targets):
                    of_pass = (t - 1) // length + 1             # BOS stands in pass 0
                    counts = of_pass >= 2 and t + 1 < n_ctx
                    self.assertEqual(target, tokens[t + 1] if counts else None, f"at {t}")
                    if counts:      # and so what comes next has been seen before
                        self.assertEqual(target, tokens[t + 1 - length])

    def test_every_length_is_as_likely(self):
        g, lengths = Generator(5), Counter()
        for _ in range(1800):
            tokens, _ = echo_sequence(g, 13)
            lengths[tokens[2:].index(tokens[1]) + 1] += 1
        self.assertEqual(sorted(lengths), list(range(3, 12)))
        for length, n in lengths.items():       # 200 expected, with a deviation of 13
            self.assertTrue(130 < n < 270, f"length {length}, seed 5: {n} times of 1800")

    def test_a_batch_goes_on_where_the_generator_stands(self):
        a, b = Generator(9), Generator(9)
        self.assertEqual(echo_batch(14)(a, 4), [echo_sequence(b, 14) for _ in range(4)])
        self.assertEqual(a.state, b.state)
        self.assertEqual((len(ECHO_TOKENS), ECHO_TOKENS[1], ECHO_TOKENS[26]), (27, "a", "z"))


# ---- a run that stops and goes on ----

class ResumeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "run.resume")

    def through_a_file(self, training, about):
        save_training(training, self.path, about)
        return load_training(self.path)

    def test_a_round_trip_is_exact(self):
        extremes = [5e-324, -0.0, 1.7976931348623157e308, 0.1, 1 / 3, -2.0 ** -1074]
        for seed in range(3):
            with self.subTest(seed=seed):
                tokenizer = Characters(["<s>", "a", '"', "\n", "\u00e9"], bos=0)
                model = small_model(seed, tied=seed == 1, n_layers=2)
                model = model._replace(name='so "called"', tokenizer=tokenizer)
                draw, w = Draw(seed, size=1e-3), model.weights
                g = Generator(seed)
                odd = walk(lambda a: extremes[g.below(6)] if g.below(4) == 0 else a, w)
                training = start(model._replace(weights=odd), settings(seed=seed))._replace(
                    moments=Moments(2 ** 40 + seed, *[draw.like(no_moments(w).first)
                                                      for _ in range(2)]),
                    random_state=2 ** 64 - 1 - seed)
                about = {"task": "text", "recipe": {"width": 4, "rate": 0.1, "gated": None}}
                again, its_about = self.through_a_file(training, about)
                self.assertEqual(repr(without_tokenizer(again)), repr(without_tokenizer(training)))
                self.assertEqual(vars(again.model.tokenizer), vars(tokenizer))
                self.assertEqual(its_about, about)

    def test_three_steps_and_three_more_are_six(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                rule = settings(n_steps=6, batch=3, warm_up=2, seed=seed)
                whole = parts = start(small_model(seed, tied=seed == 1), rule)
                for t in range(6):
                    whole, report = step(whole, draw_from())
                    parts, its_report = step(parts, draw_from())
                    self.assertEqual(repr(its_report), repr(report))
                    if t in (2, 4):
                        parts, _ = self.through_a_file(parts, {})
                self.assertEqual(repr(parts), repr(whole))

    def test_the_same_run_is_the_same_file(self):
        training = start(small_model(1), settings())
        contents = []
        for _ in range(2):
            save_training(training, self.path, {"task": "text"})
            with open(self.path, "rb") as file:
                contents.append(file.read())
            training, _ = load_training(self.path)
        self.assertEqual(*contents)

    def test_what_does_not_fit_together_is_refused(self):
        save_training(start(small_model(1), settings()), self.path, {})
        stored = safetensors.read(self.path)
        whole = dict(stored.metadata), dict(stored)

        def put(key, value):
            return lambda metadata, tensors: metadata.__setitem__(key, value)

        def put_tensor(name, tensor):
            return lambda metadata, tensors: tensors.__setitem__(name, tensor)

        changes = [("no part of a training run", put_tensor("third.w_embed", [1.0])),
                   ("no part of a training run", put_tensor("w_embed", [1.0])),
                   ("no weight of this config", put_tensor("weights.w_ember", [1.0])),
                   ("w_embed has shape", put_tensor("weights.w_embed", [[1.0]])),
                   ("not as long as the weights", put_tensor("first.w_embed", [[1.0]])),
                   ("not as long as the weights", put_tensor("second.b_unembed", [1.0])),
                   ("not as long as the weights", lambda m, t: t.pop("second.w_pos")),
                   ("not as long as the weights", put_tensor("first.blocks.0.attn.q_gain", [1.0])),
                   ("format", put("format", "pyres/1 model")), ("n_steps", put("settings", "[0]")),
                   ("clip", put("settings", '[9,9,0.1,5,0.9,0.9,1e-8,0.01,"1",3]')),
                   ("settings", put("settings", "[]")), ("settings", put("settings", "[9,2]")),
                   ("", put("settings", "7")), ("", put("settings", "[" + "1," * 10 + "1]")),
                   ("step", put("step", "-1")), ("", put("step", "three")),
                   ("", put("random_state", "")), ("about", put("about", "[1"))]
        changes += [(key, lambda metadata, tensors, key=key: metadata.pop(key))
                    for key in ("format", "name", "config", "characters", "settings", "step",
                                "random_state", "about")]
        for i, (words, change) in enumerate(changes):
            with self.subTest(i=i, words=words):
                metadata, tensors = [dict(part) for part in whole]
                change(metadata, tensors)
                safetensors.write(self.path, tensors, metadata, dtype="F64")
                with self.assertRaisesRegex(ValueError, words):
                    load_training(self.path)

    def test_a_file_that_is_cut_or_bent_gives_a_training_or_a_valueerror(self):
        save_training(start(small_model(1), settings()), self.path, {})
        with open(self.path, "rb") as file:
            data = file.read()
        n_header = 8 + int.from_bytes(data[:8], "little")
        for seed in range(80):
            g, bent = Generator(seed), bytearray(data)
            if seed % 4 == 0:
                del bent[g.below(len(bent)):]
            else:
                bent[g.below(n_header)] = g.below(256)
            with open(self.path, "wb") as file:
                file.write(bent)
            with self.subTest(seed=seed):
                try:
                    load_training(self.path)
                except ValueError as error:
                    self.assertIn(self.path, str(error))


if __name__ == "__main__":
    unittest.main()
