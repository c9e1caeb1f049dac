"""Weights as maps: what a head compares, what it carries, and which head reads which.

A head uses its four matrices in two products only, both [d_model][d_model] with outputs as rows:

    QK = w_qᵀ w_k       score = x_tᵀ QK x_s, before the multiplier and without biases
    OV = w_o w_v        what the head writes for a token that it takes whole: OV x_s

x_t and x_s are what the head reads, after the norm.  With rotary positions QK = w_qᵀ R w_k depends
on how far apart the two tokens stand.  Each product is of rank d_head at most, and leaves its two
factors free up to an invertible [d_head][d_head] matrix, so no single factor means anything.
(Rotary positions or norms between w_q and w_k take some of QK's freedom away.)

A head that reads what an earlier one wrote composes with it.  With OV_A of the earlier head A:

    query   |QK_Bᵀ OV_A| / (|QK_B| |OV_A|)
    key     |QK_B  OV_A| / (|QK_B| |OV_A|)
    value   |OV_B  OV_A| / (|OV_B| |OV_A|)          |.| is the root of the sum of squares

Random matrices do not score 0, so a score is reported less what random factors of the same shapes
score.  Everything takes the weights that it is given: fold the norms' gains first (see `surgery`)
if they are meant.  After Elhage et al., "A mathematical framework for transformer circuits", 2021.
This module is part of the portable core.

    Map, matrix_of, map_norm    a product of two factors
    qk_map, ov_map              the two of a head
    inverse, change_gauge       other factors of the same maps
    composition_score           of two Maps
    random_score                the mean over random ones
    Composition, compositions   every earlier head with every later one

>>> from pyres.config import attention_config
>>> from pyres.weights import AttentionWeights
>>> config = attention_config(n_heads=1, d_head=1)
>>> w = AttentionWeights([[1, 2]], [[3, 4]], [[5, 6]], [[7], [8]], *[None] * 6)
>>> matrix_of(qk_map(w, config, 0)), matrix_of(ov_map(w, config, 0))
([[3, 4], [6, 8]], [[35, 42], [40, 48]])
"""
from collections import namedtuple

from ..linalg import copied, linear, matmul, matvec, multiply, shape_text, transpose
from ..readout import part_weights
from ..rng import Generator, normal_tensor
from ..rotary import angles, rotate
from ..scalar import sqrt
from ..weights import AttentionWeights, map_leaves

__all__ = ["Map", "matrix_of", "map_norm", "qk_map", "ov_map", "inverse", "change_gauge",
           "composition_score", "random_score", "Composition", "compositions"]


# ---- maps ----

class Map(namedtuple("Map", ("left", "right"))):
    """The matrix left right [d_out][d_in], as its factors: left [d_out][d_head], right
    [d_head][d_in].  They are smaller, and all that is asked of the matrix can be had from them."""


def matrix_of(of):
    """A Map's matrix [d_out][d_in].

    >>> matrix_of(Map([[1], [2]], [[3, 4]]))
    [[3, 4], [6, 8]]
    """
    return matmul(of.left, of.right)


def transposed(of):
    """The Map of the transposed matrix."""
    return Map(transpose(of.right), transpose(of.left))


class Measured(namedtuple("Measured", ("map", "lefts", "rights"))):
    """A Map with the inner products of its left factor's columns and of its right factor's rows,
    [d_head][d_head] each."""


def measured(of):
    """A Map as Measured.

    >>> measured(Map([[1, 0], [2, 1]], [[3, 4], [0, 1]]))[1:]
    ([[5, 2], [2, 1]], [[25, 4], [4, 1]])
    """
    columns = transpose(of.left)
    return Measured(of, linear(columns, columns), linear(of.right, of.right))


def _root_of_sum(a, b):
    """The root of the sum of the products of two matrices' entries, where that is a sum of
    squares; rounding can leave one that is 0 just below it."""
    total = sum([sum(row) for row in multiply(a, b)])
    return sqrt(total - total if total < 0 else total)


def _norm(of):
    return _root_of_sum(of.lefts, of.rights)


def map_norm(of):
    """The Frobenius norm of a Map's matrix, the root of the sum of its squares.

    From matrices [d_head][d_head] alone: the sum of squares of L R is the trace of
    (Lᵀ L) (R Rᵀ), and the trace of a product of two symmetric matrices is the sum of the products
    of their entries.

    >>> map_norm(Map([[3.0], [4.0]], [[5.0, 12.0]]))                  # 5 * 13
    65.0
    """
    return _norm(measured(of))


# ---- a head's ----

def head_rows(w, i, d_head):
    """Rows i * d_head and following of a matrix: [n * d_head][d_model] -> [d_head][d_model]."""
    return [list(row) for row in w[i * d_head:(i + 1) * d_head]]


def group_of(config, head):
    """The number of the key/value head that a query head reads; ValueError for a head that is not
    there.

    >>> from pyres.config import attention_config
    >>> [group_of(attention_config(n_heads=4, d_head=2, n_kv_heads=2), i) for i in range(4)]
    [0, 0, 1, 1]
    """
    if type(head) is not int or not 0 <= head < config.n_heads:
        raise ValueError(f"circuits: there is no head {head!r}; "
                         f"there are {config.n_heads}, 0 to {config.n_heads - 1}")
    return head // (config.n_heads // config.n_kv_heads)


def is_normed(w):
    """Whether queries or keys of AttentionWeights have a norm of their own."""
    return w.q_gain is not None or w.k_gain is not None


def check_bilinear(name, w):
    """Raise ValueError where queries or keys are normed."""
    if is_normed(w):
        raise ValueError(f"{name}: queries or keys have a norm of their own here, so the score is "
                         "no bilinear form of what the head reads, and there is no QK map")


def qk_map(w, config, head, offset=0):
    """A head's QK as a Map: w AttentionWeights, config AttentionConfig.

    offset says how many tokens the key stands before the query; it matters with rotary positions
    only.  Raises ValueError where queries or keys are normed.

    A query that is turned by a right angle, with one that is not:

    >>> import math
    >>> from pyres.config import RotaryConfig, attention_config
    >>> from pyres.show import rounded
    >>> from pyres.weights import AttentionWeights
    >>> config = attention_config(1, 2, rotary=RotaryConfig("half", [math.pi / 2]))
    >>> one = [[1.0, 0.0], [0.0, 1.0]]
    >>> w = AttentionWeights(one, one, one, one, *[None] * 6)
    >>> matrix_of(qk_map(w, config, 0))
    [[1.0, 0.0], [0.0, 1.0]]
    >>> rounded(matrix_of(qk_map(w, config, 0, offset=1)))
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    group, h = group_of(config, head), config.d_head
    check_bilinear("qk_map", w)
    left = transpose(head_rows(w.w_q, head, h))
    if config.rotary is not None and offset != 0:
        # (R_t q) . (R_s k) = (R_(t - s) q) . k
        table = angles([offset], config.rotary.frequencies) * len(left)
        left = rotate(left, table, config.rotary.pairing)
    return Map(left, head_rows(w.w_k, group, h))


def ov_map(w, config, head):
    """A head's OV as a Map: w AttentionWeights, config AttentionConfig.

    Two query heads that share a value head carry the same and write it elsewhere:

    >>> from pyres.config import attention_config
    >>> from pyres.weights import AttentionWeights
    >>> w = AttentionWeights([[1], [1]], [[1]], [[5]], [[7, 8]], *[None] * 6)
    >>> config = attention_config(n_heads=2, d_head=1, n_kv_heads=1)
    >>> matrix_of(ov_map(w, config, 0)), matrix_of(ov_map(w, config, 1))
    ([[35]], [[40]])
    """
    group, h = group_of(config, head), config.d_head
    return Map(part_weights(w.w_o, head, h), head_rows(w.w_v, group, h))


# ---- the factors' freedom ----

def inverse(m):
    """The inverse of a square matrix [n][n], by Gauss and Jordan; the largest pivot of a column is
    taken.  Exact numbers stay exact.  Raises ValueError where there is none.

    >>> inverse([[2.0, 1.0], [0.0, 0.5]])
    [[0.5, -1.0], [0.0, 2.0]]
    """
    n = len(m)
    if shape_text(m) != f"({n}, {n})":
        raise ValueError(f"inverse: the matrix has shape {shape_text(m)}, expected a square")
    zero = 0 * m[0][0]
    rows = [list(row) + [zero + int(i == j) for j in range(n)] for i, row in enumerate(m)]
    for j in range(n):
        best = max(range(j, n), key=lambda i: (abs(rows[i][j]), -i))
        if rows[best][j] == 0:
            raise ValueError("inverse: the matrix is singular")
        rows[j], rows[best] = rows[best], rows[j]
        rows[j] = [a / rows[j][j] for a in rows[j]]
        rows = [row if i == j else [a - row[j] * b for a, b in zip(row, rows[j])]
                for i, row in enumerate(rows)]
    return [row[n:] for row in rows]


def change_gauge(w, config, group, qk=None, ov=None):
    """AttentionWeights with other factors of the same maps, for the heads that read one key/value
    head.  qk and ov are invertible matrices M [d_head][d_head], or None to leave the factors:

        w_k -> M w_k,  w_q -> M^-T w_q          w_qᵀ w_k  is  w_qᵀ M^-1 M w_k
        w_v -> M w_v,  w_o -> w_o M^-1          w_o w_v   is  w_o M^-1 M w_v

    Biases go with their matrices, so the whole sublayer is the same function: with Fractions to
    the last digit.  The query heads of a group share its keys and values, and change with them.
    Raises ValueError where qk would not pass what stands between w_q and w_k, a norm or rotary
    positions, or a matrix has no inverse or another size.

    >>> from fractions import Fraction
    >>> from pyres.config import attention_config
    >>> from pyres.weights import AttentionWeights
    >>> config = attention_config(n_heads=1, d_head=1)
    >>> w = AttentionWeights([[1, 2]], [[3, 4]], [[5, 6]], [[7], [8]], *[None] * 6)
    >>> other = change_gauge(w, config, 0, qk=[[Fraction(2)]], ov=[[Fraction(10)]])
    >>> other.w_k == [[6, 8]], other.w_v == [[50, 60]]
    (True, True)
    >>> matrix_of(qk_map(other, config, 0)) == matrix_of(qk_map(w, config, 0))
    True
    """
    if type(group) is not int or not 0 <= group < config.n_kv_heads:
        raise ValueError(f"change_gauge: there is no key/value head {group!r}; "
                         f"there are {config.n_kv_heads}, 0 to {config.n_kv_heads - 1}")
    h, size = config.d_head, config.n_heads // config.n_kv_heads
    heads = range(group * size, (group + 1) * size)
    w_q, w_k, w_v, w_o, b_q, b_k, b_v = w.w_q, w.w_k, w.w_v, w.w_o, w.b_q, w.b_k, w.b_v
    if qk is not None:
        check_bilinear("change_gauge", w)
        if config.rotary is not None:
            raise ValueError("change_gauge: rotary positions turn queries and keys, and qk would "
                             "have to pass the turns; leave qk out, or the rotary positions")
        check_gauge("qk", qk, h)
        back = transpose(inverse(qk))
        w_k, b_k = rows_changed(w_k, qk, group), rows_changed(b_k, qk, group)
        for i in heads:
            w_q, b_q = rows_changed(w_q, back, i), rows_changed(b_q, back, i)
    if ov is not None:
        check_gauge("ov", ov, h)
        back = transpose(inverse(ov))
        w_v, b_v = rows_changed(w_v, ov, group), rows_changed(b_v, ov, group)
        columns = transpose(w_o)
        for i in heads:
            columns = rows_changed(columns, back, i)
        w_o = transpose(columns)
    return map_leaves(copied, AttentionWeights(w_q, w_k, w_v, w_o, b_q, b_k, b_v, w.b_o,
                                               w.q_gain, w.k_gain))


def check_gauge(name, m, d_head):
    """Raise ValueError unless a matrix is [d_head][d_head]."""
    if shape_text(m) != f"({d_head}, {d_head})":
        raise ValueError(f"change_gauge: {name} has shape {shape_text(m)}, "
                         f"a head's factors take ({d_head}, {d_head})")


def rows_changed(w, m, i):
    """w with m times part i's rows in their place: a matrix [n * d_head][d_in], a bias
    [n * d_head], or None."""
    if w is None:
        return None
    h = len(m)
    part = w[i * h:(i + 1) * h]
    changed = matmul(m, part) if isinstance(part[0], (list, tuple)) else matvec(m, part)
    return w[:i * h] + changed + w[(i + 1) * h:]


# ---- composition ----

def composition_score(later, earlier):
    """|L E| / (|L| |E|) of two Maps in Frobenius norms, from 0 to 1; 0 where one of them is 0.

    With L = L1 L2, E = E1 E2 and C = L2 E1 [d_head][d_head] the sum of squares of L E is the trace
    of Cᵀ (L1ᵀ L1) C (E2 E2ᵀ): nothing of d_model by d_model is made.

    >>> score = composition_score(Map([[1.0], [0.0]], [[1.0, 0.0]]), Map([[3.0], [4.0]], [[2.0]]))
    >>> round(score, 12)                                              # reads 3 of (3, 4)
    0.6
    """
    return _score(measured(later), measured(earlier))


def _score(later, earlier):
    norms = _norm(later) * _norm(earlier)
    if norms == 0:
        return norms
    middle = matmul(later.map.right, earlier.map.left)
    read = matmul(transpose(middle), matmul(later.lefts, middle))
    return _root_of_sum(read, earlier.rights) / norms


def random_score(d_model, d_later, d_earlier, n_draws=100, seed=0):
    """The mean composition score of random heads: n_draws of four factors each, with independent
    Gaussian entries, of heads of width d_later and d_earlier.  It is near 1 / sqrt(d_model).

    Query, key and value composition have the same, because their factors have the same shapes.
    Raises ValueError for n_draws below 1.

    >>> abs(random_score(16, 4, 4, n_draws=20) - 1 / 4) < 0.02
    True
    """
    if n_draws < 1:
        raise ValueError(f"random_score: n_draws is {n_draws}, and must be 1 or more")
    generator, total = Generator(seed), 0.0
    for _ in range(n_draws):
        total += composition_score(
            *[Map(normal_tensor(generator, (d_model, h)), normal_tensor(generator, (h, d_model)))
              for h in (d_later, d_earlier)])
    return total / n_draws


class Composition(namedtuple("Composition", ("earlier", "later", "query", "key", "value",
                                             "baseline"))):
    """How much a later head reads of what an earlier one writes.

    earlier, later       names of heads, `L0.attn.H1`
    query, key, value    composition scores, through the later head's queries, keys and values;
                         query and key are None where those are normed
    baseline             what random heads of the same shapes score
    """


def all_heads(model):
    """Every head as (layer, name, AttentionConfig, AttentionWeights, number in its layer)."""
    return [(layer, f"L{layer}.attn.H{head}", block.attention, w.attn, head)
            for layer, (block, w) in enumerate(zip(model.config.blocks, model.weights.blocks))
            for head in range(block.attention.n_heads)]


def reading_maps(w, config, head):
    """What a head reads with, as Measured: QK transposed for its query, QK for its key, None where
    they are normed; OV for its value."""
    ov = measured(ov_map(w, config, head))
    if is_normed(w):
        return None, None, ov
    qk = qk_map(w, config, head)
    return measured(transposed(qk)), measured(qk), ov


def compositions(model, n_draws=100, seed=0, layers=None):
    """The Composition of every head with every head of a later layer, in order.  layers are the
    layers of the later heads, by default all.

    Heads of one layer read the same stream and none reads what another writes: between them, and
    backwards, composition is 0, and there is no row.  With rotary positions QK is that of two
    tokens that stand at the same place.

    >>> from pyres.config import attention_config, block_config, model_config
    >>> from pyres.model import make_model
    >>> from pyres.weights import random_weights
    >>> config = model_config(8, 5, 8, 2, block_config(8, attention_config(n_heads=2, d_head=4)))
    >>> found = compositions(make_model(config, random_weights(config)), n_draws=5)
    >>> [(c.earlier, c.later) for c in found][:2]
    [('L0.attn.H0', 'L1.attn.H0'), ('L0.attn.H0', 'L1.attn.H1')]
    """
    heads = [(layer, name, config.d_head, reading_maps(w, config, head))
             for layer, name, config, w, head in all_heads(model)]
    baselines, found = {}, []
    for layer, earlier, d_earlier, (_, _, written) in heads:
        for later_layer, later, d_later, readings in heads:
            if layer >= later_layer or layers is not None and later_layer not in layers:
                continue
            widths = (d_later, d_earlier)
            if widths not in baselines:
                baselines[widths] = random_score(
                    model.config.d_model, d_later, d_earlier, n_draws, seed)
            scores = [None if read is None else _score(read, written) for read in readings]
            found.append(Composition(*([earlier, later] + scores + [baselines[widths]])))
    return found
