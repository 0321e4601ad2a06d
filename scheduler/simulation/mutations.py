"""The mistakes that the simulator must catch: each a text that occurs once in one source file, and what replaces it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` in `file` (relative to the package) becomes `new`."""

    name: str
    file: str
    old: str
    new: str


CORE, TIERS, INDEX, REQUESTS = "scheduler/core.pyx", "scheduler/tiers.pyx", "cache/index.pyx", "scheduler/requests.pyx"
PAGES, RETRACTION, BATCH = "scheduler/pages.pyx", "scheduler/retraction.pyx", "scheduler/batch.pyx"
ADMISSION, LANDING, ENDING = "scheduler/admission.pyx", "scheduler/landing.pyx", "scheduler/ending.pyx"
MOVES, WITHHELD, DISK = "scheduler/moves.pyx", "scheduler/withheld.pyx", "cache/disk_map.pyx"
PACING = "scheduler/pacing.pyx"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("dropped free of private pages", PAGES, "        s.pool.give(pages[k])\n", "        pass\n"),
    Mutant("dropped release of references", PAGES, "        s.index.unref(nodes[k])\n", "        pass\n"),
    Mutant("skipped fence on a replaced page", PAGES, "s.fence.add(page, s.step - 1)", "s.pool.give(page)"),
    Mutant("fence lifted one step early", LANDING, "s.fence.lift(step)", "s.fence.lift(step + 1)"),
    Mutant(
        "pages of an ended request freed under a launched step",
        ENDING,
        "if r.flights == 0 and r.moves == 0:",
        "if True:",
    ),
    Mutant(
        "victim's pages freed under a launched step",
        RETRACTION,
        "    if r.flights == 0 and r.moves == 0:\n        park(s, at)\n    return 0\n\n\ncdef int spoil",
        "    park(s, at)\n    return 0\n\n\ncdef int spoil",
    ),
    Mutant("stale page count after a match", ADMISSION, "need = total - device_run", "need = total - run"),
    Mutant(
        "no roll-back of references",
        ADMISSION,
        "        for k in range(run - 1, -1, -1):\n            s.index.unref(s.scratch[k])\n",
        "",
    ),
    Mutant(
        "no token recomputed on a full hit",
        ADMISSION,
        "limit = (r.num_tokens - 1) // s.page_size",
        "limit = r.num_tokens // s.page_size",
    ),
    Mutant(
        "pages published before they land", PAGES, "full = r.landed // s.page_size", "full = r.computed // s.page_size"
    ),
    Mutant(
        "wasted token of an aborted row counted",
        LANDING,
        "over = r.state == S_DRAINING or r.state == S_ABORTING",
        "over = r.state == S_DRAINING",
    ),
    Mutant("min_tokens ignored", REQUESTS, "if r.num_tokens < r.min_total:", "if False:"),
    Mutant("length checked one too late", LANDING, "if r.num_tokens >= r.max_total:", "if r.num_tokens > r.max_total:"),
    Mutant(
        "a step scheduled past the end",
        BATCH,
        "        r.num_tokens + r.samples < r.max_total\n        and r.computed ==",
        "        r.num_tokens + r.samples <= r.max_total\n        and r.computed ==",
    ),
    Mutant("stop token not reported", LANDING, "r.stop_token = token", "r.stop_token = -1"),
    Mutant("ended request stays known", ENDING, "    del s.by_id[r.id]\n", "    pass\n"),
    Mutant("slot leaked", PAGES, "    s.num_free_slots += 1\n", "    pass\n"),
    Mutant("released slot not announced", PAGES, "build.add_released(r.slot)", "pass"),
    Mutant("page-table changes of a slot given away kept", PAGES, "build.drop_deltas(r.slot)", "pass"),
    Mutant("page of a failed row not cleaned", PAGES, "(<Build>s.ring[s.ring_at]).add_zero(page)", "pass"),
    Mutant("failed row's pages not marked", PAGES, "        if r.poisoned:\n", "        if False:\n"),
    Mutant(
        "failed row goes on",
        LANDING,
        "if any_failed and i in failed:\n            r.poisoned = 1\n            s.c_errors",
        "if False:\n            r.poisoned = 1\n            s.c_errors",
    ),
    Mutant("deadline ignored", CORE, "if now >= self.soonest:", "if False:"),
    Mutant("token credited to another row", LANDING, "rows[count] = i", "rows[count] = count"),
    Mutant("generated tokens lost by retraction", BATCH, "if r.num_tokens > r.num_prompt:", "if False:"),
    Mutant("retracted request forgotten", RETRACTION, "    s.requests.enqueue_retracted(at)\n", ""),
    Mutant(
        "terminal event given twice",
        CORE,
        "            self.finished = []\n            return out",
        "            return out",
    ),
    Mutant(
        "shared page's node released parent first",
        PAGES,
        "for k in range(r.num_nodes - 1, -1, -1):",
        "for k in range(r.num_nodes):",
    ),
    Mutant("failed copy to the device believed", MOVES, "s.tiers.loaded(t, ok, ", "s.tiers.loaded(t, True, "),
    Mutant(
        "rotten disk pages believed",
        MOVES,
        "s.tiers.prefetched(t, r.keys, r.tokens, min(good, t.count))",
        "s.tiers.prefetched(t, r.keys, r.tokens, t.count)",
    ),
    Mutant("salt ignored", REQUESTS, "self.hasher.root(spec.salt)", 'self.hasher.root(b"")'),
    Mutant(
        "lost pin of host pages while they load",
        ADMISSION,
        "            s.index.pin(s.scratch[k])\n",
        "            pass\n",
    ),
    Mutant("lost reference of a write-back", TIERS, "            self.index.ref(t.nodes[k])\n", ""),
    Mutant("failed write-back believed", TIERS, "if ok and node.host < 0:", "if node.host < 0:"),
    Mutant(
        "host page leaked when a write-back fails",
        TIERS,
        "            else:\n                self.host.give(t.pages[i])\n",
        "",
    ),
    Mutant(
        "host page leaked when its key is known",
        TIERS,
        "                self.host.give(t.pages[i])\n            else:\n                self.index.tell(n",
        "                pass\n            else:\n                self.index.tell(n",
    ),
    Mutant("two loads of one page", TIERS, "self.index.nodes[n].loading = 1", "self.index.nodes[n].loading = 0"),
    Mutant(
        "device page leaked when a load comes second",
        TIERS,
        "                self.device.give(t.pages[i])\n",
        "                pass\n",
    ),
    Mutant(
        "referenced node left on the eviction list",
        INDEX,
        "if node.refs == 0 and node.dev >= 0:\n            self.dunlink(n)",
        "if False:\n            self.dunlink(n)",
    ),
    Mutant(
        "double publish of a page",
        INDEX,
        "self.changes.append((tier, True,",
        'self.changes.extend([(tier, True, self.key_of(n), None, b"")]); self.changes.append((tier, True,',
    ),
    Mutant("lost host page not withdrawn", INDEX, "        self.tell(n, TIER_HOST, False)\n", ""),
    Mutant("page that came to the host not announced", TIERS, "self.index.tell(t.nodes[i], TIER_HOST, True)", "pass"),
    Mutant("lost disk block not withdrawn", DISK, "self.index.tell(n, TIER_DISK, False)", "pass"),
    Mutant("unread disk block left where it is", TIERS, "                self.discard([t.keys[i]])\n", ""),
    Mutant(
        "node on disk forgotten",
        INDEX,
        "node.disk or node.refs or node.pins or node.children:\n                return 0",
        "node.refs or node.pins or node.children:\n                return 0",
    ),
    Mutant(
        "parent of a block found again does not count it",
        "cache/node_table.pyx",
        "[parent].children += 1\n            node.depth = self.nodes[parent].depth + 1\n        memcpy",
        "[parent].children += 0\n            node.depth = self.nodes[parent].depth + 1\n        memcpy",
    ),
    Mutant("block being written given up for another", DISK, "self.index.nodes[oldest].disk == DISK_STORING", "False"),
    Mutant(
        "blocks that make room left on the disk", TIERS, "            discard.extend(evicted)\n", "            pass\n"
    ),
    Mutant(
        "surplus of a smaller disk kept",
        TIERS,
        "            self.discard(rest)\n",
        "",
    ),
    Mutant("host child not counted off", INDEX, "self.nodes[node.parent].host_children -= 1", "pass"),
    Mutant(
        "page key without its parent's",
        "cache/hashing.pyx",
        "return tsd_page_hash(parent, <const uint64_t*>tokens,",
        "parent.lo = parent.hi = 0; return tsd_page_hash(parent, <const uint64_t*>tokens,",
    ),
    Mutant(
        "released slots announced again",
        "scheduler/plan.pyx",
        "self.num_deltas = self.num_released = self.num_zero = 0",
        "self.num_deltas = self.num_zero = 0",
    ),
    Mutant(
        "a withheld page lent and kept",
        WITHHELD,
        "            self.num_device -= 1\n            self.index.device.give(self.device[self.num_device])",
        "            self.index.device.give(self.device[self.num_device - 1])",
    ),
    Mutant("withheld host page forgotten", WITHHELD, "self.index.host.give(self.host[self.num_host])", "pass"),
    Mutant("oldest request starves for withheld pages", RETRACTION, "if s.withheld.lend(1):", "if False:"),
    Mutant(
        "head of the queue starves for withheld pages", ADMISSION, "lendable = s.withheld.num_device", "lendable = 0"
    ),
    Mutant("steps believed whose copy failed", LANDING, "if over or r.tainted:", "if over:"),
    Mutant(
        "a step does not wait for the layers it reads", BATCH, "build.wait_for(s.requests.R[s.filling[i]].load)", "pass"
    ),
    Mutant(
        "victim's pages freed under a copy",
        RETRACTION,
        "    if r.flights == 0 and r.moves == 0:\n        park(s, at)\n    return 0\n\n\ncdef int spoil",
        "    if r.flights == 0:\n        park(s, at)\n    return 0\n\n\ncdef int spoil",
    ),
    Mutant(
        "pages of a failed row kept dirty when its request had ended",
        LANDING,
        "                r.poisoned = 1\n            if r.flights == 0 and r.moves == 0:\n                if over",
        "                pass\n            if r.flights == 0 and r.moves == 0:\n                if over",
    ),
    Mutant("prefix counted that did not come", MOVES, "        r.num_nodes = t.first\n", "        pass\n"),
    Mutant(
        "pin of a host page dropped with the first layers",
        MOVES,
        "    t.begun = 1\n",
        "    t.begun = 1\n    s.index.unpin(t.nodes[t.count - 1])\n",
    ),
    Mutant("first layers taken for all", MOVES, "r.load = move_id", "r.load = -1"),
    Mutant(
        "pages of an aborted request freed when its copy ends, whatever runs",
        MOVES,
        "return drained(s, t.req) if r.flights == 0 else 0",
        "return drained(s, t.req)",
    ),
    Mutant("prompts held for ever while rows decode", PACING, "self.held += max(1, ", "self.held += min(0, "),
    Mutant("prompts held anew without having run", PACING, "        if num_prefill:\n", "        if True:\n"),
    Mutant("a step with prompts has room for none", PACING, "return min(most, max(", "return min(1, max("),
)
