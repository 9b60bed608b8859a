"""Child processes that end: every wait has a deadline, and nothing started here outlives the script.

Used by peers.py and the scripts beside it. Knows nothing of queues.
"""
import atexit
import json
import os
import random
import signal
import socket
import subprocess
import time


class Late(Exception):
    """Something did not happen before its deadline."""


class Deadline:
    """A point in time; `left` raises once it has passed, so that no wait can be forgotten."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self, what):
        left = self.end - time.monotonic()
        if left <= 0:
            raise Late(what)
        return left

    def until(self, condition, what):
        """Polls `condition` until it gives something true, and returns that."""
        while True:
            found = condition()
            if found:
                return found
            self.left(what)
            time.sleep(0.02)


class Child:
    """A process group with its output in files: `NAME.out` and `NAME.err` of `folder`."""

    alive = []

    def __init__(self, name, words, folder, stdin=None, env=None, cwd=None):
        os.makedirs(folder, exist_ok=True)
        self.name = name
        self.out = os.path.join(folder, name + ".out")
        self.err = os.path.join(folder, name + ".err")
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=stdin or subprocess.PIPE, stdout=out, stderr=err,
                env=dict(os.environ, **(env or {})), cwd=cwd, start_new_session=True)
        Child.alive.append(self)

    @property
    def code(self):
        return self.process.poll()

    def wait(self, deadline, what=None):
        """The exit code."""
        what = what or f"the end of {self.name}"
        try:
            code = self.process.wait(deadline.left(what))
        except subprocess.TimeoutExpired:
            raise Late(what) from None
        self.close()
        return code

    def finish(self, deadline):
        """Closes the standard input, which ends `Peer consume`, and waits."""
        if self.process.stdin:
            self.process.stdin.close()
        return self.wait(deadline)

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        """A crash, or the end of the script."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self):
        if self in Child.alive:
            Child.alive.remove(self)
        if self.process.stdin:
            self.process.stdin.close()

    def must(self, deadline, code=0):
        found = self.wait(deadline)
        if found != code:
            raise Failed(f"{self.name} ended with {found}, not {code}: {self.tail()}")
        return self

    def last_json(self):
        """The last line of the output that is an object."""
        for line in reversed(lines_of(self.out)):
            if line.startswith("{"):
                return json.loads(line)
        raise Failed(f"{self.name} printed no JSON line: {self.tail()}")

    def tail(self, lines=12):
        return "\n".join(["", *lines_of(self.out)[-3:], *lines_of(self.err)[-lines:]])[-4000:]


class Failed(Exception):
    """A check did not hold."""


class Tail:
    """The whole lines that a growing file has got since the last call."""

    def __init__(self, path):
        self.path, self.at, self.rest = path, 0, b""

    def lines(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read()
        except FileNotFoundError:
            return []
        self.at += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        return whole


def lines_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def free_port(neighbours=()):
    """A port that is free now, as are those at the given distances.

    It lies below those that the system gives to outgoing connections: one of them could take it before its owner, which
    needs seconds to start, has bound it.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            above = int(file.read().split()[0])
    except OSError:
        above = 32768
    for _ in range(200):
        with socket.socket() as first:
            port, others = random.randrange(10_000, max(above, 12_000) - 16), []
            try:
                first.bind(("0.0.0.0", port))
                for distance in neighbours:
                    other = socket.socket()
                    others.append(other)
                    other.bind(("0.0.0.0", port + distance))
                return port
            except (OSError, OverflowError):
                continue
            finally:
                for other in others:
                    other.close()
    raise Failed("no free port")


def end_all():
    for child in list(Child.alive):
        try:
            child.kill()
        except OSError:
            pass


def guard(seconds):
    """From here on the script ends by itself after `seconds`, and takes its children with it however it ends."""
    def stop(number, _frame):
        # not one of our own exceptions: no part may take it for its own failure and go on
        late = f"{seconds} s are over" if number == signal.SIGALRM else f"signal {number}"
        raise SystemExit(f"FAILED: the run was ended: {late}")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop)
    signal.alarm(seconds)
    atexit.register(end_all)
