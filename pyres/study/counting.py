"""What a model holds and does, counted: weights, writers, multiply-adds, cache.

Every count is an item: what is counted, the formula with its numbers written out, the value.

    d d_model    f d_mlp    H n_heads    K n_kv_heads    h d_head    L n_layers    V d_vocab
    T n_ctx, the rows of a position table    n tokens that a token sees, itself among them

    attention        d·H·h + 2·d·K·h + H·h·d       which is 4·d·d where K = H and h = d/H
    MLP              2·d·f, gated 3·d·f
    biases           H·h + 2·K·h + d, and f + d, gated 2·f + d
    norm             LayerNorm 2·d, RMSNorm d
    tables           V·d, positions T·d, an unembedding of its own V·d (a tied one counts once)
    writers          1 + 2·L
    multiply-adds    each weight of a matrix once (unembedding yes, look-up no), 2·H·h·n a block
    cache            2·L·K·h·n numbers

The closed form asks a config for sizes, and the walk asks the weights how many numbers they hold.
A count of a model compares the two, tensor by tensor, and raises where they differ.  What a
backward pass has to keep is not counted.  This module is part of the portable core.

    Item, item                  one count
    count_walk, walked_leaves   the walk
    Block, rows, over_blocks    what a block holds, and the same in every block
    Count                       all counts of a model
    count_sizes, count_leaves, count_model    from sizes; from a config and what is there

>>> count = count_sizes(d_model=4, d_mlp=8, n_heads=4)
>>> for name, formula, value in count.weights:
...     print(f"{name:<17}{formula:<21}{value:>3}")
attn w_q         d·H·h = 4·4·1         16
attn w_k, w_v    2·d·K·h = 2·4·4·1     32
attn w_o         H·h·d = 4·1·4         16
mlp w_up, w_down 2·d·f = 2·4·8         64
>>> count.total, count_sizes(n_layers=32).writers.value
(128, 65)
"""
from collections import namedtuple

from ..config import attention_config, check_size, norm_config
from ..weights import leaves

__all__ = ["Item", "item", "size_of", "count_walk", "walked_leaves", "Count", "count_sizes",
           "count_leaves", "count_model"]


# ---- one count ----

class Item(namedtuple("Item", ("name", "formula", "value"))):
    """One count: name, a str; formula, in letters and in numbers; value, an int."""


def item(name, formula, sizes):
    """The Item of a formula, a sum of products of letters; sizes is a dict from letter to number.

    >>> item("writers", "1 + 2·L", {"L": 32})
    Item(name='writers', formula='1 + 2·L = 1 + 2·32', value=65)
    """
    terms = [[sizes.get(factor, factor) for factor in term.split("·")]
             for term in formula.split(" + ")]
    written = " + ".join(["·".join([str(factor) for factor in term]) for term in terms])
    value = sum([size_of([int(factor) for factor in term]) for term in terms])
    return Item(name, formula if written == formula else f"{formula} = {written}", value)


def size_of(shape):
    """How many numbers a tensor of this shape holds.

    >>> size_of((2, 3, 4)), size_of(())
    (24, 1)
    """
    size = 1
    for length in shape:
        size *= length
    return size


# ---- the walk ----

def count_walk(weights):
    """How many numbers the tensors of a record of weights hold, each counted where it stands.

    >>> from pyres.weights import NormWeights
    >>> count_walk(NormWeights([1, 1, 1], [0, 0, 0]))
    6
    """
    return sum([n_numbers for _, n_numbers in walked_leaves(weights)])


def walked_leaves(weights):
    """What a walk over the weights meets, as pairs (a tuple of leaf names, how many numbers).

    In a file one tensor may hold several leaves; here each stands alone.

    >>> from pyres.weights import NormWeights
    >>> walked_leaves(NormWeights([1, 1, 1], None))
    [(('gain',), 3)]
    """
    return [((name,), count_numbers(tensor)) for name, tensor in leaves(weights)]


def count_numbers(tensor):
    """How many numbers stand in a nested list.

    >>> count_numbers([[1, 2], [3, 4], [5, 6]]), count_numbers(0.5)
    (6, 1)
    """
    if not isinstance(tensor, (list, tuple)):
        return 1
    if tensor and not isinstance(tensor[0], (list, tuple)):
        return len(tensor)
    return sum([count_numbers(part) for part in tensor])


# ---- a block ----

# The letters of every weight's sizes.  Of two the walk says which: a gain on queries is one head's
# or all heads', a multiplier is a number or a vector.  Leaves that stand together and have the
# same letters make one item, which is why w_q and w_o name theirs in different order.
LETTERS = {
    "w_embed": ("V·d",), "w_pos": ("T·d",), "w_unembed": ("V·d",), "b_unembed": ("V",),
    "attn.w_q": ("d·H·h",), "attn.w_k": ("d·K·h",), "attn.w_v": ("d·K·h",),
    "attn.w_o": ("H·h·d",),
    "attn.b_q": ("H·h",), "attn.b_k": ("K·h",), "attn.b_v": ("K·h",), "attn.b_o": ("d",),
    "attn.q_gain": ("h", "H·h"), "attn.k_gain": ("h", "K·h"),
    "mlp.w_gate": ("d·f",), "mlp.w_up": ("d·f",), "mlp.w_down": ("d·f",),
    "mlp.b_gate": ("f",), "mlp.b_up": ("f",), "mlp.b_down": ("d",),
    "attn_multiplier": ("1", "d"), "mlp_multiplier": ("1", "d"),
}
TABLES = ("w_embed", "w_pos")                   # they stand before the blocks
NORMS = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "final_norm")


class Block(namedtuple("Block", ("sizes", "parts", "times"))):
    """Blocks that are alike: sizes, a dict from letter to number; parts, pairs (leaf name,
    letters); times, how many blocks.
    """


def letters_of(leaf, sizes, n_numbers=None):
    """The letters of a leaf's sizes; where two shapes fit, those that make n_numbers.

    >>> letters_of("attn.q_gain", {"H": 2, "h": 3}, 6), letters_of("final_norm.gain", {})
    ('H·h', 'd')
    """
    record, _, field = leaf.rpartition(".")
    if record in NORMS and field in ("gain", "bias"):
        return "d"
    if leaf not in LETTERS:
        raise ValueError(f"counting: there is no closed form for {leaf}")
    for letters in LETTERS[leaf]:
        if n_numbers is not None and item(leaf, letters, sizes).value == n_numbers:
            return letters
    return LETTERS[leaf][0]


def rows(parts):
    """Parts as pairs (name, formula); neighbours of one record with the same letters share a row.

    >>> rows([("attn.w_k", "d·K·h"), ("attn.w_v", "d·K·h"), ("attn.w_o", "H·h·d")])
    [('attn w_k, w_v', '2·d·K·h'), ('attn w_o', 'H·h·d')]
    """
    groups = []
    for leaf, letters in parts:
        record, _, field = leaf.rpartition(".")
        if record and groups and groups[-1][:2] == (record, letters):
            groups[-1][2].append(field)
        else:
            groups.append((record, letters, [field]))
    return [((record + " " if record else "") + ", ".join(fields),
             letters if len(fields) == 1 else f"{len(fields)}·{letters}")
            for record, letters, fields in groups]


def over_blocks(blocks, rows_of):
    """Items of what rows_of(block), pairs (name, formula), makes over all blocks: once for each
    formula that comes out alike, times the number of blocks, L where it is all of them.

    >>> same = Block({"d": 2, "L": 5}, [("attn_norm.gain", "d")], times=5)
    >>> over_blocks([same], lambda block: rows(block.parts))
    [Item(name='attn_norm gain', formula='L·d = 5·2', value=10)]
    """
    found, i = [], 0                            # [item in one block, formula, sizes, first, times]
    for block in blocks:
        for name, formula in rows_of(block):
            once = item(name, formula, block.sizes)
            alike = [entry for entry in found if entry[0] == once]
            if alike:
                alike[0][-1] += block.times
            else:
                found.append([once, formula, block.sizes, i, block.times])
        i += block.times
    return [times_item(*entry) for entry in found]


def times_item(once, formula, sizes, first, times):
    """The Item of a formula that holds in so many of L blocks, beginning with block `first`.

    >>> sizes = {"d": 2, "L": 5}
    >>> times_item(item("attn_norm gain", "d", sizes), "d", sizes, 1, 3)
    Item(name='attn_norm gain in L1 and 2 more', formula='3·d = 3·2', value=6)
    """
    if times == sizes["L"]:
        name, factors = once.name, ["L"]
    else:
        more = f" and {times - 1} more" if times > 1 else ""
        name, factors = f"{once.name} in L{first}{more}", [str(times)]
    factors = [] if times == 1 else factors
    return item(name, "·".join(factors + [formula]), sizes)


# ---- all counts ----

class Count(namedtuple("Count", ("sizes", "writers", "weights", "total", "n_seen", "multiply_adds",
                                 "cache"))):
    """What was counted.

    sizes            pairs (letter, number): the sizes that are known, and the same in all blocks
    writers          Item
    weights          Items
    total            the sum of the weights
    n_seen           how many tokens a token sees, n
    multiply_adds    Items for one such token, the last their total; [] without a matrix
    cache            Items: the numbers kept of n tokens, and their bytes; [] without attention
    """


def all_counts(outside, blocks):
    """The Count of what stands outside the blocks, a Block of its own, and of the blocks."""
    sizes = outside.sizes

    def items(parts):
        return [item(name, formula, sizes) for name, formula in rows(parts)]

    before = items([part for part in outside.parts if part[0] in TABLES])
    after = items([part for part in outside.parts if part[0] not in TABLES])
    weights = before + over_blocks(blocks, lambda block: rows(block.parts)) + after
    known = [(letter, common_size(letter, sizes, blocks)) for letter in "dfHKhLVT"]
    return Count([pair for pair in known if pair[1] is not None],
                 item("writers", "1 + 2·L", sizes), weights, sum([one.value for one in weights]),
                 sizes["n"], multiply_adds(sizes, blocks), cache(blocks))


def common_size(letter, sizes, blocks):
    """The number that a letter stands for, if it is known and the same in all blocks."""
    if letter in sizes:
        return sizes[letter]
    found = set([block.sizes.get(letter) for block in blocks])
    return found.pop() if len(found) == 1 else None


def multiply_adds(sizes, blocks):
    """Items of the multiply-adds for one token that sees n, the last their total."""
    def matrices(block):
        return rows([part for part in block.parts if ".w_" in part[0]])

    once = over_blocks(blocks, matrices)
    counted = [added("matrices of the blocks", once)] if once else []
    counted += [item("unembedding", "V·d", sizes)] if "V" in sizes else []
    counted += over_blocks(blocks, lambda block: seen_rows(block, "scores and mixing", "2·H·h"))
    return counted + [added("total", counted)] if counted else []


def cache(blocks):
    """Items of what a cache keeps of n tokens: keys and values, and their bytes."""
    counted = over_blocks(blocks, lambda block: seen_rows(block, "keys and values", "2·K·h"))
    if not counted:
        return []
    numbers = {"numbers": sum([one.value for one in counted])}
    return counted + [item("bytes as float16", "2·numbers", numbers),
                      item("bytes as Python lists", "32·numbers", numbers)]


def seen_rows(block, name, formula):
    """The row of something that grows with the tokens that a block's attention sees: n, or its
    window w where that is smaller."""
    if "H" not in block.sizes:
        return []
    return [(name, formula + ("·w" if "w" in block.sizes else "·n"))]


def added(name, items):
    """The Item of a sum of Items.

    >>> added("total", [Item("a", "", 3), Item("b", "", 4)])
    Item(name='total', formula='3 + 4', value=7)
    """
    return Item(name, " + ".join([str(one.value) for one in items]),
                sum([one.value for one in items]))


# ---- from sizes ----

def count_sizes(n_layers=1, d_model=None, d_mlp=None, n_heads=None, n_kv_heads=None, d_head=None,
                gated=False, bias=False, norm=None, d_vocab=None, n_positions=None, tied=False):
    """The Count of n_layers equal blocks; what is not asked for is not counted.

    d_mlp asks for an MLP (gated or plain), n_heads for attention, bias for biases on both, norm
    ("layer" or "rms") for a norm before each of them and before the unembedding, d_vocab for the
    token table and an unembedding (one table if tied), n_positions for a position table.  Unless
    given, n_kv_heads is n_heads and d_head is d_model / n_heads.  A token sees n_positions tokens,
    or itself alone.

    >>> count_sizes(d_model=4, d_mlp=8, n_heads=4, n_kv_heads=2).total
    112
    >>> gpt2 = count_sizes(n_layers=12, d_model=768, d_mlp=3072, n_heads=12, bias=True,
    ...                    norm="layer", d_vocab=50257, n_positions=1024, tied=True)
    >>> gpt2.total, gpt2.weights[0]
    (124439808, Item(name='w_embed', formula='V·d = 50257·768', value=38597376))

    ValueError for a size that is no whole number of at least 1, that does not divide, or that is
    given without what it belongs to.
    """
    sizes = known_sizes(n_layers, n_positions, [
        ("d_model", "d", d_model), ("d_mlp", "f", d_mlp), ("d_vocab", "V", d_vocab),
        ("n_positions", "T", n_positions)])
    if n_heads is not None:
        sizes.update(attention_sizes(d_model, n_heads, n_kv_heads, d_head))
    for what, size in (("n_kv_heads", n_kv_heads), ("d_head", d_head)):
        if size is not None:
            needs("count_sizes", what, "n_heads", n_heads)
    gains = () if norm is None else norm_fields(norm)

    def with_letters(names):
        return [(leaf, letters_of(leaf, sizes)) for leaf in names]

    outside = with_letters([leaf for leaf, letter in zip(TABLES, "VT") if letter in sizes])
    if "V" in sizes:
        outside += with_letters([f"final_norm.{field}" for field in gains]
                                + ([] if tied else ["w_unembed"]))
    parts = with_letters(sublayer_leaves(sizes, gated, bias, gains))
    blocks = [Block(sizes, parts, n_layers)] if n_layers else []
    return all_counts(Block(sizes, outside, 1), blocks)


def known_sizes(n_layers, n_positions, given):
    """The letters of what was given, triples (name, letter, size); ValueError where one is no
    size, or is there without the first, d_model.
    """
    if n_layers != 0:
        check_size("count_sizes", "n_layers", n_layers)
    sizes = {"L": n_layers, "n": 1 if n_positions is None else n_positions}
    d_model = given[0][2]
    for what, letter, size in given:
        if size is not None:
            check_size("count_sizes", what, size)
            needs("count_sizes", what, "d_model", d_model)
            sizes[letter] = size
    return sizes


def needs(name, what, other, value):
    """Raise ValueError where something was given without what it belongs to.

    >>> needs("count_sizes", "d_mlp", "d_model", None)
    Traceback (most recent call last):
    ValueError: count_sizes: d_mlp is given without d_model
    """
    if value is None:
        raise ValueError(f"{name}: {what} is given without {other}")


def attention_sizes(d_model, n_heads, n_kv_heads, d_head):
    """The letters H, K, h of an attention; ValueError where heads do not fit.

    >>> attention_sizes(5, 2, None, None)
    Traceback (most recent call last):
    ValueError: count_sizes: 2 heads do not divide d_model 5; give d_head
    """
    needs("count_sizes", "n_heads", "d_model", d_model)
    check_size("count_sizes", "n_heads", n_heads)
    if d_head is None and d_model % n_heads:
        raise ValueError(f"count_sizes: {n_heads} heads do not divide d_model {d_model}; "
                         "give d_head")
    d_head = d_model // n_heads if d_head is None else d_head
    attention = attention_config(n_heads, d_head, n_kv_heads)
    return {"H": n_heads, "K": attention.n_kv_heads, "h": attention.d_head}


def norm_fields(kind):
    """The fields of a norm of this kind.

    >>> norm_fields("layer"), norm_fields("rms")
    (('gain', 'bias'), ('gain',))
    """
    return ("gain", "bias") if norm_config(kind).kind == "layer" else ("gain",)


def sublayer_leaves(sizes, gated, bias, gains):
    """The names of a block's leaves, for the sublayers whose sizes are there."""
    names = []
    if "H" in sizes:
        fields = ["w_q", "w_k", "w_v", "w_o"] + (["b_q", "b_k", "b_v", "b_o"] if bias else [])
        names += [f"attn_norm.{gain}" for gain in gains] + [f"attn.{field}" for field in fields]
    if "f" in sizes:
        fields = (["w_gate"] if gated else []) + ["w_up", "w_down"]
        fields += (["b_gate"] if gated and bias else []) + (["b_up", "b_down"] if bias else [])
        names += [f"mlp_norm.{gain}" for gain in gains] + [f"mlp.{field}" for field in fields]
    return names


# ---- from a model ----

def count_model(config, weights, n_seen=None):
    """The Count of a model's weights, for a token that sees n_seen tokens (n_ctx unless given).

    Which weights there are is read off the records, how large they are off the config alone.  Then
    every tensor is walked: ValueError where one holds more or fewer numbers than its closed form.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> from pyres.weights import random_weights
    >>> config = model_config(4, 10, 16, 3, block_config(8, attention_config(n_heads=2, d_head=2)))
    >>> w = random_weights(config)
    >>> count = count_model(config, w)
    >>> count.total, count_walk(w)
    (628, 628)
    >>> count.weights[2]
    Item(name='attn_norm gain, bias', formula='L·2·d = 3·2·4', value=24)
    >>> count_model(config._replace(n_ctx=17), w)
    Traceback (most recent call last):
    ValueError: counting: w_pos holds 64 numbers, the closed form T·d = 17·4 is 68
    """
    return count_leaves(config, walked_leaves(weights), n_seen)


def count_leaves(config, walked, n_seen=None):
    """As count_model, from pairs (leaf names, how many numbers they hold together), so that a
    checkpoint's header is enough and no weight needs to be read.

    >>> from pyres.config import model_config
    >>> config = model_config(4, 10, 16, 0, None)
    >>> walked = [(("w_embed",), 40), (("final_norm.gain", "final_norm.bias"), 8)]
    >>> count_leaves(config, walked).total
    48
    """
    present = [name for names, _ in walked for name in names]
    sizes = {"d": config.d_model, "V": config.d_vocab, "L": len(config.blocks),
             "n": config.n_ctx if n_seen is None else n_seen}
    check_size("counting", "n_seen", sizes["n"])
    if "w_pos" in present:
        sizes["T"] = config.n_ctx
    outside = Block(sizes, [], 1)
    blocks = [Block(block_sizes(sizes, block), [], 1) for block in config.blocks]
    for names, n_numbers in walked:
        closed = []
        for name in names:
            block, leaf = owner(name, outside, blocks)
            letters = letters_of(leaf, block.sizes, n_numbers if len(names) == 1 else None)
            block.parts.append((leaf, letters))
            closed.append(item(leaf, letters, block.sizes))
        check_closed(names, n_numbers, closed)
    count = all_counts(outside, blocks)
    in_all = sum([n_numbers for _, n_numbers in walked])
    if count.total != in_all:
        raise ValueError(f"counting: the closed form is {count.total}, the walk {in_all}")
    return count


def block_sizes(sizes, block):
    """The letters of one block, by its config; w is a window smaller than n."""
    attention = block.attention
    own = {"d": sizes["d"], "L": sizes["L"], "n": sizes["n"], "f": block.d_mlp,
           "H": attention.n_heads, "K": attention.n_kv_heads, "h": attention.d_head}
    if attention.window is not None and attention.window < sizes["n"]:
        own["w"] = attention.window
    return own


def owner(name, outside, blocks):
    """The Block that a leaf belongs to, and the leaf's name there."""
    if not name.startswith("blocks."):
        return outside, name
    _, i, leaf = name.split(".", 2)
    return blocks[int(i)], leaf


def check_closed(names, n_numbers, closed):
    """Raise ValueError unless the closed forms of these leaves sum to what the walk found.

    >>> check_closed(("attn.w_q",), 15, [item("attn.w_q", "d·H·h", {"d": 4, "H": 2, "h": 2})])
    Traceback (most recent call last):
    ValueError: counting: attn.w_q holds 15 numbers, the closed form d·H·h = 4·2·2 is 16
    """
    value = sum([one.value for one in closed])
    if value != n_numbers:
        formulas = " and ".join([one.formula for one in closed])
        raise ValueError(f"counting: {', '.join(names)} holds {n_numbers} numbers, the closed "
                         f"form {formulas} is {value}")
