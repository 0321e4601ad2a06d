"""Data sets: shapes, sharing, seeds, and errors that name the line."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tsd.bench.arrivals import Ramp, offsets
from tsd.bench.datasets import NAMES, DatasetOptions, dataset
from tsd.bench.errors import DatasetError
from tsd.bench.plan import Kind, Plan, Session
from tsd.bench.store import PieceStore, Vocabulary

VOCABULARY = Vocabulary.of_size(1000, "test")


def build(name: str, kind: Kind = "ids", **options: object) -> Plan:
    chosen = DatasetOptions(**{"num_prompts": 1000, **options})  # type: ignore[arg-type]
    store = PieceStore(kind, VOCABULARY, chosen.seed)
    return Plan(kind, store.pieces, dataset(name).build(chosen, store))


def prompt_ids(plan: Plan, session: Session, turns: int = 1) -> list[int]:
    pieces = [plan.pieces[i] for turn in session.turns[:turns] for i in turn.pieces]
    return msgspec.json.decode(b"[" + b",".join(pieces) + b"]", type=list[int])


def write(tmp_path: Path, lines: list[str]) -> str:
    path = tmp_path / "data"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_random_has_the_lengths_asked_for_and_ids_in_range() -> None:
    plan = build("random", num_prompts=20, input_len=50, output_len=7, prefix_len=5)
    prompts = [prompt_ids(plan, session) for session in plan.sessions]
    assert all(len(prompt) == 55 for prompt in prompts) and len({tuple(p[:5]) for p in prompts}) == 1
    assert len({tuple(p) for p in prompts}) == 20
    assert all(VOCABULARY.low <= token < VOCABULARY.high for prompt in prompts for token in prompt)
    assert {session.turns[0].max_tokens for session in plan.sessions} == {7}


def test_random_range_and_seed() -> None:
    plan = build("random", num_prompts=200, input_len=100, output_len=100, range_ratio=0.5, seed=3)
    lengths = [session.turns[0].input_tokens for session in plan.sessions]
    assert min(lengths) < 60 and max(lengths) > 140 and min(lengths) >= 50 and max(lengths) <= 150
    assert [len(prompt_ids(plan, session)) for session in plan.sessions] == lengths
    assert build("random", num_prompts=200, input_len=100, output_len=100, range_ratio=0.5, seed=3) == plan
    assert build("random", num_prompts=200, input_len=100, output_len=100, range_ratio=0.5, seed=4) != plan


def test_agentic_shares_its_prefix_and_states_the_resent_length() -> None:
    plan = build("agentic", num_prompts=3, input_len=20, output_len=6, prefix_len=30, turns=4)
    assert [turn.input_tokens for turn in plan.sessions[0].turns] == [50, 76, 102, 128]
    assert len({tuple(prompt_ids(plan, session)[:30]) for session in plan.sessions}) == 1
    assert len(prompt_ids(plan, plan.sessions[0], turns=4)) == 30 + 4 * 20


def test_swe_grows_by_turns() -> None:
    plan = build("swe", num_prompts=4, input_len=500)
    for session in plan.sessions:
        assert 10 <= len(session.turns) <= 15
        assert [turn.input_tokens for turn in session.turns[:3]] == [500, 500 + 500 + 800, 500 + 2 * 1300]


def test_mooncake_shares_blocks_and_keeps_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 3000, "input_length": 1024, "output_length": 9, "hash_ids": [1, 2]},
    ]
    path = write(tmp_path, [json.dumps(row) for row in rows])
    plan = build("mooncake", path=path, time_scale=2.0)
    first, second = (prompt_ids(plan, session) for session in plan.sessions)
    assert (len(first), len(second)) == (1100, 1024) and first[:1024] == second
    assert [session.at for session in plan.sessions] == [0.0, 1.0]
    assert len(build("mooncake", path=path, max_input_len=1050).sessions) == 1


def test_azure_reads_seven_digit_seconds(tmp_path: Path) -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,374,44",
        "2023-11-16 18:17:04.0319569,396,109",
    ]
    plan = build("azure", path=write(tmp_path, lines))
    assert [session.at for session in plan.sessions] == pytest.approx([0.0, 0.0519969], abs=1e-6)
    assert [(s.turns[0].input_tokens, s.turns[0].max_tokens) for s in plan.sessions] == [(374, 44), (396, 109)]


def test_sharegpt_takes_human_turns(tmp_path: Path) -> None:
    talk = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": 'say "hi"'},
        {"from": "gpt", "value": "one two three four five six"},
        {"from": "human", "value": "again"},
        {"from": "gpt", "value": "x"},
    ]
    path = write(tmp_path, [json.dumps([{"id": 1, "conversations": talk}, {"id": 2, "conversations": []}])])
    plan = build("sharegpt", "text", path=path, turns=2)
    assert [turn.max_tokens for turn in plan.sessions[0].turns] == [8, 4]
    assert json.loads(b'"' + plan.pieces[0] + b'"').strip() == 'say "hi"'
    chat = build("sharegpt", "messages", path=path)
    assert json.loads(chat.pieces[0]) == {"role": "user", "content": 'say "hi"'}


def test_custom_kinds(tmp_path: Path) -> None:
    ids = write(tmp_path, ['{"prompt": [1, 2, 3], "output_tokens": 4, "at": 0.5}', "", '{"prompt": [4]}'])
    plan = build("custom", path=ids)
    assert prompt_ids(plan, plan.sessions[0]) == [1, 2, 3] and plan.sessions[0].at == 0.5
    assert [session.turns[0].max_tokens for session in plan.sessions] == [4, 128]
    chat = write(tmp_path, ['{"messages": [{"role": "user", "content": "a"}]}'])
    assert dataset("custom").kind(DatasetOptions(1, path=chat)) == "messages"


MOONCAKE = '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}'


@pytest.mark.parametrize(
    ("name", "lines", "line", "words"),
    [
        ("mooncake", [MOONCAKE, "{oops"], 2, "JSON"),
        ("mooncake", [MOONCAKE, "", '{"timestamp": 0, "input_length": "x"}'], 3, "input_length"),
        ("mooncake", [MOONCAKE.replace("10", "1000")], 1, "2 blocks"),
        ("mooncake", [MOONCAKE.replace("10", "0")], 1, "positive"),
        ("mooncake", [MOONCAKE.replace('p": 0', 'p": 5'), MOONCAKE], 2, "timestamp before"),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.97,374"], 2, "TIMESTAMP"),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,1"], 2, "TIMESTAMP"),
        ("azure", ["TIMESTAMP,ContextTokens"], 1, "GeneratedTokens"),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,0,1"], 2, "positive"),
        ("sharegpt", ["[", "{", "oops"], 3, "property name"),
        ("sharegpt", ['{"a": 1}'], 1, "list"),
        ("sharegpt", ['[{"conversations": [{"from": 1}]}]'], None, "conversation 0"),
        ("custom", ['{"prompt": "a"}', '{"prompt": [1]}'], 2, "ids"),
        ("custom", ['{"prompt": "a"}', '{"prompt": ""}'], 2, "empty"),
        ("custom", ['{"prompt": "a"}', "{}"], 2, "either"),
        ("custom", ['{"prompt": "a"}', '{"prompt": 5}'], 2, "prompt"),
    ],
)
def test_malformed_input_names_the_line(
    tmp_path: Path, name: str, lines: list[str], line: int | None, words: str
) -> None:
    path = write(tmp_path, lines)
    with pytest.raises(DatasetError, match=words) as caught:
        build(name, "text" if name in ("sharegpt", "custom") else "ids", path=path)
    assert caught.value.line == line and path in str(caught.value)


@pytest.mark.parametrize("name", ["mooncake", "azure", "sharegpt", "custom"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        build(name, "text", path=str(tmp_path / "none"))
    with pytest.raises(DatasetError, match="--dataset-path"):
        build(name, "text")


def test_every_name_has_a_module() -> None:
    for name in NAMES:
        assert callable(dataset(name).build)


def test_arrivals() -> None:
    assert offsets(5, float("inf"), 1.0, 0) == [0.0] * 5
    poisson = offsets(4000, 10.0, 1.0, 1)
    gaps = [later - earlier for earlier, later in pairwise(poisson)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.1) and deviation == pytest.approx(0.1, rel=0.15)
    even = offsets(1000, 10.0, 1000.0, 1)
    assert even[-1] == pytest.approx(99.9, rel=0.02)
    assert offsets(50, 10.0, 1.0, 1) == poisson[:50] and offsets(50, 10.0, 1.0, 2) != poisson[:50]
    ramp = offsets(1001, Ramp("linear", 1.0, 100.0), 10_000.0, 0)
    assert ramp[1] - ramp[0] == pytest.approx(1.0, rel=0.1) and ramp[-1] - ramp[-2] == pytest.approx(0.01, rel=0.1)
    assert Ramp("exponential", 1.0, 100.0).rate(0.5) == pytest.approx(10.0)
