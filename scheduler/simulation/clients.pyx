"""Those who ask: prompts that share stretches with each other and with earlier conversations, and aborts at random.

Knows of the scheduler only `submit` and `abort`.
"""

import numpy as np

from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import Refused, RequestSpec


cdef class Clients:
    """Prompts of up to `longest` tokens; one of that length must be refused."""

    def __cinit__(self, Dice dice, Oracle oracle, knobs, int longest):
        self.dice = dice
        self.oracle = oracle
        self.knobs = knobs
        self.longest = longest
        self.chance_submit = knobs.submit
        self.chance_abort = knobs.abort
        self.chance_deadline = knobs.deadline
        self.target = knobs.live
        self.prefixes = [[dice.draw(knobs.vocab) for _ in range(longest)] for _ in range(4)]
        self.next_id = 1

    cdef int submit(self, object scheduler, double now) except -1:
        """Perhaps one request more."""
        cdef Dice dice = self.dice
        cdef int shared, extra, length, vocab = self.knobs.vocab, room = self.longest - 1
        cdef list base, tokens
        if len(self.oracle.live) >= self.target or not dice.luck(self.chance_submit):
            return 0
        if not self.oracle.has_room(self.next_id):
            return 0
        base = self.prefixes[dice.draw(len(self.prefixes))]
        shared = dice.draw(min(room, len(base)) + 1)
        extra = 1 + dice.draw(self.knobs.tail)
        tokens = base[:shared] + [dice.draw(vocab) for _ in range(extra)]
        if not dice.luck(self.knobs.too_long):
            tokens = tokens[:room]
        length = len(tokens)
        spec = RequestSpec(self.next_id, np.array(tokens, np.int32), 1 + dice.draw(self.knobs.output))
        spec.min_tokens = dice.draw(4)
        spec.stop_token_ids = (dice.draw(vocab), dice.draw(vocab)) if dice.luck(512) else ()
        spec.priority = dice.draw(3) if dice.luck(self.knobs.priority) else 0
        spec.salt = b"tenant" if dice.luck(self.knobs.salt) else b""
        if dice.luck(self.chance_deadline):
            spec.deadline = now + 0.001 * (1 + dice.draw(200))
        try:
            scheduler.submit(spec, now)
        except Refused as refusal:
            if refusal.code != "queue_full" and length < self.longest:
                raise Violation(f"a request of {length} tokens was refused: {refusal.message}") from refusal
            return 0
        if length >= self.longest:
            raise Violation(f"a request of {length} tokens was accepted; {self.longest} tokens fit in all")
        self.oracle.open(spec, tokens)
        self.next_id += 1
        return 0

    cdef int abort(self, object scheduler, double now) except -1:
        """Perhaps one request less; 1 when one was aborted."""
        cdef int64_t request_id
        if not self.dice.luck(self.chance_abort) or not self.oracle.live:
            return 0
        request_id = self.oracle.live[self.dice.draw(len(self.oracle.live))]
        self.oracle.find(request_id).aborted = 1
        if not scheduler.abort(request_id, now):
            raise Violation(f"live request {request_id} was not found by abort")
        return 1

    cdef int remember(self, Record* record) except -1:
        """A request ended: perhaps the next turn of its conversation begins with all of it."""
        cdef int i
        if self.dice.luck(256):
            self.prefixes[self.dice.draw(len(self.prefixes))] = [record.tokens[i] for i in range(record.count)]
        return 0
