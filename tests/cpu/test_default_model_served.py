"""What a newcomer sees first: the default model, served with every default, knows the capital of France."""

from __future__ import annotations

from support.server import running_server


def test_the_capital_of_france(default_model: str) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    with running_server(default_model, "--gpus", "none") as server:
        server.wait_ready()
        status, answer = server.request("POST", "/v1/chat/completions", {**question, "max_tokens": 32})
    assert status == 200
    assert "Paris" in answer["choices"][0]["message"]["content"]
