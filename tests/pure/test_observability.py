"""Dashboard, alerts and scrape examples: well formed, and every metric in them is one that the server exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tsd.api.exposition import exposition as exposition_of
from tsd.api.metrics import Metrics
from tsd.engine.protocol import Heartbeat, Ready
from tsd.engine.stats import StepTokens, heartbeat_stats

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "observability"
COUNTERS = ("hit_queries", "hit_device", "hit_host", "hit_disk", "retractions", "steps")


def exposition() -> str:
    """What /metrics says of a front with one ready engine."""
    steps = StepTokens()
    for tokens in (1, 1, 3, 20_000):
        steps.observe(tokens)
    view = {
        "counters": dict.fromkeys(COUNTERS, 4),
        "tiers": {"device": {"total": 10, "free": 5, "cached": 2, "active": 2, "shared": 1}},
    }
    beat = Heartbeat(1, 2, 3, 4, {**heartbeat_stats(view, 1), **steps.stats()})
    ready = Ready(0, "m", "a", 100, 100, 16, 10, 4, 160, "cpu", "float32", 1.5, {}, (2,))
    metrics = Metrics("m")
    engine = SimpleNamespace(engine=0, state="ready", beat=beat, ready=ready)
    fleet = SimpleNamespace(engines=[engine])
    metrics.finished_by["stop"] = 1
    metrics.http["/v1/completions", 200] = 1
    return exposition_of(metrics.figures(), fleet, "m").decode()  # type: ignore[arg-type]


def exposed() -> set[str]:
    """Sample names, and those of families that have no sample yet."""
    names = set()
    for line in exposition().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split(" ")
            names |= {name} if kind != "histogram" else {f"{name}_{end}" for end in ("bucket", "sum", "count")}
        elif not line.startswith("#"):
            names.add(re.split(r"[{ ]", line, maxsplit=1)[0])
    return names


def used(text: str) -> set[str]:
    return set(re.findall(r"tsd:[a-z0-9_]+", text))


def expressions(value: Any) -> list[str]:
    """Every query in a dashboard: panel targets and template variables."""
    found = []
    if isinstance(value, dict):
        found += [value[key] for key in ("expr", "query") if isinstance(value.get(key), str)]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            found += expressions(item)
    return found


def dashboard() -> dict[str, Any]:
    return json.loads((FOLDER / "grafana-dashboard.json").read_text())


def test_every_panel_has_a_query_on_metrics_that_exist() -> None:
    names = exposed()
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len(panels) >= 20
    for panel in panels:
        queries = expressions(panel["targets"])
        assert queries and all(used(query) for query in queries), panel["title"]
        assert used(" ".join(queries)) <= names, (panel["title"], used(" ".join(queries)) - names)
    assert used(" ".join(expressions(dashboard()["templating"]))) <= names


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells and at["x"] + at["w"] <= 24, panel["title"]
        cells |= mine


def test_queries_are_balanced() -> None:
    alerts = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    for query in [*expressions(dashboard()["panels"]), *rules]:
        for left, right in ("()", "{}", "[]"):
            assert query.count(left) == query.count(right), query


def test_alerts_are_complete_and_on_metrics_that_exist() -> None:
    names = exposed()
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "warn") and rule["annotations"]["summary"]
        assert used(rule["expr"]) <= names, rule["alert"]


def test_scrape_example_names_the_route_and_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"] and config["scrape_configs"][0]["metrics_path"] == "/metrics"


@pytest.mark.parametrize(
    "name",
    [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prompt_tokens_cached_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "request_success_total",
        "num_retractions_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket",
        "iteration_tokens_total_bucket",
        "cache_config_info",
        "startup_time_seconds",
    ],
)
def test_promised_metrics_are_exposed(name: str) -> None:
    assert f"tsd:{name}" in exposed()


def test_step_tokens_become_a_histogram() -> None:
    text = exposition()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tsd:iteration_tokens_total"))
    bucket = 'tsd:iteration_tokens_total_bucket{{engine="0",le="{}",model_name="m"}}'
    counts = [samples[bucket.format(edge)] for edge in ("1", "2", "4", "16384", "+Inf")]
    assert counts == ["2.0", "2.0", "3.0", "3.0", "4.0"]
    assert samples['tsd:iteration_tokens_total_sum{engine="0",model_name="m"}'] == "20005.0"
    assert 'tsd:kv_cache_usage_perc{engine="0",model_name="m"} 0.3' in text
    assert 'tsd:prefix_cache_hits_total{engine="0",model_name="m"} 12.0' in text
