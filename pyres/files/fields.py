"""A config.json's values, each checked as it is read, and none of consequence left unread.

    read_object    an object of JSON from a file of bounded size
    Fields         its values by key
    NEUTRAL        values of keys that some family reads and another must not have otherwise

>>> fields = Fields({"n_embd": 4, "n_head": "2", "use_cache": True}, "config.json")
>>> fields.size("n_embd"), fields.number("layer_norm_epsilon", 0.5), fields.not_read()
(4, 0.5, ['n_head', 'use_cache'])
>>> fields.size("n_head")
Traceback (most recent call last):
ValueError: config.json: n_head is '2'; expected a whole number of at least 1
"""
from .opening import read_json
from .strict_json import brief, brief_key

__all__ = ["REQUIRED", "NEUTRAL", "read_object", "Fields"]

REQUIRED = object()

# Values that change what some family computes.  A family that does not read such a key takes the
# neutral values only; every other unknown key is no option of the mathematics, and is listed as
# not read.
NEUTRAL = {
    "quantization_config": (None,), "compression_config": (None,), "pruned_heads": (None, {}),
    # positions
    "position_embedding_type": (None, "absolute", "rope", "rotary"),
    "rope_scaling": (None,), "rope_parameters": (None,), "rope_theta": (None, 10000),
    "rotary_emb_base": (None, 10000), "partial_rotary_factor": (None, 1), "rotary_pct": (None, 1),
    "rotary_dim": (None,), "alibi": (None, False),
    # what a token sees
    "is_causal": (None, True), "use_bidirectional_attention": (None, False),
    "sliding_window": (None,), "use_sliding_window": (None, False), "layer_types": (None,),
    "attention_chunk_size": (None,), "no_rope_layers": (None,),
    "add_cross_attention": (None, False), "is_encoder_decoder": (None, False),
    # numbers that multiply or cap
    "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,), "attention_multiplier": (None,),
    "embedding_multiplier": (None, 1), "residual_multiplier": (None, 1),
    "logits_scaling": (None, 1), "logit_scale": (None, 1), "scale_embedding": (None, False),
    "scale_attn_weights": (None, True), "scale_attn_by_inverse_layer_idx": (None, False),
    # norms, and where they stand
    "use_qk_norm": (None, False), "qk_layernorm": (None, False), "clip_qkv": (None,),
    "layer_norm_elementwise_affine": (None, True), "_remove_final_layer_norm": (None, False),
    "do_layer_norm_before": (None, True),
    "apply_residual_connection_post_layernorm": (None, False),
    "parallel_attn": (None, False), "use_parallel_residual": (None, False),
    "new_decoder_architecture": (None, False), "num_ln_in_parallel_attn": (None, 1),
    # sizes and biases, where they are not the ones that the tensors' shapes show
    "multi_query": (None, False), "num_key_value_heads": (None,), "head_dim": (None,),
    "n_inner": (None,), "word_embed_proj_dim": (None,),
    "attention_bias": (None, False), "mlp_bias": (None, False), "qkv_bias": (None, False),
    "num_experts": (None, 0, 1), "num_local_experts": (None, 0, 1),
    "chunk_size_feed_forward": (None, 0),
}


def read_object(path, max_bytes):
    """The object that a JSON file is, as a dict; ValueError for one that is larger or no object.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "config.json")
    ...     with open(path, "w") as file:
    ...         file.write('{"n_embd": 4}') and None
    ...     read_object(path, 100)
    {'n_embd': 4}
    """
    values = read_json(path, max_bytes)
    if type(values) is not dict:
        raise ValueError(f"{path}: expected a JSON object")
    return values


def _is_one_of(value, neutral):
    """Whether a value is one of these and is a bool where they are: True == 1 in Python."""
    return any(value == one and (type(value) is bool) == (type(one) is bool) for one in neutral)


class Fields:
    """A config's values by key; each reading checks the type and says the file and the key.

    largest is the largest size of any tensor in the files.  A size beyond it cannot be right, and
    is refused before anything of that size is made.  Every method but not_read takes a key; what
    is refused raises ValueError.  A default is given back as it is; REQUIRED is none.

    >>> fields = Fields({"hidden_size": 2 ** 40}, "config.json", largest=64)
    >>> fields.size("hidden_size")
    Traceback (most recent call last):
    ValueError: config.json: hidden_size is 1099511627776, but no tensor in the files is larger \
than 64
    """

    def __init__(self, values, what, largest=None, n_tensors=None):
        self.values, self.what, self.largest, self.n_tensors = values, what, largest, n_tensors
        self.read = {"model_type"}
        self.groups = []

    def get(self, key, default):
        """The value of a key, or the default where it is absent or null."""
        self.read.add(key)
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ValueError(f"{self.what}: {key} is missing")
        return default

    def is_null(self, key):
        """Whether a key is there and null: for a few keys that says none, and not the default."""
        self.read.add(key)
        return key in self.values and self.values[key] is None

    def refuse(self, key, value, wanted):
        """Raise ValueError: the file, the key, its value and what was wanted."""
        raise ValueError(f"{self.what}: {brief_key(key)} is {brief(value)}; expected {wanted}")

    def size(self, key, default=REQUIRED, bounded=True):
        """A whole number of at least 1."""
        value = self.get(key, default)
        if value is default:
            return value
        if type(value) is not int or value < 1:
            self.refuse(key, value, "a whole number of at least 1")
        if bounded and self.largest is not None and value > self.largest:
            raise ValueError(f"{self.what}: {key} is {brief(value)}, but no tensor in the files "
                             f"is larger than {self.largest}")
        return value

    def layers(self, key):
        """How many blocks there are; each has a tensor of its own at least."""
        value = self.size(key, bounded=False)
        if self.n_tensors is not None and value > self.n_tensors:
            raise ValueError(f"{self.what}: {key} is {brief(value)}, "
                             f"the files hold {self.n_tensors} tensors")
        return value

    def alias(self, key, meant, value):
        """Raise where a second key for one value says something else."""
        if self.get(key, value) != value:
            self.refuse(key, self.values[key], f"{value!r}, which {meant} says")

    def number(self, key, default, positive=False):
        """A finite number that is not negative."""
        value = self.get(key, default)
        if value is default:
            return value
        in_range = type(value) in (int, float) and 0 <= value < float("inf")
        if not in_range or positive and value == 0:
            self.refuse(key, value, "a number above 0" if positive else "a number of at least 0")
        return float(value)

    def flag(self, key, default):
        """True or false."""
        value = self.get(key, default)
        if type(value) is not bool:
            self.refuse(key, value, "true or false")
        return value

    def text(self, key, default):
        """A str."""
        value = self.get(key, default)
        if type(value) is not str:
            self.refuse(key, value, "a text")
        return value

    def one_of(self, key, names, default):
        """A text that is one of the names, as what it is called here."""
        value = self.text(key, default)
        if value not in names:
            self.refuse(key, value, "one of " + ", ".join(names))
        return names[value]

    def each_one_of(self, key, names, length):
        """A list of `length` texts, each one of the names; None where there is none."""
        value = self.get(key, None)
        if value is None:
            return None
        if type(value) is not list or len(value) != length or any(
                type(text) is not str or text not in names for text in value):
            self.refuse(key, value, f"a list of {length}, each one of " + ", ".join(names))
        return value

    def must_be(self, key, wanted):
        """Raise unless the value is the one that is understood, or absent."""
        value = self.get(key, wanted)
        if not _is_one_of(value, (wanted,)):
            self.refuse(key, value, repr(wanted))

    def divides(self, key, part, whole_key, whole):
        """Raise unless one size, `part`, divides another, `whole`."""
        if whole % part:
            raise ValueError(f"{self.what}: {key} is {part}, "
                             f"which does not divide {whole_key} {whole}")

    def group(self, key):
        """The Fields of a value that is an object; absent or null is an empty one."""
        value = self.get(key, {})
        if type(value) is not dict:
            self.refuse(key, value, "an object")
        group = Fields(value, f"{self.what}: {key}", self.largest)
        group.read = set()
        self.groups.append(group)
        return group

    def not_read(self):
        """The keys that nothing read, sorted; raises for one that would change the numbers."""
        for fields in [self] + self.groups:
            for key in sorted(set(fields.values) - fields.read):
                value = fields.values[key]
                if fields is not self and value is not None:
                    fields.refuse(key, value, "no such key")
                if key in NEUTRAL and not _is_one_of(value, NEUTRAL[key]):
                    fields.refuse(key, value, f"{NEUTRAL[key][-1]!r} or no such key")
        return sorted(set(self.values) - self.read)
