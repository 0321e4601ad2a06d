"""Constrained output: compiled grammars and, per row, which tokens may come next. Over xgrammar; knows no sampling.

    GrammarError             the text is not a grammar that can be used
    GrammarBackend           vocabulary + bounded cache of compiled grammars (compile off the loop: it is CPU work)
    GrammarRow               one request's place in its grammar

A row follows the tokens that its request emitted. After a retraction or a restart it is rebuilt from them, so its
state is a function of the grammar and the history alone.
"""

from __future__ import annotations

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from tsd.engine.protocol import Grammar, Vocabulary
from tsd.engine.schema_holes import SchemaHoles
from tsd.engine.stand_ins import stand_in

with stand_in("transformers"):
    import torch
    import xgrammar

CACHED_GRAMMARS = 256
CACHE_BYTES = 256 * 1024 * 1024
COMPILE_THREADS = 2
MAX_INDENT = 32
_SPECIAL = re.compile(r"[^A-Za-z0-9_]")


class GrammarError(ValueError):
    """The message is for the client."""


class GrammarBackend:
    """Compiles and caches. `compile` may run in a thread; one at a time."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """`vocab_size` is that of the logits, which may be wider than the vocabulary."""
        self.vocab_size = vocab_size
        pieces = list(vocabulary.pieces[:vocab_size])
        pieces += [b""] * (vocab_size - len(pieces))
        stops = [token for token in vocabulary.stop_token_ids if token < vocab_size]
        self._info = xgrammar.TokenizerInfo(pieces, vocab_size=vocab_size, stop_token_ids=stops or None)
        self._compiler = xgrammar.GrammarCompiler(
            self._info, max_threads=COMPILE_THREADS, cache_enabled=True, cache_limit_bytes=CACHE_BYTES
        )
        self._cache: OrderedDict[tuple[str, str], xgrammar.CompiledGrammar] = OrderedDict()

    def cached(self, grammar: Grammar) -> xgrammar.CompiledGrammar | None:
        key = (grammar.kind, grammar.text)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
        return found

    def compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        """Raises GrammarError for a text that xgrammar refuses."""
        found = self.cached(grammar)
        if found is not None:
            return found
        try:
            found = _compile(self._compiler, grammar)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            xgrammar.InvalidJSONError,
            xgrammar.InvalidStructuralTagError,
        ) as error:
            raise GrammarError(f"the {grammar.kind} cannot be used: {_first_line(error)}") from error
        self._cache[grammar.kind, grammar.text] = found
        while len(self._cache) > CACHED_GRAMMARS:
            self._cache.popitem(last=False)
        return found

    def row(self, grammar: Grammar, history: Iterable[int] = ()) -> GrammarRow:
        """A request's row, having followed the tokens it has emitted so far."""
        row = GrammarRow(self.compile(grammar), grammar)
        row.replay(history)
        return row

    def bitmask(self, rows: int) -> torch.Tensor:
        """int32 [rows, ceil(vocab / 32)] on the CPU, everything allowed: bit i % 32 of word i // 32 is token i."""
        return xgrammar.allocate_token_bitmask(rows, self.vocab_size)


class GrammarRow:
    """Not thread-safe: `fill` and `accept` of one row alternate."""

    __slots__ = ("_end", "_grammar", "_matcher", "_recent", "broken", "constrained")

    def __init__(self, compiled: xgrammar.CompiledGrammar, grammar: Grammar) -> None:
        self._grammar = compiled
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._end = grammar.reasoning_end
        self._recent: list[int] = []
        self.constrained = not (grammar.after_reasoning and grammar.reasoning_end)
        """False while the row is still reasoning: any token may come."""
        self.broken = False
        """A token was accepted that the grammar does not allow (only a caller that ignores the mask can do that)."""

    @property
    def finished(self) -> bool:
        """The grammar is complete and its stop token was accepted: nothing may follow."""
        return self.constrained and self._matcher.is_terminated()

    def fill(self, bitmask: torch.Tensor, index: int) -> bool:
        """Writes row `index` of the mask. False when everything is allowed (and the row of the mask says so)."""
        if not self.constrained or self.broken or self._matcher.is_terminated():
            bitmask[index].fill_(-1)
            return False
        return bool(self._matcher.fill_next_token_bitmask(bitmask, index))

    def accept(self, token: int) -> bool:
        """Follows one emitted token. False when the grammar does not allow it: the row is then broken."""
        if not self.constrained:
            self._reason(token)
            return True
        if self.broken:
            return False
        if self._matcher.is_terminated():
            return True
        self.broken = not self._matcher.accept_token(token)
        return not self.broken

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that were accepted while constrained."""
        if count and self.constrained:
            self._matcher.rollback(count)

    def replay(self, history: Iterable[int]) -> None:
        for token in history:
            self.accept(token)

    def _reason(self, token: int) -> None:
        self._recent.append(token)
        del self._recent[: -len(self._end)]
        if tuple(self._recent) == self._end:
            self.constrained = True


def _compile(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> xgrammar.CompiledGrammar:
    if grammar.kind == "json_object":
        return compiler.compile_grammar(schema_rules('{"type": "object"}'))
    if grammar.kind == "json_schema":
        return compiler.compile_grammar(schema_rules(grammar.text))
    if grammar.kind == "regex":
        return compiler.compile_regex(grammar.text)
    if grammar.kind == "ebnf":
        return compiler.compile_grammar(grammar.text)
    if grammar.kind == "choice":
        return compiler.compile_grammar(choice_ebnf(json.loads(grammar.text)))
    if grammar.kind == "structural_tag":
        return compiler.compile_structural_tag(json.dumps(tag_rules(json.loads(grammar.text)), ensure_ascii=False))
    raise GrammarError(f"constraint kind {grammar.kind!r} is unknown")


_LITERAL_OR_CLASS = re.compile(r"""(?s)"(?:\\.|[^"\\])*"|\[(\^?)((?:\\.|[^\]\\])*)\]""")
_EXCLUDED = r"\0-\x1f\"\\"
_ANY = r"\0-\U0010ffff"


def strict_strings(rules: str) -> str:
    """xgrammar's rules for strings with a length or a pattern let control characters and bare quotes through, which
    JSON does not: every open-ended character class of the rules is narrowed to what may stand in a string."""

    def narrow(match: re.Match[str]) -> str:
        negated, body = match[1], match[2]
        if body is None or (not negated and body != _ANY) or (negated and body.startswith(_EXCLUDED)):
            return match[0]
        return f"[^{_EXCLUDED}{body if negated else ''}]"

    return _LITERAL_OR_CLASS.sub(narrow, rules)


def schema_rules(schema: str) -> str:
    """The rules that a schema's JSON follows, as EBNF. Raises ValueError or RuntimeError for one that has none.

    A string with a length is a repetition of one character class, which xgrammar (from 0.2.9 on) counts at no cost. It
    leaves out escapes, that are several characters: with them as an alternative a mask of 49,152 tokens takes 80 ms.
    """
    holes = SchemaHoles(schema)
    hidden = json.dumps(holes.hide(json.loads(schema)), ensure_ascii=False)
    rules = str(xgrammar.Grammar.from_json_schema(hidden))
    rules = holes.reveal(plain_escapes(strict_strings(rules)))
    return share_rules(_ANY_SPACE.sub(lambda _: _SPACE, rules)) + _INDENTS


def tag_rules(value: Any) -> Any:
    """A structural tag whose schemas are written out as rules: they are then as strict as a schema alone."""
    if isinstance(value, list):
        return [tag_rules(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema" and value.get("style", "json") == "json" and "json_schema" in value:
        return {"type": "grammar", "grammar": schema_rules(json.dumps(value["json_schema"], ensure_ascii=False))}
    return {key: item if key == "json_schema" else tag_rules(item) for key, item in value.items()}


_RULE_TOKEN = re.compile(r"""(?s)"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z_][A-Za-z0-9_]*""")


def share_rules(rules: str) -> str:
    """Rules of the same body become one: each rule is compiled by itself."""
    bodies = dict(line.split(" ::= ", 1) for line in rules.splitlines() if " ::= " in line)
    while same := _doubles(bodies):
        rename = functools.partial(_renamed, same)
        bodies = {name: _RULE_TOKEN.sub(rename, body) for name, body in bodies.items() if name not in same}
    return "\n".join(f"{name} ::= {body}" for name, body in bodies.items()) + "\n"


def _doubles(bodies: dict[str, str]) -> dict[str, str]:
    """Rule → an earlier one of the same body."""
    first: dict[str, str] = {}
    kept = {name: first.setdefault(body, name) for name, body in bodies.items() if name != "root"}
    return {name: other for name, other in kept.items() if name != other}


def _renamed(same: dict[str, str], match: re.Match[str]) -> str:
    return same.get(match[0], match[0])


_ANY_SPACE = re.compile(r"\[ (?:\\[nrt])+\]\*")
"""Releases differ in whether a carriage return is white space."""
_SPACE = r'("" | [ ] | "\n" | "\n" tsd_indent1)'
"""Between two JSON tokens: a model may indent, but not fall into blank lines or endless spaces. xgrammar's own bound on
white space costs 60 ms of compilation a property; a rule that may be empty loses the comma after it."""
_INDENTS = "".join(f"tsd_indent{n} ::= [ \\t] | [ \\t] tsd_indent{n + 1}\n" for n in range(1, MAX_INDENT))
_INDENTS += f"tsd_indent{MAX_INDENT} ::= [ \\t]\n"
_ESCAPE = re.compile(r"(?s)\\(?:x([0-9a-f]{2})|.)")


def plain_escapes(rules: str) -> str:
    r"""xgrammar writes ß as \xdf, and reads \xdfe as one character: four digits leave no doubt."""
    return _ESCAPE.sub(lambda match: f"\\u00{match[1]}" if match[1] else match[0], rules)


def choice_ebnf(choices: Sequence[str]) -> str:
    """A grammar that allows exactly these texts; what is not plain is written as code points."""

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return "root ::= " + " | ".join(f'"{_SPECIAL.sub(escape, choice)}"' for choice in choices)


def _first_line(error: Any) -> str:
    """What xgrammar says, without its source positions."""
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    text = re.sub(r"^\[[^\]]*\]\s*|/\S+:\d+:?\s*", "", text)
    return text[:300]
