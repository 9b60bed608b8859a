"""What was received, message by message, and what must be true of it at the end.

A message is known by its number, which its body repeats (see Peer.java); where it lay is broker, queue and offset.
"""
import base64
import json

from processes import Failed, Tail

SIZE = 1024


def body(n, size=SIZE):
    word = f"{n} "
    return (word * (size // len(word) + 1))[:size]


class Ledger:
    """Deliveries of one topic, of all members of a group."""

    def __init__(self):
        self.places = {}   # (broker, queue, offset) -> number
        self.times = {}    # number -> deliveries
        self.members = {}  # member -> deliveries
        self.bad = []
        self.repeats = []
        self.tails = []

    def java(self, member, path):
        """Follows the ledger file of `Peer consume`."""
        self.tails.append((member, Tail(path), self.java_line))

    def windlass(self, member, path):
        """Follows the standard output of `windlass consume --json`."""
        self.tails.append((member, Tail(path), self.windlass_line))

    def read(self):
        """Takes in what has come since, and returns how many different messages there are."""
        for member, tail, take in self.tails:
            for line in tail.lines():
                take(member, line)
        return len(self.times)

    def java_line(self, member, line):
        n, broker, queue, offset = line.decode().split(" ")
        self.add(member, int(n), broker, int(queue), int(offset))

    def windlass_line(self, member, line):
        message = json.loads(line)
        text = message["body"] if "body" in message else base64.b64decode(message["body_base64"]).decode("latin-1")
        number = text.split(" ", 1)[0]
        if not number.isdigit() or text != body(int(number), len(text)) or len(text) != SIZE:
            self.bad.append((message["broker"], message["queue"], message["offset"]))
            return
        self.add(member, int(number), message["broker"], message["queue"], message["offset"])

    def add(self, member, n, broker, queue, offset):
        place = (broker, queue, offset)
        if place in self.places or n in self.times:
            self.repeats.append((n, *place))
        self.places[place] = n
        self.times[n] = self.times.get(n, 0) + 1
        self.members[member] = self.members.get(member, 0) + 1

    def check(self, count, repeats_allowed=False, dense=True):
        """All of 0..count, each once, and (`dense`) every queue of the fresh topic whole from offset 0."""
        wrong = []
        missing = [n for n in range(count) if n not in self.times]
        foreign = [n for n in self.times if n >= count]
        if missing:
            wrong.append(f"{len(missing)} missing, first {missing[:5]}")
        if foreign:
            wrong.append(f"{len(foreign)} foreign, first {foreign[:5]}")
        if self.bad:
            wrong.append(f"{len(self.bad)} damaged bodies, first at {self.bad[:3]}")
        if self.repeats and not repeats_allowed:
            wrong.append(f"{len(self.repeats)} repeats, first {self.repeats[:3]}")
        if dense:
            queues = {}
            for broker, queue, offset in self.places:
                queues.setdefault((broker, queue), []).append(offset)
            for queue, offsets in queues.items():
                if sorted(offsets) != list(range(len(offsets))):
                    wrong.append(f"queue {queue} has holes: {len(offsets)} offsets up to {max(offsets)}")
        if wrong:
            raise Failed("; ".join(wrong))

    def check_against(self, acknowledged, count):
        """After kills: each acknowledged message came from the place its receipt names; nothing foreign came."""
        wrong = [f"damaged body at {place}" for place in self.bad[:3]]
        for n, place in acknowledged.places.items():
            if self.places.get(place) != n:
                wrong.append(f"message {n} was acknowledged at {place}, where {self.places.get(place)} came from")
        wrong += [f"foreign message {n}" for n in self.times if n >= count]
        if wrong:
            raise Failed(f"{len(wrong)} wrong: " + "; ".join(wrong[:5]))
