"""From deliveries to frames: rates, coalescing, restarts, events, kernels."""

from __future__ import annotations

import json

import pytest

from tsd.console.demo import DemoFleet
from tsd.console.demo_kernels import KERNELS
from tsd.console.errors import ForeignServer
from tsd.console.history import History, kernel_tables
from tsd.console.link import Link, LinkState
from tsd.console.mailbox import MAX_EVENTS, Mailbox
from tsd.console.moment import derive
from tsd.console.snapshot import decode_snapshot

LINK = Link(LinkState.CONNECTING, "u")


def snapshot(time, requests=0, uptime=None, tokens=0, hits=(0, 0), events=(), kernels=()):
    engine = {
        "engine": 0,
        "counters": {"generation_tokens": tokens},
        "hits": {"queries": hits[0], "device": hits[1]},
        "events": list(events),
        "kernels": list(kernels),
        "tiers": {"device": {"total": 100, "free": 10, "cached": 30}},
    }
    server = {"counters": {"requests": requests}}
    raw = {"version": 1, "time": time, "uptime_s": uptime, "server": server, "engines": [engine]}
    return decode_snapshot(json.dumps(raw))


def test_rates_are_of_the_time_between():
    moment = derive(snapshot(10.0, 5, tokens=100, hits=(1000, 500)), snapshot(12.0, 9, tokens=300, hits=(1400, 800)))
    assert moment.arrivals_s == 2.0 and moment.output_s == 100.0
    assert moment.hit_ratio == 0.75 and moment.available == 0.4


@pytest.mark.parametrize("after", [10.0, 9.0])
def test_no_rates_without_time(after):
    moment = derive(snapshot(10.0, 5, tokens=100), snapshot(after, 9, tokens=300))
    assert moment.arrivals_s is None and moment.output_s is None
    assert derive(None, snapshot(1.0)).output_s is None


def test_a_counter_that_falls_gives_no_rate():
    assert derive(snapshot(1.0, tokens=500), snapshot(2.0, tokens=3)).output_s is None


def test_a_new_engine_has_no_rates_yet():
    before = decode_snapshot(b'{"version": 1, "time": 1, "engines": []}')
    assert derive(before, snapshot(2.0, tokens=5)).engines[0].output_s is None


def test_a_flood_rings_once_and_loses_no_event_and_no_moment():
    rings = []
    box = Mailbox(lambda: rings.append(1))
    box.link_changed(LINK)
    for second in range(100):
        box.snapshot_arrived(snapshot(float(second), events=[[second, "abort", f"r{second}"]]), b"")
    delivery = box.take()
    assert len(rings) == 1
    assert delivery.snapshot is not None and delivery.snapshot.time == 99.0 and delivery.merged == 99
    assert [e.event.request_id for e in delivery.events] == [f"r{n}" for n in range(100)]
    assert len(delivery.moments) == 100
    assert box.empty and box.take().events == []
    box.snapshot_arrived(snapshot(100.0), b"")
    assert len(rings) == 2


def test_events_are_bounded():
    box = Mailbox(lambda: None)
    many = [[n, "abort", f"r{n}"] for n in range(MAX_EVENTS + 50)]
    box.snapshot_arrived(snapshot(1.0, events=many), b"")
    assert len(box.take().events) == MAX_EVENTS


@pytest.mark.parametrize(("before", "after"), [((50, 100.0), (3, 2.0)), ((50, None), (0, None))])
def test_a_restart_is_told_and_starts_anew(before, after):
    box = Mailbox(lambda: None)
    history = History(LINK, lambda: 0.0)
    box.snapshot_arrived(snapshot(1.0, before[0], before[1], kernels=KERNELS), b"")
    frame = history.absorb(box.take())
    assert len(frame.moments) == 1 and frame.kernels[0]
    box.snapshot_arrived(snapshot(2.0, after[0], after[1]), b"")
    frame = history.absorb(box.take())
    assert len(frame.moments) == 1 and frame.moments[0].arrivals_s is None
    assert frame.events[-1].event.kind == "restart" and frame.events[-1].engine == -1
    assert frame.kernels == {}


def test_kernels_stay_until_others_come():
    box = Mailbox(lambda: None)
    history = History(LINK, lambda: 0.0)
    box.snapshot_arrived(snapshot(1.0, kernels=KERNELS), b"")
    box.snapshot_arrived(snapshot(2.0), b"")
    assert len(history.absorb(box.take()).kernels[0]) == len(KERNELS)
    box.snapshot_arrived(snapshot(3.0, kernels=KERNELS[:2]), b"")
    assert len(history.absorb(box.take()).kernels[0]) == 2


def test_the_kernel_routes_answer_in_either_shape():
    assert len(kernel_tables([{"engine": 3, "kernels": KERNELS}])[3]) == len(KERNELS)
    assert len(kernel_tables(KERNELS)[0]) == len(KERNELS)
    assert kernel_tables([]) == {}
    with pytest.raises(ForeignServer):
        kernel_tables(["what"])


def test_the_demo_is_the_same_every_time_and_never_double_books():
    one, two = DemoFleet(2, 40, 4096), DemoFleet(2, 40, 4096)
    for _ in range(200):
        one.tick()
        two.tick()
        for engine in one.engines:
            owned = [b for r in engine.running for b in r.bins]
            assert len(owned) == len(set(owned))
            assert all(engine.map[b] == 2 for b in owned)
    assert one.encode() == two.encode()
    assert sum(e.counters["retractions"] for e in one.engines) > 0
