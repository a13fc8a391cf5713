"""Characters of a JSON string as bytes, and regular expressions over them.

Each character has one spelling, that of `json.dumps(…, ensure_ascii=False)`: UTF-8, and an escape only where JSON needs
one. So two texts are equal where their strings are.
"""

from __future__ import annotations

import functools
import json
import re
import re._constants as codes
import re._parser as parser
import warnings

from llama_jax.grammars.automata import automaton, combined
from llama_jax.grammars.languages import (
    EMPTY,
    Automaton,
    Budget,
    Bytes,
    Choice,
    Edge,
    Repeat,
    Sequence,
    TooLargeError,
    text,
)
from llama_jax.plumbing.errors import UserError

LAST = 0x10FFFF
LONGEST, SET = 10_000, 1_000  # characters of a pattern, and the work of a set of them
BLOCKS = ((0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST))  # of equal length in UTF-8, no surrogates
ESCAPED = {*range(0x20), ord('"'), ord("\\")}
DIGITS, WORD = ((48, 57),), ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES, MORE_SPACES = ((9, 13), (32, 32)), ((9, 13), (28, 32))  # for every reader of patterns; also for Python's
# of a category: (what it holds, what it may hold)
CATEGORIES = {
    codes.CATEGORY_DIGIT: (DIGITS, DIGITS),
    codes.CATEGORY_SPACE: (SPACES, MORE_SPACES),
    codes.CATEGORY_WORD: (WORD, WORD),
}
NEGATED = {
    codes.CATEGORY_NOT_DIGIT: (DIGITS, DIGITS),
    codes.CATEGORY_NOT_SPACE: (SPACES, MORE_SPACES),
    codes.CATEGORY_NOT_WORD: (WORD, WORD),
}
LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
ONLY_PYTHON = re.compile(
    r"(?<!\\)(?:\\\\)*(\\[AZaUN]|\{,|\(\?#|\(\?P)"
)  # ECMAScript has no such, or reads it otherwise
SET_OF_NONE = re.compile(
    r"\\.|\[(\^?\])?(?:\\.|[^\\\]])*", re.S
)  # [1]: what Python reads as the first of a set's members
SPAN = r"\x{{{:x}}}-\x{{{:x}}}"  # of code points, within a set
# llguidance adds \" and \\ to a set of all control characters (\n or not). So a set without " or \ goes without U+001F.
LESS = r"&&[^\x{1f}]"
YEAR = r"([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
LEAP = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
DATE = (
    rf"({YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    rf"|{LEAP}-02-29)"
)
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[A-Za-z0-9](-?[A-Za-z0-9]){0,7}"  # without --, which marks encoded ones
HOURS, MINUTES, SECONDS = (rf"[0-9]{{1,6}}{unit}" for unit in "HMS")
HOURS = f"T({HOURS}({MINUTES}({SECONDS})?)?|{MINUTES}({SECONDS})?|{SECONDS})"
HOST = rf"({LABEL}\.){{0,9}}{LABEL}"
FORMATS = {  # RFC 3339, 4122, 2673, 1123; of e-mail addresses and URIs the usual ones
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"({OCTET}\.){{3}}{OCTET}",
    "duration": f"P([0-9]{{1,6}}D({HOURS})?|{HOURS}|[0-9]{{1,6}}W)",
    "hostname": HOST,
    "uri": rf"https?://{HOST}(:[1-9][0-9]{{0,3}})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~/=&-]*)?(#[A-Za-z0-9._~/-]*)?",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@({LABEL}\.){{1,9}}[A-Za-z]{{2,12}}",
}


def split(low: bytes, high: bytes, least: int, most: int) -> list[tuple[tuple[int, int], ...]]:
    """Texts of equal length from low to high, in the order of their bytes, as sequences of byte ranges. least, most:
    the bytes after the first."""
    if len(low) == 1:
        return [((low[0], high[0]),)]
    if low[0] == high[0]:
        return [((low[0], low[0]), *rest) for rest in split(low[1:], high[1:], least, most)]
    rests, first, last = len(low) - 1, low[0], high[0]
    before, after = [], []
    if low[1:] != bytes([least] * rests):
        before = [((first, first), *rest) for rest in split(low[1:], bytes([most] * rests), least, most)]
        first += 1
    if high[1:] != bytes([most] * rests):
        after = [((last, last), *rest) for rest in split(bytes([least] * rests), high[1:], least, most)]
        last -= 1
    middle = [((first, last), *[(least, most)] * rests)] if first <= last else []
    return before + middle + after


@functools.lru_cache(maxsize=4096)
def span(low: int, high: int) -> Bytes:
    return Bytes(frozenset(range(low, high + 1)))


def spans(low: bytes, high: bytes, least: int, most: int) -> list[Sequence]:
    return [Sequence(tuple(span(*one) for one in ranges)) for ranges in split(low, high, least, most)]


@functools.lru_cache(maxsize=1024)
def characters(ranges: tuple[tuple[int, int], ...]) -> object:
    """One character of these ranges of code points, as a JSON string spells it."""
    ascii_ = {code for low, high in ranges for code in range(low, min(high, 0x7F) + 1)}
    options: list = [text(json.dumps(chr(code))[1:-1]) for code in sorted(ascii_ & ESCAPED)]
    if plain := frozenset(ascii_ - ESCAPED):
        options.append(Bytes(plain))
    for low, high in ranges:
        for start, stop in BLOCKS:
            if (first := max(low, start)) <= (last := min(high, stop)):
                options += spans(chr(first).encode(), chr(last).encode(), 0x80, 0xBF)
    return options[0] if len(options) == 1 else automaton(Choice(tuple(options)), Budget()) if options else Choice(())


def without(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """All other code points."""
    free, rest = 0, []
    for low, high in sorted(ranges):
        if low > free:
            rest.append((free, low - 1))
        free = max(free, high + 1)
    return (*rest, (free, LAST)) if free <= LAST else tuple(rest)


ANY = characters(((0, LAST),))
ANYTHING = Repeat(ANY)


def members(items: list) -> tuple[tuple[int, int], ...]:
    """Code points of a set such as [^a-z\\d]. \\D, \\S and \\W stand for characters of ASCII: others are counted
    differently by different readers of patterns."""
    negated, ranges = items[0][0] is codes.NEGATE, []
    for kind, value in items[negated:]:
        if kind is codes.LITERAL:
            ranges.append((value, value))
        elif kind is codes.RANGE:
            ranges.append(value)
        elif value in CATEGORIES:
            ranges += CATEGORIES[value][negated]
            if negated:
                ranges.append((0x80, LAST))
        else:
            ranges += without((*NEGATED[value][not negated], (0x80, LAST)))
            if negated:
                ranges.append((0x80, LAST))
    return without(tuple(ranges)) if negated else tuple(sorted(ranges))


def ranges_of(kind, value) -> tuple[tuple[int, int], ...] | None:
    """Code points of what is one character of a pattern that Python's own parser has read; None for what is not."""
    if kind is codes.LITERAL:
        return ((value, value),)
    if kind is codes.NOT_LITERAL:
        return without(((value, value),))
    if kind is codes.IN:
        return members(value)
    return without(LINE_ENDS) if kind is codes.ANY else None


def read(parts, budget: Budget) -> object:
    """The node of a pattern that Python's own parser has read. Raises UserError for what is no regular language."""
    nodes = []
    for kind, value in parts:
        budget.take(SET if kind in (codes.IN, codes.NOT_LITERAL) else 1)
        if (ranges := ranges_of(kind, value)) is not None:
            nodes.append(characters(ranges))
        elif kind is codes.BRANCH:
            nodes.append(Choice(tuple(read(option, budget) for option in value[1])))
        elif kind is codes.SUBPATTERN and not value[1] and not value[2]:
            nodes.append(read(value[3], budget))
        elif kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, part = value
            nodes.append(Repeat(read(part, budget), least, None if most is codes.MAXREPEAT else int(most)))
        elif kind is codes.AT and value in (codes.AT_BEGINNING, codes.AT_END):
            nodes.append(Edge(value is codes.AT_END))
        else:
            raise UserError(f"has {str(value if kind is codes.AT else kind).lower()}, which is not supported")
    return Sequence(tuple(nodes)) if nodes else EMPTY


def explicit(pattern: str) -> str:
    """A pattern that `search` takes, each of its characters as a set of code points: so it says the same to readers
    that have other sets of spaces, or of what ends a line. One that it does not take stays as it is."""
    try:
        return spelled(parsed(pattern))
    except (re.error, OverflowError, ValueError, TypeError):
        return pattern


def parsed(pattern: str) -> parser.SubPattern:
    """Raises re.error, OverflowError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parser.parse(pattern)


def spelled(parts) -> str:
    found = ""
    for kind, value in parts:
        if (ranges := ranges_of(kind, value)) is not None:
            halves = [(max(low, a), min(high, b)) for low, high in ranges for a, b in ((0, 0xD7FF), (0xE000, LAST))]
            less = "" if all(any(low <= code <= high for low, high in ranges) for code in b'"\\') else LESS
            found += "[" + "".join(SPAN.format(*pair) for pair in halves if pair[0] <= pair[1]) + less + "]"
        elif kind is codes.BRANCH:
            found += f"(?:{'|'.join(map(spelled, value[1]))})"
        elif kind is codes.SUBPATTERN:
            found += f"(?:{spelled(value[3])})"
        elif kind is codes.AT:
            found += "$" if value is codes.AT_END else "^"
        else:
            least, most, part = value
            found += f"(?:{spelled(part)}){{{least},{'' if most is codes.MAXREPEAT else most}}}"
    return found


def search(pattern: str, budget: Budget) -> Automaton:
    """Strings in which a pattern occurs, as JSON Schema reads it: anywhere, unless ^ and $ say otherwise. Raises
    UserError for one that is not read, or beyond the bounds."""
    if len(pattern) > LONGEST:
        raise TooLargeError(f"has more than {LONGEST:,} characters")
    if found := ONLY_PYTHON.search(pattern):
        raise UserError(f"has {found[1]}, which is not supported")
    if any(found[1] for found in SET_OF_NONE.finditer(pattern)):
        raise UserError("has [], which is not supported")
    try:
        parts = parsed(pattern)
    except (re.error, OverflowError) as error:
        raise UserError(f"is not a regular expression that is read here ({error})") from None
    if parts.state.flags & ~re.UNICODE:
        raise UserError("has flags, which are not supported")
    return automaton(Sequence((ANYTHING, read(parts, budget), ANYTHING)), budget)


def string(least: int, most: int | None, patterns: list[str], formatted: str | None, budget: Budget) -> object:
    """A JSON string, with its quotes. least, most: characters."""
    bodies = [search(pattern, budget) for pattern in patterns]
    if formatted is not None:
        bodies.append(search(f"^({FORMATS[formatted]})$", budget))
    body = Repeat(ANY, least, most)
    if bodies:
        if least or most is not None:
            bodies.append(automaton(body, budget))
        body = functools.reduce(combined, bodies)
    return Sequence((text('"'), body, text('"')))
