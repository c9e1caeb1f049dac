"""Fifty kills of one training run: what was saved is never lost, and the end is the same bytes.

Half of the kills come by the clock, at any moment; half come from inside a save, at each of its
steps, with half of the file written too.  After each the run goes on from what the kill has left.
"""
import os
import random
import signal
import sys
import time
import unittest

from tests.test_train_command import (POINTS, FolderCase, is_killed, killed_after, killed_inside,
                                      steps_done)

KILLS = 50


@unittest.skipUnless(hasattr(signal, "SIGKILL"), "this system has no kill -9")
class FiftyKillsTest(FolderCase):
    def go_on(self, run, *how, steps):
        """Begin or go on, as what is in the folder asks for; return the exit code."""
        resume = ["--resume"] if os.path.exists(self.out + ".resume") else []
        return run(*how, *self.arguments(*resume, steps=steps))

    def test_one_run_killed_fifty_times(self):
        steps = 1000
        begin = time.monotonic()
        self.assertEqual(self.go_on(killed_after, 600, steps=steps), 0)
        seconds = time.monotonic() - begin
        whole = self.content()
        os.remove(self.out)

        rng, kills, behind, runs = random.Random(1), 0, 0, 0
        while kills < KILLS:
            if kills % 2:
                how = killed_inside, rng.choice(POINTS[:-2]), rng.randrange(1, 4)
            else:
                # mostly soon, but now and then as late as the whole run ends
                how = killed_after, rng.uniform(0.3, 1) ** 3 * seconds
            code = self.go_on(*how, steps=steps)
            with self.subTest(kill=kills, how=how[1:]):
                done = steps_done(self.out)
                if code == 0 or done is None and os.path.exists(self.out):
                    self.assertDone(whole, f"after {kills} kills")
                    os.remove(self.out)
                    behind, runs = 0, runs + 1
                else:
                    self.assertTrue(is_killed(code), code)
                    self.assertGreaterEqual(done or 0, behind, "what was saved is lost")
                    behind = done or 0
                kills += is_killed(code)
        self.assertEqual(self.go_on(killed_after, 600, steps=steps), 0)
        self.assertDone(whole, f"after {kills} kills and {runs} other ends")

    def test_every_point_of_every_save_of_a_short_run(self):
        """Saves at 0, 25 and 50 steps, then the model; then what they need no more is removed."""
        steps = 50
        whole = self.undisturbed(steps=steps)
        for point in POINTS:
            for nth in range(1, 2 if "remove" in point else 5):
                with self.subTest(point=point, nth=nth):
                    self.clear()
                    code = self.go_on(killed_inside, point, nth, steps=steps)
                    self.assertTrue(is_killed(code), code)
                    if not os.path.exists(self.out) or steps_done(self.out) is not None:
                        self.assertEqual(self.go_on(killed_after, 600, steps=steps), 0)
                    self.assertDone(whole, f"{point} {nth}")


if __name__ == "__main__":
    sys.exit(unittest.main())
