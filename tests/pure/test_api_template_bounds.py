"""A chat template is bounded by its own time and by what it writes, however the machine behaves meanwhile."""

from __future__ import annotations

import time

import pytest

from tsd.api.errors import InvalidRequest
from tsd.api.limits import Limits
from tsd.api.text.numeric import NumericTokenizer
from tsd.api.text.template import ChatTemplate

LOOP = "{% for i in range(3000) %}{% for j in range(3000) %}x{% endfor %}{% endfor %}"


def template(source: str, limits: Limits) -> ChatTemplate:
    return ChatTemplate(source, NumericTokenizer(100), limits)


def test_endless_work_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(LOOP, Limits(template_seconds=0.05, template_bytes=1 << 30)).render([])
    assert caught.value.code == "template_timeout"


def test_endless_text_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(LOOP, Limits(template_bytes=1000)).render([])
    assert caught.value.code == "too_long"


def test_a_machine_that_stands_still_is_not_the_templates_fault() -> None:
    bound = template("{{ messages[0].wait }}{{ messages[0].wait }}done", Limits(template_seconds=0.05))

    class Slow:
        def __str__(self) -> str:
            time.sleep(0.1)
            return ""

    assert bound.render([{"wait": Slow()}]) == "done"
