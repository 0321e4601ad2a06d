"""How many tokens a step takes that also decodes: rows that decode wait for the prompts computed beside them.

Owns the turns of prefill and decode. Knows sizes and counts, not requests, pages or rows.

Prompts that wait are held back while rows decode, so that several are computed one after the other and the rows have
their steps to themselves in between. In a closed loop, where a client asks again when it was answered, time to the first
token plus the time of the others is what the work takes; this decides the split of the two.

    decode steps alone | steps with prompts, until none waits | decode steps alone | …
                       ^ held for long enough, or three prompts wait for each two rows, or one has its pages already

How long is long enough follows the load: where few prompts come, nothing is gained by gathering them, and one that comes
alone starts at once. A step with prompts takes twice as many tokens as make its arithmetic as long as the rest of it
(reading the weights, launches): most of the speed of a large step, and a short wait for the rows that decode.
"""

cdef enum:
    # Over so many steps the load is averaged.
    LOAD_STEPS = 256
    # Prompts are held for as long as may be where a third of the balance, or more, comes in every step.
    FULL_LOAD = 3
    # A step has at least so many tokens for each request, so that prefill keeps its share where there are many.
    TOKENS_A_REQUEST = 12
    # A step of twice as many counts for two when prompts are held.
    LONG_STEP = 128


cdef class Pace:
    """`hold`: the most steps for which a prompt is held, 0 for none; `balance`: see the module, 0 for no bound."""

    def __cinit__(self, int hold, int balance):
        self.hold = hold
        self.balance = balance

    cdef int budget(self, int num_decode, int waiting, int ready, int most) noexcept:
        """Tokens of a step with `num_decode` > 0 decode rows, which are counted: at most `most`; `num_decode` for no
        prompt. `waiting` prompts have no pages yet and may be held, `ready` ones (begun, or copied from another tier,
        or pushed out) may not.
        """
        if self.hold == 0:
            return most
        if waiting + ready == 0:
            self.open = 0
            self.held = 0
            return num_decode
        if not (self.open or ready or 2 * waiting >= 3 * num_decode or self.held >= self.patience()):
            # The more rows, the longer the step.
            self.held += max(1, (num_decode + waiting + LONG_STEP // 2) // LONG_STEP)
            self.c_held += 1
            return num_decode
        self.open = 1
        return self.size(num_decode + waiting + ready, most)

    cdef int patience(self) noexcept:
        """For how many steps prompts are held at the present load."""
        if self.balance == 0:
            return self.hold
        return <int>(self.hold * min(1.0, FULL_LOAD * self.load / self.balance))

    cdef int size(self, int requests, int most) noexcept:
        """Tokens of a step with prompts, in sizes for which there are graphs."""
        cdef int least = TOKENS_A_REQUEST * requests
        cdef int grain = 64 if least <= 512 else 256
        if self.balance == 0:
            return most
        return min(most, max(2 * self.balance, (least + grain - 1) // grain * grain))

    cdef void took(self, int num_prefill, int left) noexcept:
        """What a step with decode rows came to: tokens of prompts, and tokens that no prompt needed or could take."""
        self.load += (num_prefill - self.load) / LOAD_STEPS
        if num_prefill:
            self.held = 0
            if left > 0:
                self.open = 0
