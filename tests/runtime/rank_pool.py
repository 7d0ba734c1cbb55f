"""Four rank processes that live as long as the tests do, and run one case after the other.

::

    test  --- {"case": "gradients", "world": 3, ...} --->  ranks 0, 1, 2      one line of JSON each, in and out
          <-- {"answer": ..., "threads": []} -----------

A rank that fails or hangs fails the test, with the traceback of every rank that has one, and the next test gets four
new processes.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RANKS = 4
START = 60.0
"""Seconds in which the ranks must have imported PyTorch and met."""


class RanksFailed(AssertionError):
    """What went wrong on which rank."""


class _Rank:
    """The two ends of a rank's pipes that are not the rank's."""

    def __init__(self):
        self.its_requests, requests = os.pipe()
        answers, self.its_answers = os.pipe()
        self._requests, self._lines = os.fdopen(requests, "w"), os.fdopen(answers)
        self._answers = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._lines:
            self._answers.put(json.loads(line))
        self._answers.put({"error": "the process ended"})

    def ask(self, request):
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            return  # its answers have ended as well, and will say so

    def answer(self, until):
        try:
            return self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return {"error": "no answer in time"}

    def stop(self):
        self._listener.join()
        for pipe in (self._requests, self._lines):
            pipe.close()


class RankPool:
    """Runs cases on real processes, which are started when the first case comes.

    Args:
        patience: seconds in which a case must be done.
    """

    def __init__(self, patience=30.0):
        self._ranks = []
        self._patience = patience

    def run(self, case, world, **arguments):
        """Has the first ``world`` ranks run a case of pipeline_cases.py; returns what each of them answers."""
        if not self._ranks:
            self._start()
        chosen = self._ranks[:world]
        for rank in chosen:
            rank.ask({"case": case, "world": world, "arguments": arguments})
        until = time.monotonic() + self._patience
        answers = []
        for rank in chosen:
            answers.append(rank.answer(until))
            if "error" in answers[-1]:
                until = min(until, time.monotonic() + 2.0)  # the others may have something to say about it
        failed = {rank: answer["error"] for rank, answer in enumerate(answers) if "error" in answer}
        if failed:
            written = self._written()
            self.stop()
            texts = [f"rank {rank}: {text}\n{written[rank]}" for rank, text in failed.items()]
            raise RanksFailed("\n".join([f"{case} {arguments}", *texts]))
        left = {rank: answer["threads"] for rank, answer in enumerate(answers) if answer["threads"]}
        assert not left, f"threads that outlive their pipeline: {left}"
        return [answer["answer"] for answer in answers]

    def _start(self):
        self._folder = tempfile.TemporaryDirectory(prefix="thinpipe-ranks-")
        store = Path(self._folder.name) / "store"
        self._ranks = [_Rank() for _ in range(RANKS)]
        ends = [end for rank in self._ranks for end in (rank.its_requests, rank.its_answers)]
        script = Path(__file__).parent / "pipeline_ranks.py"
        command = [sys.executable, script, store, *map(str, ends)]
        self._process = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL, start_new_session=True)
        for end in ends:
            os.close(end)
        until = time.monotonic() + START
        for rank in self._ranks:
            if rank.answer(until) != "here":
                written = "\n".join(self._written())
                self.stop()
                raise RanksFailed(f"not all ranks came: {written}")

    def _written(self):
        """What each rank wrote, last of all where each of its threads is."""
        os.killpg(self._process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        files = [Path(self._folder.name) / f"store.{rank}.errors" for rank in range(RANKS)]
        return [file.read_text()[-6000:] if file.exists() else "" for file in files]

    def stop(self):
        """Ends all processes."""
        if not self._ranks:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for rank in self._ranks:
            rank.stop()
        self._ranks = []
        self._folder.cleanup()
