"""The commands that make a model and use one: train and generate.

A run must give the same bytes however it was interrupted.  Most tests run main() here; those that
kill start a process, which gets its own group, so that nothing of it stays behind.
"""
import contextlib
import errno
import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import pyres
from pyres.commands import train as train_command
from pyres.config import RotaryConfig
from pyres.data import text_loss, unigram_loss
from pyres.files import native, safetensors
from pyres.files.characters import Characters
from pyres.rotary import frequencies
from pyres.view.progress import Progress
from tests.test_cli import Stream, here

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPT2 = os.path.join(ROOT, "tests", "data", "models", "gpt2")
TEXT = "the cat sat on the mat, the rat sat on the cat. " * 6
# options that make a run of a few milliseconds a step
TINY = ("--width", "4", "--heads", "1", "--blocks", "1", "--hidden", "4", "--context", "5",
        "--batch", "1", "--warm-up", "5", "--workers", "1")
EVERY = train_command.SAVE_EVERY
STEPS = EVERY + 1           # a run that saves at 0 and 25 steps, and then its model
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# ---- processes that are killed ----

def begun(*argv):
    """A started `python -m pyres train`, in a group of its own.  It heeds Ctrl-C, which whatever
    runs in the background of a shell ignores."""
    return subprocess.Popen([sys.executable, "-m", "pyres", "train", *argv], cwd=ROOT,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            start_new_session=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def ended(process):
    """Kill what is left of a process and of its group; return its exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.stderr.close()
    return process.wait()


def killed_after(seconds, *argv):
    """Start a run and kill -9 it after so many seconds; return the exit code, 0 where it was done
    before."""
    process = begun(*argv, "-q")
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        ended(process)


# Where a save may be killed: before and after each of its steps, and with half of it written.
POINTS = ("folder", "half", "written", "synced", "before replace", "after replace", "cleaned",
          "before remove", "after remove")


def die_inside(point, nth, argv):
    """Run main(argv), and kill -9 this very process at a point of the nth save."""
    counts = dict.fromkeys(POINTS, 0)

    def at(name):
        counts[name] += 1
        if name == point and counts[name] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(f, before=None, after=None):
        def wrapped(*given, **named):
            if before:
                at(before)
            result = f(*given, **named)
            if after:
                at(after)
            return result

        return wrapped

    folder = tempfile.TemporaryDirectory
    folder.__enter__ = around(folder.__enter__, after="folder")
    folder.__exit__ = around(folder.__exit__, after="cleaned")
    safetensors.open = halves(at)
    os.fsync = around(os.fsync, after="synced")
    os.replace = around(os.replace, "before replace", "after replace")
    os.remove = around(os.remove, "before remove", "after remove")
    return pyres.cli.main(argv)


def killed_inside(point, nth, *argv):
    """Start a run that kills itself at a point of its nth save; return the exit code, 0 where
    there was no such save."""
    code = ("import sys, pyres.cli; from tests.test_train_command import die_inside; "
            "sys.exit(die_inside(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))")
    done = subprocess.run([sys.executable, "-c", code, point, str(nth), "train", *argv, "-q"],
                          cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)
    return done.returncode


def is_killed(code):
    return code == -signal.SIGKILL


def steps_done(out):
    """How many steps a run's file has behind it; None where there is no such file."""
    if not os.path.exists(out + ".resume"):
        return None
    return native.load_training(out + ".resume")[0].moments.step


# ---- saves that fail ----

def halves(at):
    """An open() for files to write, which come to the disk by halves, and call at(what has been
    done) in between."""
    class Halved(io.FileIO):
        def writelines(self, pieces):
            data = b"".join(pieces)
            self.write(data[:len(data) // 2])
            at("half")
            self.write(data[len(data) // 2:])
            at("written")

    return lambda path, mode="r", **named: (Halved(path, mode) if mode == "wb"
                                            else open(path, mode, **named))


def failing(name, nth, error):
    """A context in which a part of the nth save fails: mkdtemp, half, fsync or replace."""
    count = iter(range(1, 10 ** 6))

    def fail(what):
        if what == name and next(count) == nth:
            raise error

    if name == "half":
        return mock.patch.object(safetensors, "open", halves(fail), create=True)
    where = tempfile if name == "mkdtemp" else os
    real = getattr(where, name)

    def part(*given, **named):
        fail(name)
        return real(*given, **named)

    return mock.patch.object(where, name, part)


# ---- what the tests share ----

class FolderCase(unittest.TestCase):
    """A folder with a text, and a run that writes its model there."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.text = self.path("some.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)
        self.out = self.path("model.safetensors")

    def path(self, name):
        return os.path.join(self.folder, name)

    def content(self, path=None):
        with open(path or self.out, "rb") as file:
            return file.read()

    def contents(self):
        """What is in the folder: every name, and every file's bytes."""
        return {name: self.content(self.path(name)) if os.path.isfile(self.path(name)) else None
                for name in sorted(os.listdir(self.folder))}

    def arguments(self, *options, steps=STEPS):
        return (self.text, "--out", self.out, *TINY, "--steps", str(steps), *options)

    def train(self, *options, steps=STEPS, code=0):
        done = here("train", *self.arguments(*options, steps=steps))
        self.assertEqual(done.code, code, done.err)
        return done

    def clear(self):
        """Remove a run's files, those of one that failed in an earlier subtest too."""
        for path in (self.out, self.out + ".resume"):
            if os.path.exists(path):
                os.remove(path)

    WHOLE = {}

    def undisturbed(self, *options, steps=STEPS):
        """The bytes of a run that nothing disturbs, done once; none of its files is there."""
        self.clear()
        if (options, steps) not in self.WHOLE:
            self.train("-q", *options, steps=steps)
            self.WHOLE[options, steps] = self.content()
            self.clear()
        return self.WHOLE[options, steps]

    def interrupted(self, at, *options, steps=STEPS, code=130):
        """A run that Ctrl-C stops before its step number `at`, counted from 0; its Done."""
        real, count = train_command.step, iter(range(10 ** 6))

        def one(*given):
            if next(count) == at:
                raise KeyboardInterrupt
            return real(*given)

        with mock.patch.object(train_command, "step", one):
            return self.train(*options, steps=steps, code=code)

    def assertDone(self, whole, what=None):
        """The model is there with those bytes, and nothing of the run is left."""
        self.assertTrue(self.content() == whole, f"{what}: other bytes")
        self.assertFalse(os.path.exists(self.out + ".resume"), what)

    def assertRefused(self, code, words, *argv):
        """A command that is refused with the words, after which the folder is as it was."""
        before = self.contents()
        done = here(*argv)
        self.assertEqual(done.code, code, f"{argv}: {done.err}")
        self.assertIn(words, done.err)
        self.assertIn("pyres: error: ", done.err)
        self.assertNotIn("Traceback", done.err)
        self.assertEqual(done.out, "")
        self.assertEqual(self.contents(), before)
        return done


# ---- train ----

class TrainTest(FolderCase):
    def test_the_model_is_one_file_and_the_same_bytes_again(self):
        self.train("-q")
        self.assertEqual(sorted(os.listdir(self.folder)), ["model.safetensors", "some.txt"])
        whole, model = self.content(), pyres.load(self.out)
        self.assertEqual((model.name, model.config.n_ctx), ("model", 5))
        self.assertEqual(model.tokenizer.tokens, sorted(set(TEXT)))
        for options in ((), ("--workers", "2")):
            with self.subTest(options=options):
                self.clear()
                self.train("-q", *options)
                self.assertDone(whole, options)
        self.clear()
        self.train("-q", "--seed", "2")
        self.assertNotEqual(self.content(), whole)

    def test_several_sequences_and_several_workers(self):
        options = ("--batch", "5")
        whole = self.undisturbed(*options, steps=6)
        for workers in ("2", "3"):
            self.train("-q", *options, "--workers", workers, steps=6)
            self.assertDone(whole, f"{workers} workers")
            os.remove(self.out)

    def test_workers_however_a_system_starts_them(self):
        """A worker's parent need not be the process that has the work."""
        whole = self.undisturbed("--batch", "3", steps=3)
        code = ("import multiprocessing, sys\nfrom pyres.cli import main\n"
                "multiprocessing.set_start_method(sys.argv[1])\nsys.exit(main(sys.argv[2:]))")
        for method in multiprocessing.get_all_start_methods():
            with self.subTest(method=method):
                if method != "fork" and sys.implementation.name == "pypy":
                    self.skipTest("PyPy's own pool of processes can only fork")
                self.clear()
                argv = self.arguments("-q", "--batch", "3", "--workers", "2", steps=3)
                done = subprocess.run([sys.executable, "-c", code, method, "train", *argv],
                                      cwd=ROOT, timeout=60, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                self.assertDone(whole, method)

    def test_options_say_what_the_model_is(self):
        self.train("-q", "--width", "8", "--heads", "2", "--blocks", "2", "--hidden", "6",
                   "--norm", "rms", "--gated", "--positions", "rotary", steps=1)
        model = pyres.load(self.out)
        block = model.config.blocks[1]
        self.assertEqual((model.config.d_model, len(model.config.blocks), block.d_mlp), (8, 2, 6))
        self.assertEqual((block.attention.n_heads, block.attention.d_head), (2, 4))
        self.assertEqual(block.attention.rotary, RotaryConfig("half", frequencies(4)))
        self.assertEqual((block.attn_norm.kind, model.config.final_norm.kind), ("rms", "rms"))
        self.assertIsNotNone(model.weights.blocks[0].mlp.w_gate)
        self.assertIsNone(model.weights.w_pos)
        self.train("-q", "--force", "--positions", "none", "--width", "6", steps=1)
        model = pyres.load(self.out)
        self.assertIsNone(model.weights.w_pos)
        self.assertIsNone(model.config.blocks[0].attention.rotary)
        self.assertIsNone(model.weights.blocks[0].mlp.w_gate)

    def test_the_json_is_true_of_the_file(self):
        answer = json.loads(self.train("--json", "-q", steps=30).out)
        result, model = answer["result"], pyres.load(self.out)
        self.assertEqual(result["sha256"], hashlib.sha256(self.content()).hexdigest())
        self.assertEqual((result["steps"], result["out"]), (30, self.out))
        self.assertEqual(result["total"], sum(
            safetensors_size(self.out, name) for name in safetensors.read(self.out)))
        tokens = model.tokenizer.encode(TEXT)
        n = max(2, len(tokens) // 10)
        train, held_out = tokens[:-n], tokens[-n:]
        loss, n_scored = text_loss(model, held_out)
        self.assertEqual(result["judged"], {
            "loss": loss, "n_targets": n_scored,
            "unigram_loss": unigram_loss(train, held_out[1:], model.config.d_vocab)})
        self.assertEqual(n_scored, n - 1, "each token but the first is scored once")
        self.assertTrue(result["sample"].startswith(model.tokenizer.decode(held_out[:2])))
        self.assertLess(result["loss"][-1], result["loss"][0])
        again = json.loads(self.train("--json", "-q", "--force", steps=30).out)
        self.assertEqual(again, answer)

    def test_echo(self):
        out = self.path("echo.safetensors")
        argv = ("train", "--task", "echo", "--out", out, "--width", "4", "--heads", "1",
                "--blocks", "1", "--hidden", "4", "--steps", "2", "--batch", "2",
                "--workers", "1", "-q", "--json")
        done = here(*argv)
        self.assertEqual((done.code, done.err), (0, ""))
        model = pyres.load(out)
        self.assertEqual((model.name, model.tokenizer.bos, model.config.d_vocab), ("echo", 0, 27))
        self.assertEqual(model.tokenizer.decode(range(1, 27)), "abcdefghijklmnopqrstuvwxyz")
        result = json.loads(done.out)["result"]
        self.assertTrue(0 <= result["judged"]["accuracy"] <= 1)
        self.assertTrue(result["sample"].startswith("mqzkbmqz"))

    def test_what_is_said_and_where(self):
        done = self.train(steps=40)
        for words in ("loss by step", "held-out loss", "counting characters", "sample: ",
                      "40 steps", "Next: python3 -m pyres trace --model"):
            self.assertIn(words, " ".join(done.out.split()))
        lines = done.err.splitlines()
        self.assertEqual(len(lines), 10, "one plain line for each tenth")
        for line, n in zip(lines, range(4, 41, 4)):
            self.assertRegex(line, rf"^{n}/40 loss [0-9.]+, [0-9]+ targets/s, [0-9]+ s$")
        os.remove(self.out)
        done = self.train("-q", steps=2)
        self.assertEqual(done.err, "")
        self.assertIn("held-out loss", done.out)
        self.assertNotIn("Next:", done.out)

    def test_nothing_is_overwritten_unless_that_is_asked_for(self):
        for name, hint in (("model.safetensors", "--force overwrites it"),
                           ("model.safetensors.resume", "--resume goes on from it")):
            with self.subTest(name=name):
                with open(self.path(name), "wb") as file:
                    file.write(b"mine")
                done = self.assertRefused(4, "exists", "train", *self.arguments())
                self.assertIn(hint, done.err)
                self.train("-q", "--force")
                self.assertEqual(sorted(os.listdir(self.folder)),
                                 ["model.safetensors", "some.txt"])
                os.remove(self.out)


def safetensors_size(path, name):
    size = 1
    for n in safetensors.read(path).shape(name):
        size *= n
    return size


class ProgressTest(unittest.TestCase):
    def test_a_bar_on_a_terminal(self):
        stream = Stream(terminal=True)
        with mock.patch("time.monotonic", side_effect=[0.0] + [i / 4 for i in range(1, 99)]), \
                mock.patch.dict(os.environ, {"COLUMNS": "60"}):
            with Progress(8, stream=stream) as progress:
                for done in range(1, 9):
                    progress(done, f"loss {9 - done}.000, 50 targets/s")
        shown = stream.getvalue().split("\r")
        self.assertNotIn("\n", stream.getvalue())
        self.assertTrue(all(len(line) < 60 for line in shown))
        self.assertRegex(shown[-3], r"^\[█+\] 8/8 loss 1.000, 50 targets/s, 0 s left *$")
        self.assertEqual(shown[-2].strip(), "", "the line is wiped at the end")

    def test_quiet_is_quiet(self):
        for terminal in (False, True):
            stream = Stream(terminal=terminal)
            with Progress(3, quiet=True, stream=stream) as progress:
                for done in (1, 2, 3):
                    progress(done, "loss")
            self.assertEqual(stream.getvalue(), "")


# ---- a run that stops and goes on ----

class InterruptTest(FolderCase):
    def test_ctrl_c_before_any_step_saves_and_the_run_goes_on_to_the_same_bytes(self):
        whole = self.undisturbed()
        for at in (0, 1, EVERY - 1, EVERY):
            with self.subTest(at=at):
                self.clear()
                done = self.interrupted(at, "-q")
                self.assertEqual((done.out, done.err), ("", ""))
                self.assertEqual(steps_done(self.out), at)
                self.assertFalse(os.path.exists(self.out))
                self.train("-q", "--resume")
                self.assertDone(whole, at)

    def test_ctrl_c_inside_a_save(self):
        """Whatever had been done is saved, or what was saved before is still there."""
        whole = self.undisturbed()
        for name, nth in (("fsync", 1), ("fsync", 2), ("replace", 2), ("replace", 3)):
            with self.subTest(name=name, nth=nth):
                self.clear()
                with failing(name, nth, KeyboardInterrupt):
                    self.train("-q", code=130)
                self.assertEqual(steps_done(self.out), (None, EVERY, EVERY)[nth - 1])
                self.train("-q", *["--resume"] * (nth > 1))
                self.assertDone(whole, f"{name} {nth}")

    def test_going_on_again_and_again(self):
        whole = self.undisturbed()
        self.interrupted(3, "-q")
        for _ in range(3):
            self.interrupted(7, "-q", "--resume")
        self.assertEqual(steps_done(self.out), 24)
        self.train("-q", "--resume", "--workers", "2")
        self.assertDone(whole)

    def test_what_was_said_when_it_began_need_not_be_said_again(self):
        """Whatever the options that are left out, the run is the one that was begun."""
        for options in (("--context", "7"), ("--width", "6", "--heads", "3"), ("--seed", "9"),
                        ("--norm", "rms", "--gated", "--positions", "none"),
                        ("--batch", "2", "--rate", "0.01")):
            with self.subTest(options=options):
                whole = self.undisturbed(*options, steps=8)
                self.interrupted(5, "-q", *options, steps=8)
                done = here("train", self.text, "--out", self.out, "--resume", "-q",
                            "--workers", "1")
                self.assertEqual((done.code, done.err), (0, ""))
                self.assertDone(whole, options)

    def test_some_of_it_may_be_said_again(self):
        options = ("--width", "6", "--heads", "3", "--seed", "9")
        whole = self.undisturbed(*options, steps=8)
        for said in (("--heads", "3"), ("--seed", "9", "--context", "5"), ("--steps", "8")):
            with self.subTest(said=said):
                self.clear()
                self.interrupted(2, "-q", *options, steps=8)
                done = here("train", self.text, "--out", self.out, "--resume", "-q",
                            "--workers", "1", *said)
                self.assertEqual((done.code, done.err), (0, ""))
                self.assertDone(whole, said)

    def test_a_run_that_was_done_but_for_its_model(self):
        whole = self.undisturbed(steps=EVERY)
        with failing("replace", 3, KeyboardInterrupt):
            self.train("-q", steps=EVERY, code=130)
        self.assertEqual(steps_done(self.out), EVERY)
        done = self.train("--resume", steps=EVERY)
        self.assertDone(whole)
        self.assertIn(f"{EVERY} steps", done.out)


@unittest.skipUnless(hasattr(os, "killpg"), "this system has no process groups")
class KilledTest(FolderCase):
    def assertGoesOn(self, whole, what):
        """Whatever is there, the run comes to those bytes: from the file it left, or anew."""
        if os.path.exists(self.out + ".resume"):
            self.train("-q", "--resume", steps=55)
        elif not os.path.exists(self.out):
            self.train("-q", steps=55)
        self.assertDone(whole, what)

    def test_kill_9_at_random_moments(self):
        begin = time.monotonic()
        self.assertEqual(killed_after(60, *self.arguments(steps=55)), 0)
        seconds = time.monotonic() - begin
        whole = self.content()
        for seed in range(3):
            after = random.Random(seed).uniform(0.2, 1) * seconds
            with self.subTest(seed=seed, after=after):
                self.clear()
                killed_after(after, *self.arguments(steps=55))
                self.assertGoesOn(whole, f"seed {seed}, killed after {after:.3f} s")

    def test_kill_9_inside_a_save(self):
        whole = self.undisturbed(steps=55)
        for point, nth in (("half", 3), ("after replace", 2), ("before remove", 1)):
            with self.subTest(point=point, nth=nth):
                self.clear()
                code = killed_inside(point, nth, *self.arguments(steps=55))
                self.assertTrue(is_killed(code), code)
                self.assertIsNotNone(steps_done(self.out))
                self.assertGoesOn(whole, f"{point} {nth}")

    def test_ctrl_c_in_a_terminal(self):
        """Every process of the group gets the signal, the workers too."""
        whole = self.undisturbed("--batch", "3", steps=40)
        for workers in ("1", "2"):
            with self.subTest(workers=workers):
                self.clear()
                options = ("--batch", "3", "--workers", workers)
                process = begun(*self.arguments(*options, steps=40))
                try:
                    self.assertTrue(process.stderr.readline().startswith(b"4/40 loss"))
                    os.killpg(process.pid, signal.SIGINT)
                    said = process.stderr.read()
                    self.assertEqual(process.wait(), 130, said)
                finally:
                    ended(process)
                self.assertNotIn(b"Traceback", said)
                self.assertNotIn(b"error", said)
                self.assertTrue(4 <= steps_done(self.out) < 40)
                self.train("-q", "--resume", "--batch", "3", steps=40)
                self.assertDone(whole, f"{workers} workers")

    def test_a_killed_run_leaves_no_worker_behind(self):
        process = begun(*self.arguments("--batch", "3", "--workers", "2", steps=10 ** 6 // 2))
        try:
            while not os.path.exists(self.out + ".resume"):
                time.sleep(0.02)
            time.sleep(0.3)                 # both workers work
            process.kill()
            process.communicate(timeout=40)     # they hold the other end of this pipe
        except subprocess.TimeoutExpired:
            self.fail("40 s after the run was killed, its workers are still there")
        finally:
            ended(process)


# ---- what cannot be done ----

class BadInputTest(FolderCase):
    def put(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def test_usage(self):
        out = ("--out", self.out)
        for words, argv in (("takes a text file, or --task echo", out),
                            ("takes a text file, or --task echo",
                             (self.text, "--task", "echo", *out)),
                            ("nowhere to write", (self.text,)),
                            ("nowhere to write", (self.text, "--resume")),
                            ("--task", ("--task", "ehco", *out)),
                            ("--steps", (self.text, *out, "--steps", "0")),
                            ("--width", (self.text, *out, "--width", "1.5")),
                            ("--batch", (self.text, *out, "--batch", "-1")),
                            ("--rate", (self.text, *out, "--rate", "nan")),
                            ("--rate", (self.text, *out, "--rate", "-1")),
                            ("--workers", (self.text, *out, "--workers", "0")),
                            ("--norm", (self.text, *out, "--norm", "batch")),
                            ("--stesp", (self.text, *out, "--stesp", "5")),
                            ("no place", (self.text, "another.txt", *out))):
            with self.subTest(argv=argv[-2:]):
                self.assertRefused(2, words, "train", *argv)

    def test_what_is_no_text(self):
        for words, path in (("is empty", self.put("empty.txt", b"")),
                            ("byte 2 is wrong", self.put("bytes.txt", b"ab\xff" * 100)),
                            ("byte 0 is wrong", self.put("wide.txt", TEXT.encode("utf-16"))),
                            ("NUL", self.put("nul.txt", b"ab\0" * 100)),
                            ("No such file", self.path("missing.txt")),
                            ("directory", self.folder),
                            ("a context of 5 needs at least 6", self.put("short.txt", b"abcdefg")),
                            ("needs at least", self.put("one.txt", b"a"))):
            with self.subTest(words):
                self.assertRefused(3, words, "train", path, "--out", self.out, *TINY)

    def test_what_is_no_model(self):
        for words, options in (("cannot be cut into 3 heads", ("--width", "8", "--heads", "3")),
                               ("cannot be cut into 8 heads", ("--width", "4", "--heads", "8")),
                               ("even", ("--width", "3", "--positions", "rotary")),
                               ("needs at least 1001", ("--context", "1000"))):
            with self.subTest(words):
                self.assertRefused(3, words, "train", *self.arguments(*options))

    def test_a_context_in_which_nothing_can_be_scored(self):
        """Known before any work, and not found out when all of it is done."""
        self.assertRefused(3, "context", "train", *self.arguments("--context", "1"))
        for n in ("1", "4", "8"):
            self.assertRefused(3, "context", "train", "--task", "echo", "--out", self.out, *TINY,
                               "--context", n)

    def test_a_rate_that_is_too_high(self):
        """After the last step nothing is left to notice it but the file, which is of float32."""
        for rate, steps in (("1e30", 9), ("1e200", 9), ("1e200", 1)):
            with self.subTest(rate=rate, steps=steps):
                self.clear()
                done = here("train", *self.arguments("-q", "--rate", rate, "--warm-up", "1",
                                                     steps=steps))
                self.assertEqual(done.code, 3, done.err)
                self.assertIn("a smaller learning rate may help", done.err)
                self.assertFalse(os.path.exists(self.out))

    def test_where_nothing_can_be_written(self):
        in_a_file = os.path.join(self.text, "model.safetensors")
        nowhere = os.path.join(self.folder, "no", "such", "folder", "model.safetensors")
        for words, out in (("cannot be written: Not a directory", in_a_file),
                           ("cannot be written: No such file", nowhere),
                           ("exists", self.folder)):
            with self.subTest(words):
                self.assertRefused(4, words, "train", self.text, "--out", out, *TINY)

    def test_a_folder_in_the_models_place_is_noticed_before_the_work(self):
        os.mkdir(self.out)
        done = self.assertRefused(4, "", "train", *self.arguments("--force"))
        self.assertNotIn("loss", done.err)

    def test_a_name_that_is_not_unicode(self):
        out = os.fsdecode(os.path.join(os.fsencode(self.folder), b"\xff.safetensors"))
        done = here("train", self.text, "--out", out, *TINY, "--steps", "1", "-q")
        self.assertIn(done.code, (0, 3, 4), done.err)


class BadResumeTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.interrupted(3, "-q")
        self.resume = self.out + ".resume"

    def test_there_is_nothing_to_resume(self):
        os.remove(self.resume)
        done = self.assertRefused(3, "No such file", "train", *self.arguments("--resume"))
        self.assertIn("leave --resume out", done.err)

    def test_other_options(self):
        for name, value in (("width", "8"), ("blocks", "2"), ("heads", "2"), ("hidden", "5"),
                            ("norm", "rms"), ("positions", "none"), ("context", "6"),
                            ("steps", "41"), ("batch", "2"), ("rate", "0.5"), ("seed", "2"),
                            ("warm-up", "6")):
            with self.subTest(name=name):
                self.assertRefused(3, f"is of a run with {name.replace('-', '_')}", "train",
                                   *self.arguments("--resume", "--" + name, value))
        self.assertRefused(3, "is of a run with gated", "train",
                           *self.arguments("--resume", "--gated"))

    def test_another_text_or_task(self):
        other = self.path("other.txt")
        with open(other, "w", encoding="utf-8") as file:
            file.write(TEXT + "!")
        self.assertRefused(3, "of a run on another text", "train", other, "--out", self.out,
                           *TINY, "--resume")
        self.assertRefused(3, "of a run on another task", "train", "--task", "echo", "--out",
                           self.out, "--resume", "--workers", "1")

    def test_a_file_that_is_damaged(self):
        data, seeds = self.content(self.resume), range(12)
        n_header = 8 + int.from_bytes(data[:8], "little")
        damaged = [b"", data[:5], data[:-1], data[:n_header], data + b"\0", b"{}" * 300,
                   self.content(self.text)]
        for seed in seeds:
            rng = random.Random(seed)
            damaged.append(data[:rng.randrange(len(data))])
            bent = bytearray(data)
            bent[rng.randrange(8, n_header)] = rng.choice(b'\0\xff\n{}[]",')
            damaged.append(bytes(bent))
        for i, content in enumerate(damaged):
            with open(self.resume, "wb") as file:
                file.write(content)
            with self.subTest(i=i):
                if bytes(content) != data:
                    done = here("train", *self.arguments("--resume", "-q", steps=4))
                    self.assertEqual(done.code, 3, f"{i}: {done.err}")
                    self.assertEqual(self.content(self.resume), content)
                    self.assertFalse(os.path.exists(self.out))

    def test_a_file_that_says_what_cannot_be(self):
        stored = safetensors.read(self.resume)
        tensors, metadata = dict(stored), dict(stored.metadata)
        model = self.path("a_model.safetensors")
        native.save(native.load_training(self.resume)[0].model, model)
        for changed in ({"about": "[]"}, {"about": '{"recipe": 7}'}, {"about": "{}"},
                        {"step": "-1"}, {"step": "1e3"}, {"settings": "7"},
                        {"random_state": "x"}, {"format": "pyres/9 training"}):
            with self.subTest(changed=changed):
                safetensors.write(self.resume, tensors, dict(metadata, **changed), dtype="F64")
                self.assertRefused(3, "model.safetensors.resume", "train",
                                   *self.arguments("--resume"))
        os.replace(model, self.resume)
        self.assertRefused(3, "training", "train", *self.arguments("--resume"))


class FullDiskTest(FolderCase):
    """A disk that is full at one of the three saves."""

    def test_what_was_there_stays_and_the_run_goes_on_once_there_is_room(self):
        whole = self.undisturbed()
        for name, saves in (("mkdtemp", (1,)), ("half", (1, 2, 3)), ("fsync", (2,)),
                            ("replace", (3,))):
            for nth in saves:
                with self.subTest(name=name, nth=nth):
                    self.clear()
                    with failing(name, nth, FULL):
                        done = self.train("-q", code=4)
                    self.assertIn("cannot be written: No space left", done.err)
                    self.assertEqual(done.out, "")
                    self.assertEqual(steps_done(self.out), (None, 0, EVERY)[nth - 1])
                    left = [".resume"] * (nth > 1)
                    self.assertEqual(sorted(os.listdir(self.folder)),
                                     ["model.safetensors" + end for end in left] + ["some.txt"])
                    self.train("-q", *["--resume"] * (nth > 1))
                    self.assertDone(whole, f"{name} {nth}")

    def test_with_force_too_the_old_files_stay(self):
        for name in ("model.safetensors", "model.safetensors.resume"):
            with open(self.path(name), "wb") as file:
                file.write(b"mine")
        for part in ("half", "fsync", "replace"):
            before = self.contents()
            with failing(part, 1, FULL):
                self.train("-q", "--force", code=4)
            self.assertEqual(self.contents(), before)
        with failing("replace", 3, FULL):
            self.train("-q", "--force", code=4)
        self.assertEqual(self.content(), b"mine")
        self.assertEqual(steps_done(self.out), EVERY)

    def test_ctrl_c_when_the_disk_is_full(self):
        """There is no room for what was done since the last save; that one is still there."""
        with failing("fsync", 2, FULL):
            done = self.interrupted(5, "-q", code=4)
        self.assertIn("cannot be written: No space left", done.err)
        self.assertEqual(steps_done(self.out), 0)


# ---- generate ----

class GenerateTest(FolderCase):
    def setUp(self):
        super().setUp()
        # a model whose context is of 12 characters
        self.train("-q", "--context", "12", steps=3)
        self.model = pyres.load(self.out)

    def generate(self, *argv, **settings):
        done = here("generate", *argv, "--model", self.out, **settings)
        self.assertEqual((done.code, done.err), (0, ""))
        return done.out

    def test_a_text_goes_on(self):
        new = pyres.generate(self.model, "the c", 4)
        written = "the c" + self.model.tokenizer.decode(new)
        self.assertEqual(self.generate("the c", "-n", "4", "-q"), f"'{written}'\n")
        self.assertEqual(self.generate("the c", "-n", "4"), f"'{written}'\n")
        self.assertEqual(self.generate("-", "-n", "4", stdin="the c\n"), f"'{written}'\n")
        self.assertEqual(self.generate("the c", "-n", "0"), "'the c'\n")

    def test_the_json(self):
        for n, temperature, seed in ((4, 0.0, 0), (5, 0.8, 3), (0, 1.0, 1)):
            answer = json.loads(self.generate(
                "the c", "-n", str(n), "--temperature", str(temperature), "--seed", str(seed),
                "--json"))
            new = pyres.generate(self.model, "the c", n, temperature, seed)
            self.assertEqual(answer["result"],
                             {"tokens": new, "text": self.model.tokenizer.decode(new)})
            self.assertEqual(answer["input"], {
                "text": "the c", "tokens": self.model.tokenizer.encode("the c"), "n": n,
                "temperature": temperature, "seed": seed})
            self.assertEqual((answer["notes"], answer["model"]["name"]), ([], "model"))
            self.assertEqual((answer["schema"], answer["command"]), ("pyres/1", "generate"))

    def test_ids_go_on(self):
        answer = json.loads(self.generate("--ids", "3,1,4", "-n", "2", "--json"))
        self.assertEqual(answer["result"]["tokens"], pyres.generate(self.model, [3, 1, 4], 2))
        self.assertIsNone(answer["input"]["text"])
        written = self.model.tokenizer.decode(answer["result"]["tokens"])
        self.assertEqual(self.generate("--ids", "3,1,4", "-n", "2", "-q"), f"'{written}'\n")
        done = here("generate", "--model", GPT2, "--ids", "3,1,4", "-n", "3", "-q")
        new = pyres.generate(pyres.load(GPT2), [3, 1, 4], 3)
        self.assertEqual((done.code, done.out.replace(",", " ").split()),
                         (0, [str(token) for token in new]))

    def test_a_full_context_is_said(self):
        for text, n in (("the c", 7), ("the cat sat ", 0)):
            with self.subTest(text=text):
                out = self.generate(text, "-n", "40")
                note = f"stopped after {n} new tokens: the context of 12 is full"
                self.assertEqual(out.splitlines()[1:], [note])
                self.assertEqual(len(self.generate(text, "-n", "40", "-q")), len("''\n") + 12)
                answer = json.loads(self.generate(text, "-n", "40", "--json"))
                self.assertEqual((answer["notes"], len(answer["result"]["tokens"])), ([note], n))
                self.assertNotIn("stopped", self.generate(text, "-n", str(n)))

    def test_the_same_seed_is_the_same_text(self):
        by_seed = [self.generate("t", "--temperature", "1.5", "--seed", str(seed))
                   for seed in (1, 2, 3, 1, 2, 3)]
        self.assertEqual(by_seed[:3], by_seed[3:])
        self.assertEqual(len(set(by_seed)), 3)
        self.assertEqual(len({self.generate("t", "--seed", seed) for seed in "123"}), 1)

    def test_what_cannot_be_done(self):
        model = ("--model", self.out)
        for code, words, argv in (
                (3, "the character 'X' at 4", ("the X", *model)),
                (3, "13 tokens, the model takes 1 to 12", ("the cat sat o", *model)),
                (3, "0 tokens", ("", *model)), (3, "vocabulary", ("--ids", "3,99", *model)),
                (3, "has no tokenizer", ("the c", "--model", GPT2)),
                (3, "no/such", ("the c", "--model", "no/such")),
                (3, "some.txt", ("the c", "--model", self.text)),
                (2, "nothing", model), (2, "both", ("the c", "--ids", "1", *model)),
                (2, "--temperature", ("the c", "--temperature", "-1", *model)),
                (2, "--temperature", ("the c", "--temperature", "nan", *model)),
                (2, "--temperature", ("the c", "--temperature", "inf", *model)),
                (2, "-n", ("the c", "-n", "-1", *model)),
                (2, "--seed", ("the c", "--seed", "x", *model))):
            with self.subTest(argv=argv):
                self.assertRefused(code, words, "generate", *argv)

    def test_numbers_that_have_gone_wrong(self):
        w = self.model.weights
        bias = [float("nan")] * self.model.config.d_vocab
        pyres.save(self.model._replace(weights=w._replace(b_unembed=bias)), self.out)
        for temperature in ("0", "1"):
            self.assertRefused(3, "logit 0 is nan", "generate", "the c", "--model", self.out,
                               "--temperature", temperature)

    def test_a_mark_before_every_text(self):
        tokens = ["<s>"] + self.model.tokenizer.tokens[1:]
        pyres.save(self.model._replace(tokenizer=Characters(tokens, bos=0)), self.out)
        answer = json.loads(self.generate("the", "-n", "2", "--json"))
        self.assertEqual(answer["input"]["tokens"][0], 0)
        self.assertEqual(len(answer["input"]["tokens"]), 4)


if __name__ == "__main__":
    unittest.main()
