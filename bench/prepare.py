"""From options and facts about the server to what the coordinator runs: plan, request shape and pace.

No I/O except reading data files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsd.bench.arrivals import offsets
from tsd.bench.coordinator import Pace, default_workers
from tsd.bench.datasets import DatasetOptions, agentic, dataset, swe
from tsd.bench.errors import UsageError
from tsd.bench.options import ServeOptions
from tsd.bench.plan import History, Kind, Plan, RequestShape, Session
from tsd.bench.server import Features, ServerFacts
from tsd.bench.store import PieceStore, Vocabulary
from tsd.bench.workloads import WORKLOADS, Workload

_DEFAULT_PROMPTS = 100


@dataclass(frozen=True)
class RunSpec:
    """One run of an invocation: a name for reports and files, its data, and its pace."""

    name: str
    dataset_name: str
    data: DatasetOptions
    concurrency: int | None
    workload: Workload | None


def run_specs(options: ServeOptions, seed: int) -> list[RunSpec]:
    """The runs that the options ask for; each draws other prompts."""
    if options.workload is not None:
        names = list(WORKLOADS) if options.workload == "all" else [options.workload]
        return [_fixed(WORKLOADS[name], options, seed + i) for i, name in enumerate(names)]
    levels: list[int | None] = [*options.parallel] if options.parallel else [options.max_concurrency]
    return [_free(options, level, seed + i) for i, level in enumerate(levels)]


def _fixed(workload: Workload, options: ServeOptions, seed: int) -> RunSpec:
    given = (options.num_prompts, options.input_len, options.output_len, options.turns, options.prefix_len)
    if any(value is not None for value in given) or options.request_rate or options.parallel or options.ramp:
        raise UsageError("--workload is a fixed shape: leave out the flags that change lengths, counts or rate")
    data = DatasetOptions(
        num_prompts=workload.sessions,
        input_len=workload.input_len,
        output_len=workload.output_len,
        prefix_len=workload.prefix_len,
        turns=workload.turns,
        seed=seed,
    )
    return RunSpec(workload.name, workload.dataset, data, workload.concurrency, workload)


def _free(options: ServeOptions, concurrency: int | None, seed: int) -> RunSpec:
    name = options.dataset_name
    defaults = {"agentic": (agentic.NEW, agentic.PREFIX, 64), "swe": (swe.FIRST, 0, concurrency or 1)}
    input_len, prefix_len, prompts = defaults.get(name, (1024, 0, _DEFAULT_PROMPTS))
    data = DatasetOptions(
        num_prompts=options.num_prompts or prompts,
        path=options.dataset_path,
        input_len=options.input_len or input_len,
        output_len=options.output_len,
        range_ratio=options.range_ratio,
        prefix_len=options.prefix_len if options.prefix_len is not None else prefix_len,
        turns=options.turns,
        turn_wait_s=options.turn_wait_s,
        time_scale=options.trace_scale,
        max_input_len=options.max_input_len,
        seed=seed,
    )
    label = f"{name}-c{concurrency}" if options.parallel else name
    return RunSpec(label, name, data, concurrency, None)


def prompt_kind(spec: RunSpec, options: ServeOptions) -> Kind:
    """Ids where nothing says otherwise: only they have an exact length."""
    dictated = dataset(spec.dataset_name).kind(spec.data)
    if options.backend == "openai-chat":
        if dictated == "ids" or options.prompt_format == "ids":
            raise UsageError("a chat route takes no token ids; use --backend openai")
        return "messages"
    if dictated == "messages":
        raise UsageError("this data set holds chat messages: use --backend openai-chat")
    return dictated or ("text" if options.prompt_format == "text" else "ids")


def build_plan(spec: RunSpec, kind: Kind, vocabulary: Vocabulary) -> Plan:
    """Raises DatasetError, or UsageError when nothing is left to send."""
    store = PieceStore(kind, vocabulary, spec.data.seed)
    sessions = dataset(spec.dataset_name).build(spec.data, store)
    if not sessions:
        raise UsageError(f"data set {spec.dataset_name} holds no request to send")
    return Plan(kind, store.pieces, sessions)


def warmup_plan(count: int, plan: Plan, vocabulary: Vocabulary, seed: int) -> Plan:
    """Single requests shaped like the first of the plan, with prompts of their own."""
    store = PieceStore(plan.kind, vocabulary, seed ^ 0x5EED)
    sessions = []
    for i in range(count):
        turn = plan.sessions[i % len(plan.sessions)].turns[0]
        piece = store.random(f"warm-up {i}", turn.input_tokens or 128)
        sessions.append(Session([type(turn)([piece], turn.max_tokens, turn.input_tokens)]))
    return Plan(plan.kind, store.pieces, sessions)


def history_mode(plan: Plan, features: Features, can_tokenize: bool) -> History:
    """How answers come back into the next turn's prompt."""
    if all(len(session.turns) == 1 for session in plan.sessions):
        return "none"
    if plan.kind != "ids":
        return "text"
    return "token_ids" if features.token_ids else "tokenize" if can_tokenize else "random"


HISTORY_WORDS = {
    "token_ids": "the server's own token ids (return_token_ids)",
    "tokenize": "ids of the answer's text by /tokenize, cut or filled to its length",
    "random": "random ids of the answer's length: the server gives no ids, so answers are never cache hits",
    "text": "the answer's text",
}


def parameters(options: ServeOptions, spec: RunSpec, features: Features, history: History) -> dict[str, object]:
    """Body fields that all requests share."""
    fields: dict[str, object] = {"temperature": options.temperature}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    if features.usage:
        wanted = options.chunk_usage == "on" or (options.chunk_usage == "auto" and spec.workload is None)
        stream: dict[str, object] = {"include_usage": True}
        if wanted and features.chunk_usage:
            stream["continuous_usage_stats"] = True
        fields["stream_options"] = stream
    if history == "token_ids":
        fields["return_token_ids"] = True
    return fields | options.extra_body


def first_shape(options: ServeOptions, facts: ServerFacts, kind: Kind, vocabulary: Vocabulary) -> RequestShape:
    """The shape before the server's features are known."""
    fields: dict[str, object] = {"temperature": options.temperature}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    return RequestShape(
        url=options.base_url,
        endpoint=options.endpoint,
        model=facts.model,
        kind=kind,
        parameters=fields | options.extra_body,
        api_key=options.api_key,
        insecure=options.insecure,
        idle_timeout_s=options.idle_timeout_s,
        request_timeout_s=options.request_timeout_s,
        vocab_low=vocabulary.low,
        vocab_high=vocabulary.high,
    )


def pace_of(plan: Plan, spec: RunSpec, options: ServeOptions) -> Pace:
    """Trace times when the data has them and no rate is given; a rate or ramp; else a closed loop."""
    rate = options.ramp or options.request_rate
    timed = all(session.at is not None for session in plan.sessions)
    if rate is None and timed and options.use_timestamps:
        return Pace(spec.concurrency, [session.at or 0.0 for session in plan.sessions])
    if rate is None or (rate == float("inf") and spec.concurrency):
        return Pace(spec.concurrency or len(plan.sessions))
    return Pace(spec.concurrency, offsets(len(plan.sessions), rate, options.burstiness, spec.data.seed))


def worker_count(pace: Pace, plan: Plan, options: ServeOptions) -> int:
    if options.workers is not None:
        return options.workers
    return default_workers(min(pace.slots or len(plan.sessions), len(plan.sessions)))
