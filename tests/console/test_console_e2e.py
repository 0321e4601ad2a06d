"""The console on a real server: load, a pool too small for it, retractions seen, orders given, the server gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from http.client import HTTPException

import pytest
from support.console import until
from support.server import running_server
from support.tiny import tiny_model

from tsd.console.actions import Operator
from tsd.console.link import LinkState
from tsd.console.picture import capture, plain
from tsd.console.source import ServerSource
from tsd.console.tui import ConsoleApp

KEY = "operators-only"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("console") / "m", max_position_embeddings=4096)


@pytest.fixture
def server(model: str):
    flags = ("--load-format", "dummy", "--gpus", "none", "--max-total-tokens", "2048", "--max-num-seqs", "8")
    with running_server(model, *flags, "--page-size", "16", "--admin-key", KEY) as found:
        found.wait_ready()
        yield found


def load(server, stop: threading.Event, streams: int = 8, tokens: int = 1200) -> list[threading.Thread]:
    """Streams that together need far more pages than there are, one after the other until `stop`."""

    def one(number: int) -> None:
        body = {
            "prompt": [5, 6, 7] * 11 + [number],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "user": "load",
        }
        with contextlib.suppress(OSError, HTTPException):
            while not stop.is_set():
                server.request("POST", "/v1/completions", body, timeout=60)

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(streams)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.slow
def test_an_operator_sees_retractions_owners_and_the_end(server):
    async def run():
        source = ServerSource(server.url, KEY, 0.5, backoff_s=(0.2,))
        app = ConsoleApp(source, Operator(server.url, KEY), url=server.url)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.frame.snapshot is not None, 2000)
            stop = threading.Event()
            threads = load(server, stop)
            await until(pilot, lambda: any(e.event.kind == "retraction" for e in app.frame.events), 6000)
            await pilot.press("4")
            await until(pilot, lambda: "■ retraction" in plain(capture(app)))
            await pilot.press("3", "enter")
            # Requests come and go: the one under the cursor may end while its timeline is on its way.
            await until(pilot, lambda: "queued" in plain(capture(app)) and "cmpl-" in plain(capture(app)), 1000)

            await pilot.press("2")
            page_map = app.query_one("#page-map")
            await until(pilot, lambda: 2 in page_map.bins, 1000)
            detail = app.query_one("#bin-detail")
            for _ in range(50):
                # Pages change hands while one looks: another one is tried.
                if 2 in page_map.bins:
                    page_map.bin = page_map.bins.index(2)
                    page_map.action_ask()
                    await until(pilot, lambda: detail.answer is not None or detail.trouble, 1000)
                    if "cmpl-" in json.dumps(detail.answer):
                        break
                await pilot.pause(0.1)
            assert detail.answer["pages"][0]["owners"][0].startswith("cmpl-")

            await pilot.press("5")
            await until(pilot, lambda: "attention" in plain(capture(app)), 1000)
            await pilot.press("P", "y")
            await until(pilot, lambda: app.frame.snapshot.server.state == "paused", 2000)
            assert app.frame.explanation.causes[0].kind == "held"
            await pilot.press("R", "y")
            await until(pilot, lambda: app.frame.snapshot.server.state == "ready", 2000)

            stop.set()
            server.process.terminate()
            await until(pilot, lambda: app.frame.link.state is LinkState.DOWN, 3000)
            assert "The server is down" in plain(capture(app))
            for thread in threads:
                await asyncio.to_thread(thread.join, 30)

    asyncio.run(run())


def test_a_wrong_key_is_refused_in_plain_words(server, capsys, monkeypatch):
    from tsd.console.app import main

    assert main(["--once", "--url", server.url, "--admin-key", "wrong"]) == 4
    assert "refuses the admin key" in capsys.readouterr().err
    monkeypatch.setenv("TSD_ADMIN_KEY", KEY)
    assert main(["--once", "--url", server.url]) == 0
    assert "ready" in capsys.readouterr().out
