"""Faults planted one by one into a copy of the package: the quick tests must fail for each.

A test that nothing can fail proves nothing.  Each fault here is one that somebody has made in such
code, or nearly so, and is written as the text it replaces.  The text must stand exactly once in
its file, so that a fault which no longer applies is noticed and not silently left out.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The quickest first: a run stops at the first failure.
QUICK = ("tests.test_public_mistakes", "tests.test_laws", "tests.test_numbers",
         "tests.test_contract")

# How unittest names a test that failed; PYRES_SHOW_FAULTS=1 prints it for each fault.
NOTICED = r"(?:FAIL|ERROR): (\w+)"

# reason     what somebody thought
# patches    (file in pyres/, old text, new text), one or more: a fault that forward and backward
#            share is found by a second formula only
Fault = namedtuple("Fault", ("reason", "patches"))


def fault(reason, *patches):
    return Fault(reason, patches)


NORMS = (
    fault("variance divided by n - 1",
          ("norms.py", "variance = dot(centred, centred) / len(x)",
           "variance = dot(centred, centred) / (len(x) - 1)")),
    fault("LayerNorm's eps beside the root",
          ("norms.py", "scale = sqrt(variance + eps)", "scale = sqrt(variance) + eps")),
    fault("RMSNorm's eps beside the root",
          ("norms.py", "scale = sqrt(mean_square + eps)", "scale = sqrt(mean_square) + eps")),
    fault("LayerNorm's backward without the mean of the gradient",
          ("norms.py", "[d / scale - level - n * along for d, n",
           "[d / scale - n * along for d, n")),
    fault("LayerNorm's backward without the part along the normalized",
          ("norms.py", "[d / scale - level - n * along for d, n", "[d / scale - level for d, n")),
    fault("RMSNorm's backward without the part along the normalized",
          ("norms.py", "[d / scale - n * along for d, n", "[d / scale for d, n")),
    fault("a frozen LayerNorm's backward without the mean of the gradient",
          ("norms.py", "[d / scale - level for d in d_normalized]",
           "[d / scale for d in d_normalized]")),
)

ATTENTION = (
    fault("scores divided by the root of the width of two heads, which is d_model's",
          ("attention.py", "root_of_count(len(q_head[0]), some)",
           "root_of_count(2 * len(q_head[0]), some)")),
    fault("key/value heads tiled: 0, 1, 0, 1",
          ("attention.py", "q_head, k[i // group], spans", "q_head, k[i % len(k)], spans"),
          ("attention.py", "columns[i // group]", "columns[i % len(k)]")),
    fault("a token sees the one after it",
          ("attention.py", "end = position + 1 if causal else n_keys",
           "end = min(position + 2, n_keys) if causal else n_keys")),
    fault("a token does not see itself",
          ("attention.py", "end = position + 1 if causal else n_keys",
           "end = max(position, 1) if causal else n_keys")),
    fault("a window of one more",
          ("attention.py", "max(0, position - window + 1)", "max(0, position - window)")),
    fault("queries anchored at the beginning of the keys",
          ("attention.py", "position = n_keys - n_queries + t", "position = t")),
    fault("the gradient at a group's keys overwritten",
          ("attention.py", "d_k[:-1] + [add(d_k[-1], of_k)]", "d_k[:-1] + [of_k]")),
    fault("the gradient at a group's values overwritten",
          ("attention.py", "d_v[:-1] + [add(d_v[-1], of_v)]", "d_v[:-1] + [of_v]")),
    fault("no derivative of the scores' soft cap",
          ("attention.py", "d_row = [d * (1 - (s / soft_cap) * (s / soft_cap)) for",
           "d_row = [d for")),
    fault("the gradient at what attention reads overwritten by the last of its three readers",
          ("attention.py", "    n_q, n_k = len(w.w_q), len(w.w_k)\n",
           "    d_x = linear_backward(join_heads(d_v), steps.x, w.w_v)[0]\n"
           "    n_q, n_k = len(w.w_q), len(w.w_k)\n")),
    fault("the rotary pairings exchanged",
          ("rotary.py", "return 2 * j, 2 * j + 1", "return j, j + n_pairs  # and below"),
          ("rotary.py", "return j, j + n_pairs\n", "return 2 * j, 2 * j + 1\n")),
    fault("rotary positions that always begin at 0",
          ("attention.py", "range(first_position, first_position + n_tokens)", "range(n_tokens)")),
)

MLP = (
    fault("the activation on up, forward and backward alike",
          ("mlp.py", "hidden = multiply(act(gate), up)", "hidden = multiply(gate, act(up))"),
          ("mlp.py", "d_up = multiply(d_hidden, act(steps.gate))",
           "d_up = act_backward(multiply(d_hidden, steps.gate), steps.up)"),
          ("mlp.py", "d_gate = act_backward(multiply(d_hidden, steps.up), steps.gate)",
           "d_gate = multiply(d_hidden, act(steps.up))")),
    fault("the gradient at what an MLP reads overwritten by the gate's",
          ("mlp.py", "d_x = add(d_x, d_x_gate)", "d_x = d_x_gate")),
    fault("the two gelus exchanged",
          ("nonlinear.py", '("gelu", gelu, gelu_backward)',
           '("gelu", gelu_tanh, gelu_tanh_backward)'),
          ("nonlinear.py", '("gelu_tanh", gelu_tanh, gelu_tanh_backward),\n    ("silu"',
           '("gelu_tanh", gelu, gelu_backward),\n    ("silu"')),
)

STREAM = (
    fault("the gradient at a fork overwritten by the branch's: no identity part in a block",
          ("blocks.py", "StateGradient(add(identity, branch), identity, branch)",
           "StateGradient(branch, identity, branch)")),
    fault("the gradient at a fork without the branch's part",
          ("blocks.py", "StateGradient(add(identity, branch), identity, branch)",
           "StateGradient(identity, identity, branch)")),
    fault("no identity part in the stream's backward",
          ("stream.py", "[add(d_update, branch)]",
           "[branch]")),
    fault("the update recorded before the norm behind the branch",
          ("blocks.py", "return BlockSteps(x, attn_norm, attn, attn_post_norm, a, u, mlp_norm",
           "return BlockSteps(x, attn_norm, attn, attn_post_norm, attn.out, u, mlp_norm")),
    fault("a parallel block wired one after the other",
          ("blocks.py", "mlp_norm = attn_norm if config.mlp_norm is None else norm_steps(x,",
           "mlp_norm = attn_norm if config.mlp_norm is None else norm_steps(add_residual(x, a),")),
    fault("the embedding's gradient of a token that stands twice overwritten",
          ("model.py", "d_w_embed[token] = add(d_w_embed[token], d_row)",
           "d_w_embed[token] = list(d_row)")),
    fault("a tied table with the unembedding's gradient alone",
          ("model.py", "d_w_embed, d_w_unembed = add(d_w_embed, d_w_unembed), None",
           "d_w_embed, d_w_unembed = d_w_unembed, None")),
    fault("a tied table with the embedding's gradient alone",
          ("model.py", "d_w_embed, d_w_unembed = add(d_w_embed, d_w_unembed), None",
           "d_w_embed, d_w_unembed = d_w_embed, None")),
    fault("no derivative of the logits' soft cap",
          ("model.py", "d_logits = [[d * (1 - (a / cap) * (a / cap)) for", "d_logits = [[d for")),
    fault("an edit that does not heed its positions",
          ("edits.py", "return [after[t] if t in edit.positions else row for t, row in",
           "return [after[t] for t, row in")),
    fault("a gradient that goes back beyond a state that was set",
          ("edits.py", "return zeros_like(d_state)", "return d_state")),
    fault("an edit of a source token that leaves the pattern's gradient as it was",
          ("attention.py", "d_p = multiply(d_p, factors[t][first:end])", "pass")),
    fault("an edited neuron's gradient that does not go through the edit",
          ("readout.py", "linear_backward(edit_update_backward(d_out, edits),",
           "linear_backward(d_out,")),
    fault("a group's replaced update written by each of its heads",
          ("edits.py", "rest = edit if edit.kind == \"scale\" else", "rest = edit or")),
)

FAULTS = NORMS + ATTENTION + MLP + STREAM


class PlantedFaults(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name in ("pyres", "tests"):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(cls.folder, name),
                            ignore=shutil.ignore_patterns("__pycache__", "data"))

        cls.passed, cls.said = cls.quick_tests()

    @classmethod
    def quick_tests(cls):
        """Run the quick tests on the copy, to the first failure; return (passed, their words)."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        # -B: a file patched twice within a second would be taken for the one compiled before
        result = subprocess.run([sys.executable, "-B", "-m", "unittest", "-f", *QUICK],
                                cwd=cls.folder, env=environment, stderr=subprocess.PIPE,
                                stdout=subprocess.DEVNULL, universal_newlines=True)
        return result.returncode == 0, result.stderr

    def patched(self, patches):
        """The new text of each file that the patches change, as a dict from path to text."""
        texts = {}
        for name, old, new in patches:
            path = os.path.join(self.folder, "pyres", name)
            if path not in texts:
                with open(path, encoding="utf-8") as file:
                    texts[path] = file.read()
            self.assertEqual(texts[path].count(old), 1, f"{old!r} must stand once in {name}")
            texts[path] = texts[path].replace(old, new)
        return texts

    def test_without_a_fault_the_quick_tests_pass(self):
        self.assertTrue(self.passed, self.said)

    def test_every_fault_makes_a_quick_test_fail(self):
        self.assertTrue(self.passed, "they fail without one, which then proves nothing")
        for reason, patches in FAULTS:
            with self.subTest(reason):
                patched, before = self.patched(patches), {}
                for path, text in patched.items():
                    compile(text, path, "exec")             # a fault, not a broken file
                    with open(path, encoding="utf-8") as file:
                        before[path] = file.read()
                try:
                    for path, text in patched.items():
                        self.write(path, text)
                    passed, said = self.quick_tests()
                finally:
                    for path, text in before.items():
                        self.write(path, text)
                self.assertFalse(passed, "no quick test notices this")
                self.assertIn("FAILED", said)
                if os.environ.get("PYRES_SHOW_FAULTS"):
                    print(f"{reason}: {', '.join(sorted(set(re.findall(NOTICED, said))))}")

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    unittest.main()
