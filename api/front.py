"""The state of one front, and the way from a validated request to engines. Knows no wire format.

`Front` owns the fleet, the text side (tokenizer, chat template), the jobs in flight and the admission state.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from aiohttp import web

from tsd.api.auth import CALLER
from tsd.api.body import held_body
from tsd.api.conversations import ConversationStore
from tsd.api.errors import ApiError, ContextLength, EngineFault, InvalidRequest, NotFound, Unavailable
from tsd.api.figures import EngineLoad, FrontFigures
from tsd.api.fronts.group import Group, came_from_a_front
from tsd.api.fronts.ids import new_id
from tsd.api.grammar_check import GrammarChecker
from tsd.api.job import Job
from tsd.api.metrics import Metrics
from tsd.api.options import ServerOptions
from tsd.api.output import Parser, ReasoningSplitter
from tsd.api.params import ModelFacts, Params
from tsd.api.parsers.registry import DEFAULT_TOOLS, REASONING, TOOLS, Dialects, detect
from tsd.api.response_store import ResponseStore
from tsd.api.routing import Fleet
from tsd.api.sequence import Sequence
from tsd.api.streaming import Outbox
from tsd.api.text.load import load_tokenizer
from tsd.api.text.stops import StopMatcher
from tsd.api.text.template import PLAIN_TEMPLATE, ChatPrompt, ChatTemplate
from tsd.api.text.tokenizer import TextTooLong, Tokenizer
from tsd.api.tool_grammar import CONSTRAINABLE
from tsd.api.tracing import parse_traceparent
from tsd.engine.protocol import Grammar, Submit, Vocabulary

OFF_LOOP_SIZE = 16_384
"""Longer texts are tokenized, and more tokens are looked at, in a thread."""

T = TypeVar("T")


@dataclass
class Text:
    """The text side, once loaded."""

    tokenizer: Tokenizer
    chat: ChatPrompt
    dialects: Dialects
    reasoning_end: tuple[int, ...] = ()

    @property
    def call_markers(self) -> tuple[str, ...]:
        """Special tokens that a grammar may ask for. Where a grammar is on they are not stripped from the text,
        which is then what the grammar allowed."""
        name = self.dialects.tools or DEFAULT_TOOLS
        return TOOLS[name].markers if name in CONSTRAINABLE else ()


class TextPlan(NamedTuple):
    """What is done with one request's output text."""

    splitter: Callable[[], ReasoningSplitter] | None = None
    parser: Callable[[], Parser] | None = None
    parser_first: bool = False
    markers: tuple[str, ...] = ()
    """Special tokens that stay in the text, because a parser reads them."""
    grammar: Grammar | None = None
    continues: bool = False
    """The text goes on in the middle of a message."""


def _nothing(protocol: object) -> None:
    return None


@dataclass
class Front:
    options: ServerOptions
    fleet: Fleet
    outbox: Outbox
    metrics: Metrics
    text: Text | None = None
    state: str = "starting"
    """starting, ready, draining, paused or failed."""
    grammars: GrammarChecker | None = None
    vocabulary: Vocabulary | None = None
    """Set with `grammars`."""
    heard: Callable[[object], None] = _nothing
    """Told the protocol of each connection that sent a request."""
    started_at: float = field(default_factory=time.time)
    jobs: dict[str, Job] = field(default_factory=dict)
    responses: ResponseStore = field(default_factory=ResponseStore)
    conversations: ConversationStore = field(default_factory=ConversationStore)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no job runs."""
    group: Group | None = None
    """The other fronts, where there are any."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.options.served_names or (self.options.name,)

    @property
    def facts(self) -> ModelFacts:
        """Raises Unavailable while no engine has said what it holds."""
        readies = [engine.ready for engine in self.fleet.engines if engine.ready is not None]
        if not readies or self.text is None:
            raise Unavailable("the model is still loading", retry_after=2)
        length = min(ready.max_model_len for ready in readies)
        if self.options.max_model_len:
            length = min(length, self.options.max_model_len)
        eos = dict.fromkeys((*readies[0].eos_token_ids, *self.text.tokenizer.vocabulary.eos_ids))
        return ModelFacts(min(ready.vocab_size for ready in readies), length, tuple(eos))

    @property
    def loaded(self) -> Text:
        if self.text is None:
            raise Unavailable("the model is still loading", retry_after=2)
        return self.text

    def check_admits(self) -> None:
        """Raises Unavailable unless new requests are taken."""
        if self.state == "draining":
            raise Unavailable("the server is draining", code="draining", retry_after=5)
        if self.state == "paused":
            raise Unavailable("the server is paused", code="paused", retry_after=5)
        if fault := self.fault():
            raise Unavailable(fault)
        if self.state != "ready":
            raise Unavailable("the model is still loading", retry_after=2)

    def fault(self) -> str:
        """Why the server is not alive, or empty."""
        if self.fleet.dead is not None:
            return "an engine is dead"
        if any(engine.is_stuck(self.options.stall_s) for engine in self.fleet.engines):
            return "an engine does not answer"
        return self.group.fault() if self.group is not None else ""

    def update_state(self) -> None:
        if self.fleet.dead is not None:
            self.state = "failed"
        elif (
            self.state == "starting"
            and self.text is not None
            and self.fleet.all_ready
            and (self.group is None or self.group.may_serve())
        ):
            self.state = "ready"

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises NotFound for one that is not served."""
        if name is None or name == "":
            return self.options.name
        if name not in self.names:
            raise NotFound(f"the model {name[:100]!r} is not served here", param="model", code="model_not_found")
        return name

    async def encode(self, text: str, add_special: bool = True, name: str = "prompt") -> array[int]:
        """Raises ContextLength, before any work where the length alone says that the text cannot fit."""
        tokenizer, limit = self.loaded.tokenizer, self.facts.max_model_len
        self._check_characters(len(text), name)
        return await self._run(len(text), name, lambda: tokenizer.encode(text, add_special, limit))

    async def render(self, size: int, work: Callable[[int], array[int]]) -> array[int]:
        """Runs a chat template and its tokenization (`work`, given the most tokens) on `size` characters."""
        self._check_characters(size // 4, "messages")  # a template may drop parts of what it is given
        limit = self.facts.max_model_len
        return await self._run(size, "messages", lambda: work(limit))

    async def decode(self, ids: array[int]) -> str:
        """With special tokens."""
        tokenizer = self.loaded.tokenizer
        return await self.off_loop(len(ids), lambda: tokenizer.decode(ids, skip_special=False))

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """In place for what is small (characters or tokens), else in a thread."""
        if size < OFF_LOOP_SIZE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def _run(self, size: int, name: str, work: Callable[[], array[int]]) -> array[int]:
        try:
            return await self.off_loop(size, work)
        except TextTooLong as error:
            raise ContextLength(
                f"{name} has {error.tokens} tokens; the context holds {self.facts.max_model_len}", param=name
            ) from error

    def _check_characters(self, count: int, name: str) -> None:
        least = count // self.loaded.tokenizer.max_characters_per_token
        limit = self.facts.max_model_len
        if least > limit:
            raise ContextLength(f"{name} has over {least} tokens; the context holds {limit}", param=name)

    def new_id(self, prefix: str) -> str:
        """Unguessable, and names this front."""
        return new_id(prefix, self.options.front)

    async def elsewhere(self, request: web.Request, name: str | None) -> web.StreamResponse | None:
        """The answer of the front that owns `name`, where that is another one."""
        if self.group is None or not name or came_from_a_front(request):
            return None
        owner = self.group.owner(name)
        return None if owner is None else await self.forward(request, owner)

    async def forward(self, request: web.Request, to: int) -> web.StreamResponse:
        """The answer of another front."""
        assert self.group is not None
        async with held_body(request, self.options.limits) as body:
            return await self.group.forward(request, to, body)

    def figures(self) -> FrontFigures:
        figures = self.metrics.figures()
        figures.jobs = len(self.jobs)
        figures.loads = [EngineLoad(e.engine, e.load, e.waiting, e.queued_tokens) for e in self.fleet.engines]
        return figures

    def fail_all(self, why: str) -> None:
        """Ends every stream with an error."""
        for engine in self.fleet.engines:
            engine.fail_all(EngineFault(why, code="server_failed"))

    def new_job(self, prefix: str, request: web.Request) -> Job:
        job = Job(
            self.new_id(prefix),
            request[CALLER].owner,
            self.metrics,
            frozenset(self.facts.eos_ids),
            request.path,
        )
        job.trace = parse_traceparent(request.headers.get("traceparent"))
        return job

    def launch(
        self,
        job: Job,
        prompts: list[array[int]],
        params: Params,
        *,
        prompt_logprobs: int = -1,
        continues: bool = False,
        plan: TextPlan | None = None,
    ) -> None:
        """Submits n sequences a prompt; choice numbers count through prompts. Raises before anything is sent, or
        aborts what was."""
        facts, tokenizer, plan = self.facts, self.loaded.tokenizer, plan or TextPlan()
        salt = params.cache_salt
        if self.options.salt_per_key and job.owner:
            salt = hashlib.sha256(f"{job.owner}\0{salt or ''}".encode()).hexdigest()
        markers = plan.markers
        if plan.grammar is not None:
            markers = tuple(dict.fromkeys((*markers, *self.loaded.call_markers)))
        budgets = []
        for prompt in prompts:
            if not prompt:
                raise InvalidRequest("the prompt is empty", param="prompt", code="empty_prompt")
            budgets.append(params.budget(len(prompt), facts))
        deadline = self.options.request_timeout_s or self.options.limits.deadline_seconds
        self.metrics.requests += 1
        self.jobs[job.public_id] = job
        self.idle.clear()
        try:
            for number, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
                data = prompt.tobytes()
                engine = self.fleet.pick(prompt, salt, params.n)
                for choice in range(params.n):
                    submit = Submit(
                        id=0,
                        prompt=data,
                        max_tokens=max(1, budget),
                        sampling=params.seeded(choice),
                        min_tokens=min(params.min_tokens, budget),
                        stop_token_ids=params.stop_token_ids,
                        priority=params.priority,
                        cache_salt=salt,
                        deadline_s=deadline,
                        prompt_logprobs=prompt_logprobs,
                        grammar=plan.grammar,
                        client=params.user or job.owner[:12],
                    )
                    sequence = Sequence(
                        job,
                        number * params.n + choice,
                        prompt,
                        submit,
                        tokenizer.stream(params.skip_special, continues or plan.continues, markers),
                        prompt_index=number,
                        stops=StopMatcher(params.stops, params.include_stop) if params.stops else None,
                        splitter=plan.splitter() if plan.splitter else None,
                        parser=plan.parser() if plan.parser else None,
                        parser_first=plan.parser_first,
                    )
                    if plan.grammar is not None and self.vocabulary is not None:
                        engine.tell_vocabulary(self.vocabulary)
                    engine.submit(sequence)
                    job.sequences.append(sequence)
                    job.open += 1
        except ApiError:
            job.abort()
            self.release(job)
            raise

    async def check_grammar(self, grammar: Grammar, param: str = "response_format") -> None:
        """Raises InvalidRequest, naming `param`, for one that cannot be compiled within the limits."""
        if not self.knows_grammars:
            raise InvalidRequest(
                "constraints on the output are not supported by this engine",
                param=param,
                code="unsupported",
            )
        checker = self.grammars or await self.start_grammars()
        await checker.check(grammar, param)

    @property
    def knows_grammars(self) -> bool:
        return all(engine.ready and engine.ready.info.get("grammar") for engine in self.fleet.engines)

    async def start_grammars(self) -> GrammarChecker:
        """Starts what constraints need, here and in the engines, so that the first one need not wait for it."""
        text, facts = self.loaded, self.facts
        make = functools.partial(vocabulary_of, text.tokenizer, facts, text.call_markers)
        vocabulary = await asyncio.get_running_loop().run_in_executor(None, make)
        if self.grammars is None:  # else another request came meanwhile
            self.grammars = GrammarChecker(vocabulary, self.options.limits.grammar_seconds)
            self.vocabulary = vocabulary
            self.grammars.start()
            for engine in self.fleet.engines:
                engine.tell_vocabulary(vocabulary)
        return self.grammars

    def release(self, job: Job) -> None:
        """The job's handler is done with it."""
        if not job.done.done():
            job.abort()
        self.jobs.pop(job.public_id, None)
        if not self.jobs:
            self.idle.set()

    async def load_text(self) -> None:
        """Reads the tokenizer and compiles the template, off the loop. Raises TokenizerError or a Jinja error."""
        self.text = await asyncio.get_running_loop().run_in_executor(None, load_text, self.options)
        self.update_state()


def load_text(options: ServerOptions) -> Text:
    tokenizer = load_tokenizer(options.tokenizer or options.model)
    source = options.chat_template
    if source and "{" not in source:
        with open(source, encoding="utf-8") as file:
            source = file.read()
    template = ChatTemplate(source or tokenizer.chat_template or PLAIN_TEMPLATE, tokenizer, options.limits)
    found = detect(template.source)
    dialects = Dialects(options.reasoning_parser or found.reasoning, options.tool_call_parser or found.tools)
    for name, known in ((dialects.reasoning, REASONING), (dialects.tools, TOOLS)):
        if name and name not in known:
            raise ValueError(f"there is no parser {name!r}; there are {', '.join(sorted(known))}")
    dialect = REASONING.get(dialects.reasoning)
    end = tuple(tokenizer.encode(dialect.end, False)) if dialect else ()
    return Text(tokenizer, ChatPrompt(tokenizer, template), dialects, end)


def vocabulary_of(tokenizer: Tokenizer, facts: ModelFacts, markers: tuple[str, ...] = ()) -> Vocabulary:
    """For grammars: special tokens stand for nothing, except those that a call is written with."""
    specials = tokenizer.vocabulary.specials
    special = tokenizer.vocabulary.special_ids - {specials[text] for text in markers if text in specials}
    size = min(tokenizer.vocabulary.size, facts.vocab_size)
    pieces = [b"" if token in special else tokenizer.token_bytes(token) for token in range(size)]
    return Vocabulary(pieces, facts.eos_ids)


FRONT: web.AppKey[Front] = web.AppKey("front", Front)


def front_of(request: web.Request) -> Front:
    return request.app[FRONT]
