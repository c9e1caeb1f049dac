"""Laws of pyres.study.counting: what a formula says is what a walk over the weights finds.

The closed forms ask a config alone, the walk asks the lists.  Beside them stand the counts of
published models, a run whose keys and values are counted, and faults that must not stay hidden.
"""
import re
import unittest

import pyres
from pyres.config import BlockConfig, attention_config, model_config, norm_config, norms_of
from pyres.rng import Generator
from pyres.study.counting import count_leaves, count_model, count_sizes, count_walk, walked_leaves
from pyres.weights import BlockWeights, ModelWeights, leaves, map_leaves, random_weights
from tests.laws import Draw, attention_weights, mlp_weights, norm_weights

PLACEMENTS = ("pre_norm", "parallel", "sandwich", "output_norm", "post_norm")
PLACES = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm")


class Dice:
    """Seeded choices."""

    def __init__(self, seed):
        self.generator = Generator(seed)

    def one_of(self, *choices):
        return choices[self.generator.below(len(choices))]

    def size(self, largest=4):
        return 1 + self.generator.below(largest)

    def yes(self):
        return self.one_of(True, False)


def random_block(dice, draw, d_model):
    """A BlockConfig and BlockWeights in which everything that may be absent is there or not."""
    placement = dice.one_of(*PLACEMENTS)
    norms = {place: dice.one_of(None, norm_config("layer"), norm_config("rms"))
             if place in norms_of(placement) else None for place in PLACES}
    n_kv_heads = dice.size(2)
    attention = attention_config(n_kv_heads * dice.size(3), dice.size(), n_kv_heads,
                                 window=dice.one_of(None, 2), qk_norm=norm_config("rms"))
    config = BlockConfig(placement, norms["attn_norm"], attention, norms["attn_post_norm"],
                         norms["mlp_norm"], dice.size(5), "relu", norms["mlp_post_norm"], None)

    def norm(place):
        return norm_weights(draw, d_model, norms[place])

    def multiplier():
        return dice.one_of(None, 0.5, draw.tensor(d_model))

    gains = dice.one_of(None, "head", "whole")
    attn = attention_weights(draw, d_model, attention, dice.yes(), gains)
    mlp = mlp_weights(draw, d_model, config.d_mlp, dice.yes(), dice.yes())
    return config, BlockWeights(norm("attn_norm"), attn, norm("attn_post_norm"), multiplier(),
                                norm("mlp_norm"), mlp, norm("mlp_post_norm"), multiplier())


def random_model(seed):
    """A ModelConfig and ModelWeights; the blocks are alike, or each is another."""
    dice, draw = Dice(seed), Draw(seed, int)
    d_model, d_vocab, n_ctx = dice.size(6), dice.size(7), dice.size(5)
    blocks = [random_block(dice, draw, d_model) for _ in range(dice.one_of(0, 1, 2, 3))]
    if dice.yes():
        blocks = [blocks[0] for _ in blocks]
    final_norm = dice.one_of(None, norm_config("layer"), norm_config("rms"))
    config = model_config(d_model, d_vocab, n_ctx, 0, None, final_norm=final_norm)
    config = config._replace(blocks=[block for block, _ in blocks])
    weights = ModelWeights(
        draw.tensor(d_vocab, d_model), dice.one_of(None, draw.tensor(n_ctx, d_model)),
        [w for _, w in blocks], norm_weights(draw, d_model, final_norm),
        dice.one_of(None, draw.tensor(d_vocab, d_model)), dice.one_of(None, draw.tensor(d_vocab)))
    return pyres.make_model(config, weights)


SEEDS = range(60)


class ClosedFormLaws(unittest.TestCase):
    def test_the_closed_form_is_the_walk(self):
        kinds = set()
        for seed in SEEDS:
            with self.subTest(seed=seed):
                model = random_model(seed)
                count = count_model(model.config, model.weights)
                self.assertEqual(count.total, count_walk(model.weights))
                self.assertEqual(count.total, sum([one.value for one in count.weights]))
                self.assertEqual(count.writers.value, len(pyres.model.writer_names(model.config)))
                kinds |= {re.sub(r"blocks\.\d+\.", "", leaf) for leaf, _ in leaves(model.weights)}
        self.assertEqual(len(kinds), 32, "some kind of weight was never drawn")

    def test_a_formula_gives_its_value(self):
        for seed in SEEDS:
            model = random_model(seed)
            count = count_model(model.config, model.weights)
            for one in [count.writers] + count.weights + count.multiply_adds + count.cache:
                with self.subTest(seed=seed, name=one.name):
                    numbers = one.formula.split(" = ")[-1]
                    self.assertEqual(eval(numbers.replace("·", "*")), one.value, one.formula)

    def test_every_weight_that_is_there_has_its_name_in_one_item(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                model = random_model(seed)
                names = [one.name for one in count_model(model.config, model.weights).weights]
                self.assertEqual(len(set(names)), len(names), names)
                words = {word.strip(",") for name in names for word in name.split()}
                for leaf, _ in leaves(model.weights):
                    kind = re.sub(r"blocks\.\d+\.", "", leaf)
                    self.assertLessEqual(set(kind.split(".")), words)

    def test_a_number_too_many_or_too_few_is_found_by_name(self):
        for seed in range(8):
            model = random_model(seed)
            for i, (leaf, tensor) in enumerate(leaves(model.weights)):
                if shape_is_open([leaf]):
                    continue
                for changed in (tensor + tensor[:1], tensor[:-1]):
                    weights = with_leaf(model.weights, i, changed)
                    message = re.escape(f"counting: {leaf} holds")
                    with self.subTest(seed=seed, leaf=leaf, length=len(changed)):
                        with self.assertRaisesRegex(ValueError, message):
                            count_model(model.config, weights)

    def test_leaves_that_share_a_tensor_are_counted_together(self):
        for seed in range(30):
            with self.subTest(seed=seed):
                model = random_model(seed)
                count = count_model(model.config, model.weights)
                walked = walked_leaves(model.weights)
                stacked = [((*names, *more), n + m) for (names, n), (more, m)
                           in zip(walked[::2], walked[1::2]) if not shape_is_open(names + more)]
                rest = [pair for pair in walked if not any(pair[0][0] in s[0] for s in stacked)]
                self.assertEqual(count_leaves(model.config, rest + stacked).total, count.total)
                if stacked:
                    names, n_numbers = stacked[0]
                    with self.assertRaisesRegex(ValueError, f"holds {n_numbers + 1} numbers"):
                        count_leaves(model.config, rest + stacked[1:] + [(names, n_numbers + 1)])

    def test_a_weight_without_a_closed_form_is_refused(self):
        config = random_model(0).config
        with self.assertRaisesRegex(ValueError, "no closed form for w_router"):
            count_leaves(config, [(("w_router",), 3)])

    def test_nothing_is_changed_and_nothing_kept(self):
        model = random_model(7)
        before = repr(model)
        first = count_model(model.config, model.weights)
        self.assertEqual(count_model(model.config, model.weights), first)
        self.assertEqual(repr(model), before)


def with_leaf(weights, i, tensor):
    """The weights with another tensor as the i-th leaf."""
    places = iter(range(len(leaves(weights))))
    return map_leaves(lambda t: tensor if next(places) == i else t, weights)


def shape_is_open(names):
    """Whether only a tensor that stands alone can tell which of two shapes it has."""
    return any(name.split(".")[-1] in ("q_gain", "k_gain", "attn_multiplier", "mlp_multiplier")
               for name in names)


class SizeLaws(unittest.TestCase):
    def test_sizes_give_the_items_of_a_model_of_these_sizes(self):
        for seed in range(60):
            with self.subTest(seed=seed):
                dice = Dice(seed)
                n_kv_heads, kind = dice.size(3), dice.one_of("layer", "rms")
                n_heads, d_head, d_model = n_kv_heads * dice.size(3), dice.size(), dice.size(9)
                n_layers, d_mlp, d_vocab, n_ctx = [dice.size() for _ in range(4)]
                gated, tied, biases = dice.yes(), dice.yes(), kind == "layer" or dice.yes()
                config = model_config(
                    d_model, d_vocab, n_ctx, n_layers, final_norm=norm_config(kind),
                    block=pyres.block_config(d_mlp, attention_config(n_heads, d_head, n_kv_heads),
                                             norm=norm_config(kind)))
                weights = random_weights(config, seed, biases=biases, gated=gated, tied=tied)
                want = count_model(config, weights)
                got = count_sizes(n_layers, d_model, d_mlp, n_heads, n_kv_heads, d_head, gated,
                                  biases, kind, d_vocab, n_ctx, tied)
                self.assertEqual(got, want)

    def test_what_is_not_asked_for_is_not_counted(self):
        self.assertEqual(count_sizes(n_layers=3).weights, [])
        self.assertEqual(count_sizes(d_model=4, d_mlp=8).total, 64)
        self.assertEqual(count_sizes(d_model=4, n_heads=4).total, 64)
        self.assertEqual(count_sizes(d_model=4, d_vocab=10, tied=True).total, 40)
        self.assertEqual(count_sizes(d_model=4, n_positions=10).total, 40)
        self.assertEqual(count_sizes(d_model=4, d_mlp=8, norm="rms").total, 68)
        self.assertEqual(count_sizes(n_layers=0).writers.value, 1)

    def test_sizes_that_cannot_be(self):
        for sizes, message in (
                (dict(d_model=0), "d_model is 0, expected a whole number of at least 1"),
                (dict(d_model=4.0), "d_model is 4.0, expected"),
                (dict(d_model=True), "d_model is True, expected"),
                (dict(n_layers=-1), "n_layers is -1, expected"),
                (dict(d_model=4, n_heads=0), "n_heads is 0, expected"),
                (dict(d_mlp=8), "d_mlp is given without d_model"),
                (dict(n_heads=2), "n_heads is given without d_model"),
                (dict(d_model=4, d_head=2), "d_head is given without n_heads"),
                (dict(d_model=4, n_heads=3), "3 heads do not divide d_model 4; give d_head"),
                (dict(d_model=4, n_heads=4, n_kv_heads=3), "4 query heads cannot share 3"),
                (dict(d_model=4, d_mlp=4, norm="batch"), "no norm 'batch'")):
            with self.subTest(sizes=sizes):
                with self.assertRaisesRegex(ValueError, message):
                    count_sizes(**sizes)


class PublishedCounts(unittest.TestCase):
    """What the makers of these models, and a lesson, count."""

    def test_one_block(self):
        self.assertEqual(count_sizes(d_model=4, d_mlp=8, n_heads=4).total, 128)
        self.assertEqual(count_sizes(d_model=4, d_mlp=8, n_heads=4, gated=True).total, 160)
        self.assertEqual(count_sizes(d_model=4, d_mlp=8, n_heads=4, n_kv_heads=2).total, 112)

    def test_queries_keys_and_values_do_not_depend_on_the_number_of_heads(self):
        for n_heads in (1, 2, 4):
            items = count_sizes(d_model=4, n_heads=n_heads).weights
            self.assertEqual([one.value for one in items if one.name != "attn w_o"], [16, 32])

    def test_writers(self):
        self.assertEqual(count_sizes(n_layers=32).writers.value, 65)

    def test_gpt2_small(self):
        sizes = dict(n_layers=12, d_model=768, d_mlp=3072, n_heads=12, bias=True, norm="layer",
                     d_vocab=50257, tied=True)
        self.assertEqual(count_sizes(n_positions=1024, **sizes).total, 124439808)
        self.assertEqual(count_sizes(**sizes).total, 123653376)

    def test_llama2c_stories(self):
        for n_layers, d_model, d_mlp, n_heads, total in (
                (6, 288, 768, 6, 15191712), (8, 512, 1376, 8, 41689600),
                (12, 768, 2048, 12, 109529856)):
            with self.subTest(d_model=d_model):
                count = count_sizes(n_layers, d_model, d_mlp, n_heads, gated=True, norm="rms",
                                    d_vocab=32000, tied=True)
                self.assertEqual(count.total, total)

    def test_llama_with_a_head_width_of_its_own(self):
        # Mistral NeMo: 32 heads of 128 channels in a stream of 5120; its card says 12.2 billion
        count = count_sizes(40, 5120, 14336, 32, 8, 128, gated=True, norm="rms", d_vocab=131072)
        attention = 2 * 5120 * 32 * 128 + 2 * 5120 * 8 * 128
        self.assertEqual(count.total, 40 * (attention + 3 * 5120 * 14336 + 2 * 5120)
                         + 2 * 131072 * 5120 + 5120)
        self.assertEqual(count.total, 12247782400)


class WorkLaws(unittest.TestCase):
    def test_every_weight_of_a_matrix_works_once(self):
        for seed in range(60):
            with self.subTest(seed=seed):
                model = random_model(seed)
                config, w = model.config, model.weights
                matrices = [t for leaf, t in leaves(w) if ".w_" in leaf]
                matrices.append(w.w_unembed or w.w_embed)
                seen = sum([2 * block.attention.n_heads * block.attention.d_head
                            * min(config.n_ctx, block.attention.window or config.n_ctx)
                            for block in config.blocks])
                total = count_model(config, w).multiply_adds[-1]
                self.assertEqual(total.name, "total")
                self.assertEqual(total.value, sum([len(t) * len(t[0]) for t in matrices]) + seen)

    def test_a_cache_keeps_the_keys_and_values_of_a_run(self):
        config = model_config(6, 9, 8, 2, pyres.block_config(5, attention_config(4, 3, 2)))
        model = pyres.make_model(config, random_weights(config, std=1.0))
        for n in range(1, 9):
            with self.subTest(n=n):
                r = pyres.run(model, [n % 9] * n)
                kept = sum([count_walk(tensor) for block in r.steps.blocks
                            for tensor in (block.attn.k, block.attn.v)])
                cache = count_model(config, model.weights, n_seen=n).cache
                self.assertEqual([one.value for one in cache], [kept, 2 * kept, 32 * kept])

    def test_shared_heads_divide_the_cache(self):
        for n_kv_heads, numbers in ((8, 640), (4, 320), (1, 80)):
            count = count_sizes(2, 16, n_heads=8, n_kv_heads=n_kv_heads, n_positions=10)
            self.assertEqual(count.cache[0].value, numbers)

    def test_a_window_bounds_what_is_seen(self):
        config = model_config(4, 9, 64, 1, pyres.block_config(8, attention_config(2, 2, window=5)))
        w = random_weights(config)
        seen = {n: count_model(config, w, n_seen=n).multiply_adds[-2] for n in (4, 5, 6, 64)}
        self.assertEqual([one.value for one in seen.values()], [32, 40, 40, 40])
        self.assertEqual(seen[64].formula, "2·H·h·w = 2·2·2·5")
        self.assertEqual(seen[5].formula, "2·H·h·n = 2·2·2·5")

    def test_the_sizes_are_those_that_formulas_name(self):
        for seed in SEEDS:
            with self.subTest(seed=seed):
                model = random_model(seed)
                count = count_model(model.config, model.weights)
                letters = [letter for letter, _ in count.sizes]
                self.assertEqual("T" in letters, model.weights.w_pos is not None)
                used = set("".join([one.formula for one in count.weights])) & set("dfHKhLVT")
                if len(set(model.config.blocks)) == 1:
                    self.assertEqual(used - set(letters), set())


if __name__ == "__main__":
    unittest.main()
