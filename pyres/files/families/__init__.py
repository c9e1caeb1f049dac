"""What Hugging Face checkpoints mean: one small description for each family of models.

A description says how config.json is read, and which tensor of the files holds which weights.  It
is data for the loader: nothing here is asked by the mathematics, and nothing there knows a
family's name.

    rows        Family and Row, what a description is made of, and from tensors to weights
    values      what several families read from a config in the same way
    decoders    llama, and those that write their files as Llama does
    others      gpt2, opt, gptj, gpt_neox, falcon, phi
    FAMILIES    all of them

>>> [family.model_type for family in FAMILIES if family.prefix == "transformer."]
['gpt2', 'gptj', 'falcon']
"""
from .decoders import DECODERS
from .others import OTHERS
from .rows import Family, Row
from .values import ACTIVATION_NAMES

__all__ = ["Row", "Family", "ACTIVATION_NAMES", "FAMILIES"]

FAMILIES = OTHERS[:1] + DECODERS + OTHERS[1:]
