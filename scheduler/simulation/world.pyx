"""The simulator's world: clients, an executor, copies and misfortune around one real scheduler.

Drives the scheduler through its public interface only, a turn at a time, and raises Violation at the first thing that is
not as it must be. What each part owns is in its own module.
"""

from libc.stdint cimport int64_t, uint64_t

from tsd.scheduler.simulation.clients cimport Clients
from tsd.scheduler.simulation.copies cimport Copies
from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.executor cimport Executor, Flight
from tsd.scheduler.simulation.oracle cimport Oracle, Record

from tsd.scheduler.simulation.faults import NEVER, Faults
from tsd.scheduler.simulation.subscriber import Subscriber
from tsd.scheduler.simulation.turns import Turns
from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import StepLanded

cdef class World:
    """One life. `start` makes a scheduler and is called again after each death; the disk outlives them all."""

    cdef readonly object scheduler
    cdef readonly int64_t step
    cdef readonly int deaths
    cdef readonly dict counters
    cdef readonly object subscriber
    cdef object start, config, knobs, faults, turns_taken
    cdef Dice dice
    cdef Oracle oracle
    cdef Clients clients
    cdef Executor executor
    cdef Copies copies
    cdef int64_t turns, soonest
    cdef int idle, patience, check_every, chance_land, chance_fail_row
    cdef double now
    cdef bint kv_events, deadlines

    def __init__(self, start, uint64_t seed, knobs, dict disk):
        self.start = start
        self.knobs = knobs
        self.scheduler = start()
        self.config = config = self.scheduler.config
        longest = min(config.max_model_len, config.num_pages * config.page_size)
        self.dice = Dice(seed)
        self.oracle = Oracle(seed, longest, knobs.vocab)
        self.clients = Clients(self.dice, self.oracle, knobs, longest)
        self.faults = Faults(seed, knobs, config.num_pages, config.host_pages, disk=config.disk_blocks > 0)
        self.soonest = self.faults.soonest
        self.subscriber = Subscriber()
        self.counters = {}
        self.patience = knobs.patience
        self.check_every = knobs.check_every
        self.chance_land = knobs.land
        self.chance_fail_row = knobs.fail_row
        self.deadlines = knobs.deadline > 0
        self.kv_events = config.kv_events
        self.be_born(disk)

    cdef int be_born(self, dict disk) except -1:
        """An engine process starts: empty memory, the disk as it is."""
        self.executor = Executor(self.config, self.oracle)
        self.turns_taken = Turns(self.config)
        self.copies = Copies(self.dice, self.executor, self.config, self.knobs, disk)
        self.scheduler.adopt_disk(list(disk))
        self.subscriber.clear()
        return 0

    cdef int die(self) except -1:
        """The engine process is gone between two calls: steps, copies and memory with it. The front tells every client.

        Events that the scheduler had made and nobody had taken are lost too.
        """
        self.copies.abandon()
        self.oracle.lose_all()
        self.take_counters()
        self.deaths += 1
        disk = self.copies.disk
        self.scheduler = self.start()
        self.be_born(disk)
        self.idle = 0
        return 0

    cdef int take_counters(self) except -1:
        for name, value in self.scheduler.counters.items():
            self.counters[name] = self.counters.get(name, 0) + value
        return 0

    cdef int befall(self) except -1:
        """Something that `faults` has planned for this turn."""
        withheld = self.faults.squeeze(self.turns)
        if withheld is not None:
            self.scheduler.withhold(*withheld)
        if self.faults.disk_turns(self.turns):
            self.copies.disk_full = not self.copies.disk_full
        if self.faults.crashes(self.turns):
            self.die()
        self.soonest = self.faults.soonest
        return 0

    # ---- a turn

    cdef int turn(self, bint submit) except -1:
        cdef object plan
        self.now += 0.001
        self.turns += 1
        if self.turns >= self.soonest:
            self.befall()
        if submit:
            self.clients.submit(self.scheduler, self.now)
        if self.clients.abort(self.scheduler, self.now):
            self.settle()
        if self.copies.moving:
            done = self.copies.step()
            if done is not None:
                self.scheduler.advance(done, self.now)
                self.executor.execute(self.copies.on_their_way)
                self.idle = 0
        plan = self.scheduler.next_plan(self.now)
        if self.deadlines:
            self.settle()
            self.oracle.check_deadlines(self.now)
        if plan is not None:
            self.launch(plan)
        if self.executor.may_land() and (plan is None or self.dice.luck(self.chance_land)):
            self.land()
        self.idle += 1
        if self.idle > self.patience and self.oracle.live:
            raise Violation(f"nothing has happened for {self.idle} turns; {len(self.oracle.live)} requests are live")
        if self.check_every and self.step % self.check_every == 0:
            self.scheduler.integrity(self.step % 64 == 0)
            if self.kv_events:
                self.subscriber.hear(self.scheduler.take_kv_events())
        return 0

    cdef int launch(self, object plan) except -1:
        self.turns_taken.see(self.scheduler, plan, self.copies.moving)
        self.executor.change_tables(plan)
        for move in plan.moves:
            self.copies.begin(move, plan.step)
        self.executor.launch(plan)
        self.executor.execute(self.copies.on_their_way)
        self.step += 1
        if plan.num_rows:
            self.idle = 0
        return 0

    cdef int land(self) except -1:
        """The oldest step in flight lands, and everything that follows from it is checked."""
        cdef Flight flight = self.executor.land()
        cdef tuple failed = ()
        if flight.rows and self.dice.luck(self.chance_fail_row):
            failed = self.executor.fail_a_row(flight, self.dice)
        sampled = flight.sampled()
        outcome = self.scheduler.advance(StepLanded(flight.step, sampled, failed), self.now)
        self.executor.deliver(flight, outcome)
        self.settle()
        self.executor.check_ends(outcome)
        return 0

    cdef int settle(self) except -1:
        """Takes the terminal events."""
        cdef Record* record
        for end in self.scheduler.take_finished():
            record = self.oracle.close(end, self.now)
            self.idle = 0
            self.clients.remember(record)
        return 0

    # ---- a life

    @property
    def tokens_checked(self) -> int:
        return self.oracle.tokens_checked

    def run(self, int64_t steps) -> None:
        """Runs until `steps` plans were launched."""
        cdef int64_t end = self.step + steps
        while self.step < end:
            self.turn(True)

    def drain(self) -> None:
        """No more requests: everything ends, and nothing is left."""
        self.come_to_rest()
        if self.oracle.live:
            raise Violation(f"requests {self.oracle.live[:5]} never ended")
        # From here on nothing befalls it any more.
        self.soonest = NEVER
        self.scheduler.withhold(0, 0)
        self.scheduler.integrity()
        blocks = dict(self.copies.disk)
        if self.config.disk_blocks and len(blocks) > self.config.disk_blocks:
            raise Violation(f"{len(blocks)} blocks are on the disk, which may hold {self.config.disk_blocks}")
        self.scheduler.flush_cache()
        self.scheduler.integrity()
        self.scheduler.flush_cache(disk=True)
        self.come_to_rest()
        self.scheduler.integrity()
        self.check_empty()
        self.copies.disk.update(blocks)

    cdef int come_to_rest(self) except -1:
        cdef int turns = 0
        while self.scheduler.has_work or self.executor.flights or self.copies.moving:
            self.turn(False)
            turns += 1
            if turns > 200_000:
                raise Violation("the scheduler does not come to rest")
        return self.settle()

    cdef int check_empty(self) except -1:
        """After a flush at rest every tier is free and every announced page withdrawn."""
        tiers = self.scheduler.snapshot()["tiers"]
        if tiers["device"]["free"] != self.config.num_pages:
            raise Violation(f"{self.config.num_pages - tiers['device']['free']} device pages leaked")
        if tiers["host"] is not None and tiers["host"]["free"] != self.config.host_pages:
            raise Violation(f"{self.config.host_pages - tiers['host']['free']} host pages leaked")
        if self.config.disk_blocks and self.copies.disk:
            raise Violation(f"{len(self.copies.disk)} blocks of the disk leaked")
        if self.scheduler.num_running_requests:
            raise Violation(f"{self.scheduler.num_running_requests} slots leaked")
        if self.kv_events:
            self.subscriber.hear(self.scheduler.take_kv_events())
            if self.subscriber.known:
                raise Violation(f"{len(self.subscriber.known)} announced pages were never withdrawn")
        return 0

    def close(self) -> dict:
        """The counters of all schedulers of this life, added up."""
        self.take_counters()
        return self.counters
