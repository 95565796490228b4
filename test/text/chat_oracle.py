#!/usr/bin/python3
"""Golden and random cases for chat templates, made with python3-jinja2 set up as Hugging Face transformers sets it up.

  chat_oracle.py golden                 rewrites test/golden/chat_cases.json and chat_random.json
  chat_oracle.py random [N [SEED]]      makes N random cases and runs build/test_chat on them

Run it in the repository root. It is for developers: neither the build nor the tests need it.
"""
import json
import random
import subprocess
import sys
import tempfile

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"


def environment():
    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


ENVIRONMENT = environment()


def render(case, text):
    """What Jinja makes of a case; None if it refuses."""
    variables = {"messages": case["messages"], "tools": case.get("tools"), "documents": None,
                 "add_generation_prompt": case.get("generate", False), "bos_token": BOS, "eos_token": EOS}
    variables.update(case.get("kwargs", {}))
    try:
        return ENVIRONMENT.from_string(text).render(**variables)
    except Exception:  # whatever a template does wrong, in Jinja or in Python
        return None


# ---- golden conversations

def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, calls=None):
    made = {"role": "assistant", "content": content}
    if calls is not None:
        made["tool_calls"] = calls
    return made


def tool(content):
    return {"role": "tool", "content": content}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "nothing": [],
    "one question": [user("What is a hash table?")],
    "empty question": [user("")],
    "two turns": [user("Hi"), assistant("Hello."), user("Bye")],
    "system": [system("Be brief."), user("Hi")],
    "three systems": [system("One."), user("Hi"), system("Two."), system(""), assistant("Yes")],
    "only a system": [system("Alone")],
    "answer at the end": [user("Hi"), assistant("Hello")],
    "assistant without content": [user("Hi"), assistant(None), user("Still there?")],
    "unknown role": [{"role": "critic", "content": "No."}, user("Hi")],
    "white space": [system("  \n lead"), user("\n\n  padded \t\n"), assistant(" \n")],
    "unicode": [user("Größe 漢字 \U0001F600 e\u0301 \u200b\ufeff \u3000"), assistant("ＡＢＣ ﷽")],
    "control tokens in contents": [system("<｜end▁of▁sentence｜>"), user("a<｜User｜>b<｜Assistant｜>c"),
                                   assistant("<｜begin▁of▁sentence｜>"), user("<｜tool▁calls▁begin｜>")],
    "half tokens in contents": [user("<｜"), assistant("User｜>"), user("<｜Assist"), assistant("ant｜>")],
    "template code in contents": [user("{{ 7*7 }}{% for x in y %}{#"), assistant("{% endfor %}#}}}")],
    "one tool call": [user("Weather?"), assistant(None, [call("weather", '{"city": "Ulm"}')]), tool('{"t": 7}'),
                      assistant("7 degrees")],
    "two tool calls": [user("Weather?"), assistant(None, [call("weather", '{"city": "Ulm"}'), call("time", "{}")]),
                       tool("7"), tool("noon"), assistant("Warm"), user("Thanks")],
    "tool output last": [user("Weather?"), assistant(None, [call("weather", "{}")]), tool("rain")],
    "tool calls with content": [user("?"), assistant("Let me look.", [call("look", "{}")]), tool("seen")],
    "no tool calls": [user("?"), assistant(None, [])],
    "arguments that are no text": [user("?"), assistant(None, [call("f", {"a": 1})])],
    "call without a function": [user("?"), assistant(None, [{"type": "function"}])],
    "long": [user("word " * 300 + "\n\nWhat was the word?")],
}

TEMPLATES = ["test/data/spark_66m.jinja", "test/data/deepseek_v3.jinja"]


def golden_cases():
    for path in TEMPLATES:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for name, messages in CONVERSATIONS.items():
            for generate in (True, False):
                case = {"name": f"{path}: {name}", "file": path, "messages": messages, "generate": generate}
                yield case | {"expect": render(case, text)}


# ---- random templates

class Writer:
    """Writes random templates. In alphabet mode the origin of every byte shows: template text is ASCII, contents are
    CJK, everything else from outside is Hebrew."""

    def __init__(self, rng, alphabet):
        self.rng = rng
        self.alphabet = alphabet
        self.names = ["messages", "missing"]
        self.loops = 0
        self.scopes = 0
        self.macros = []

    def pick(self, *choices):
        return self.rng.choice(choices)()

    def literal(self):
        words = ["", "a", "ab", " x ", "<|", "|>", "user", "b\\n", "it\\'s", "q\\\"", "\\x41", "\\u0042", "A B", "\\t",
                 "aab", "-"]
        if not self.alphabet:
            words += ["ㅎ", "｜", "\\u4e2d", "\\z", "{{", "%}"]
        return "'" + self.rng.choice(words) + "'"

    def message(self):
        choices = ["messages[0]", "messages[-1]", "messages|first", "messages|last"]
        if "message" in self.names:
            choices += ["message"] * 6
        chosen = self.rng.choice(choices)
        return f"({chosen})" if "|" in chosen else chosen

    def content(self):
        return self.message() + self.rng.choice(["['content']", ".content"])

    def outside(self):
        """A string from outside that is no content."""
        if self.alphabet:
            return self.rng.choice(["word", "words[0]", "words[-1]", "table['\\u05d0']"])
        return self.rng.choice([self.message() + "['role']", "word", "words[1]", "table.name", "table['k']"])

    def integer(self, depth):
        if depth <= 0:
            return str(self.rng.choice([0, 1, 2, 3, 5, 7, 10, 100]))
        r = self.rng.randrange(10)
        if r < 3:
            return str(self.rng.choice([0, 1, 2, 3, 4, 11]))
        if r < 5:
            return f"({self.integer(depth - 1)} {self.rng.choice(['+ ', '- ', '* ', '// 3 -', '% -3 +', '% 4 *'])} {self.integer(depth - 1)})"
        if r == 5:
            return f"({self.rng.choice([self.string, self.sequence])(depth - 1)})|length"
        if r == 6 and self.loops:
            return "loop." + self.rng.choice(["index", "index0", "revindex", "revindex0", "length"])
        if r == 7:
            return f"-{self.integer(depth - 1)}"
        if r == 8:
            return f"({self.string(depth - 1)}).find({self.string(depth - 1)})"
        return "ns.n" if self.rng.random() < .9 else f"ns.{self.rng.choice('sbx')}"

    def string(self, depth):
        if depth <= 0:
            return self.pick(self.literal, self.literal, self.content, self.outside, lambda: "bos_token", lambda: "ns.s")
        s = lambda: self.string(depth - 1)
        p = lambda: "(" + self.string(depth - 1) + ")"
        i = lambda: self.integer(depth - 1)
        o = lambda: self.rng.choice(["", i(), "-" + i()])
        n = lambda: self.rng.choice(["'a'", "'漢'", "' '", "'\\n'", "'|>'", "(" + s() + " ~ '<')"] if not self.alphabet else ["'a'", "' '", "word", "(" + s() + " ~ '<')"])
        v = lambda: self.rng.choice(["1", "2", "-1", "3", "-2", "ns.n|abs + 1"])
        choices = [
            lambda: f"{s()} + {s()}", lambda: f"{s()} ~ {s()} ~ {i()}", lambda: f"({s()} + {s()})",
            lambda: f"{p()}|trim", lambda: f"{p()}.strip()", lambda: f"{p()}.lstrip({s()})", lambda: f"{p()}.rstrip()",
            lambda: f"{p()}|upper", lambda: f"{p()}.lower()", lambda: f"{p()}|capitalize",
            lambda: f"{p()}.replace({s()}, {s()})", lambda: f"{p()}|replace({s()}, {s()}, {i()})",
            lambda: f"{p()}.split({n()})[{self.rng.choice([0, 0, -1, 1])}]", lambda: f"{p()}.split({n()}, {i()})|last",
            lambda: f"{p()}.split()|join({s()})", lambda: f"{p()}[{o()}:{o()}]", lambda: f"{p()}[{o()}:{o()}:{v()}]",
            lambda: f"{p()}[{i()}]|default({s()})", lambda: f"({self.sequence(depth - 1)})|join({s()})", lambda: f"{p()}|reverse",
            lambda: f"{s()} if {self.truth(depth - 1)} else {s()}", lambda: f"{p()}|default({s()}, true)",
            lambda: f"missing|default({s()})", lambda: f"{i()}|string", lambda: f"{p()} * {self.rng.randrange(4)}",
            lambda: f"{p()}.splitlines()|join('/')", lambda: f"{p()}|first", lambda: f"{p()}|list|last",
            lambda: f"{p()}.removeprefix({s()})", lambda: f"'+'.join({p()}.split())",
        ]
        if self.macros:
            choices += [lambda: f"{self.rng.choice(self.macros)}({s()})"] * 3
        if not self.alphabet:
            choices += [lambda: f"{self.any_of(depth - 1)}|tojson", lambda: f"table|tojson(indent={self.rng.randrange(3)})",
                        lambda: f"{p()}|tojson", lambda: f"tools|tojson", lambda: f"{self.any_of(depth - 1)}|string",
                        lambda: f"tools|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':'))"]
        return self.rng.choice(choices)()

    def truth(self, depth):
        if depth <= 0:
            return self.rng.choice(["true", "false", "missing", "none", "ns.b", "add_generation_prompt", "words"])
        t = lambda: self.truth(depth - 1)
        a = lambda: self.any_of(depth - 1)
        i = lambda: self.integer(depth - 1)
        s = lambda: "(" + self.string(depth - 1) + ")"
        choices = [
            lambda: f"{t()} and {t()}", lambda: f"{t()} or {t()}", lambda: f"not {t()}", lambda: f"({t()})",
            lambda: f"{a()} == {a()}", lambda: f"{a()} != {a()}", lambda: f"{i()} {self.rng.choice(['<', '<=', '>', '>='])} {i()}",
            lambda: f"{i()} < {i()} <= {i()}", lambda: f"{s()} < {s()}", lambda: f"{s()} in {s()}",
            lambda: f"{s()} not in ({self.sequence(depth - 1)})", lambda: f"{s()}.startswith({s()})",
            lambda: f"{s()}.endswith(({s()}, {s()}))", lambda: f"{self.message()}['role'] == 'user'",
            lambda: f"{a()} is {self.rng.choice(['', 'not '])}" + self.rng.choice(
                ["defined", "none", "string", "mapping", "iterable", "number", "true", "false", "sequence", "undefined",
                 "boolean", "integer", "float"]),
            lambda: f"{i()} is odd", lambda: f"{i()} is divisibleby 3", lambda: f"{a()} is eq({a()})",
            lambda: f"'tool_calls' in {self.message()}",
        ]
        if self.loops:
            choices += [lambda: "loop.first", lambda: "loop.last", lambda: "loop.previtem is defined"]
        return self.rng.choice(choices)()

    def sequence(self, depth):
        choices = [lambda: "words", lambda: "range(3)|list", lambda: f"range({self.rng.randrange(5)}, 0, -1)|list",
                   lambda: f"messages[{self.rng.randrange(-2, 3)}:]", lambda: self.rng.choice(["missing", "[]", "words"]), lambda: "[]", lambda: "()"]
        if depth > 0:
            items = lambda: ", ".join(self.string(depth - 1) for _ in range(self.rng.randrange(4)))
            choices += [lambda: f"[{items()}]", lambda: f"({items()},)" if self.rng.random() < .5 else "('a',)",
                        lambda: f"({self.string(depth - 1)}).split({self.rng.choice([chr(39) + w + chr(39) for w in ['a', 'b', ' ', '<']])})", lambda: f"({self.sequence(depth - 1)})|list",
                        lambda: f"(words + [{items()}])", lambda: f"({self.sequence(depth - 1)})|reverse|list"]
            choices += [lambda: "table.keys()|list", lambda: "table.values()|list"]
        return self.rng.choice(choices)()

    def any_of(self, depth):
        choices = [lambda: "(" + self.string(depth) + ")", lambda: "(" + self.integer(depth) + ")", lambda: "missing", lambda: "none",
                   lambda: "(" + self.truth(depth) + ")", lambda: self.sequence(depth), lambda: self.rng.choice(self.names),
                   lambda: "table", lambda: "ns", lambda: self.message() + ".tool_calls", lambda: "table.get('k')",
                   lambda: f"table.get({self.literal()}, {self.integer(0)})"]
        if not self.alphabet:
            choices += [lambda: self.rng.choice(["1.5", "2.0", "1e20", "0.1 + 0.2", "7 / 2", "-3 // 2.0", "-7 % 2.5", "number"]),
                        lambda: "{" + f"'a': {self.integer(0)}, 'b': [{self.string(0)}]" + "}",
                        lambda: "dict(a=1)"]
        return self.rng.choice(choices)()

    def printed(self):
        r = self.rng.random()
        if r < .7:
            return self.string(self.rng.randrange(4))
        if r < .85:
            return self.integer(2)
        return self.truth(2) if r < .95 else self.any_of(2)

    def sign(self, print_=False):
        left = self.rng.choice(["", "", "", "-", "-", "+"])
        right = self.rng.choice(["", "", "", "-", "-"] + ([] if print_ else ["+"]))
        return left, right

    def tag(self, inside):
        left, right = self.sign()
        gap = self.rng.choice([" ", " ", "\n", "  "])
        return "{%" + left + gap + inside + " " + right + "%}"

    def text(self):
        return self.rng.choice(["", " ", "\n", "\n  ", "  \n", "x", "\n\n", "a\n  b", " \t", "<|t|>", "\r\n", "}}", "{ { ", "\n\t "])

    def block(self, depth):
        before = list(self.names)
        made = "".join(self.text() + self.statement(depth) for _ in range(self.rng.randrange(1, 4))) + self.text()
        self.names = before
        return made

    def statement(self, depth):
        left, right = self.sign(True)
        show = lambda: "{{" + left + " " + self.printed() + " " + right + "}}"
        if depth <= 0:
            return show()
        r = self.rng.randrange(20)
        if r < 7:
            return show()
        if r < 10:
            made = self.tag("if " + self.truth(2)) + self.block(depth - 1)
            while self.rng.random() < .3:
                made += self.tag("elif " + self.truth(2)) + self.block(depth - 1)
            if self.rng.random() < .5:
                made += self.tag("else") + self.block(depth - 1)
            return made + self.tag("endif")
        if r < 13:
            return self.loop(depth)
        if r < 15:
            name = self.rng.choice(["x", "y"])
            self.names.append(name)
            return self.tag(f"set {name} = " + self.any_of(2))
        if r < 17:
            key, value = self.rng.choice([("s", self.string(2)), ("n", self.integer(2)), ("b", f"({self.truth(2)}) == true")])
            if self.rng.random() < .05:
                value = self.any_of(1)
            return self.tag(f"set ns.{key} = {value}")
        if r == 17:
            name = self.rng.choice(["x", "y"])
            loops, self.loops = self.loops, 0
            self.scopes += 1
            made = self.tag(f"set {name}") + self.block(depth - 1) + self.tag("endset")
            self.scopes -= 1
            self.loops = loops
            self.names.append(name)
            return made
        if r == 18 and self.loops:
            return self.tag(f"if {self.truth(1)}") + self.tag(self.rng.choice(["break", "continue"])) + self.tag("endif")
        return "{#" + self.rng.choice(["", "-"]) + " note \n" + self.rng.choice(["", "-"]) + "#}"

    def loop(self, depth):
        r = self.rng.randrange(4)
        before = list(self.names)
        if r == 0:
            head, names = "for message in messages", ["message"]
        elif r == 1:
            head, names = f"for item in {self.sequence(2)}", ["item"]
        elif r == 2:
            head, names = self.rng.choice(["for key, value in table.items()", "for key, value in table|items"]), ["key", "value"]
        else:
            head, names = f"for message in messages if {self.rng.choice(['message.content', 'not message.tool_calls', 'message.role != missing'])}", ["message"]
        self.names += names
        self.loops += 1
        self.scopes += 1
        made = self.tag(head) + self.block(depth - 1)
        self.loops -= 1
        self.scopes -= 1
        self.names = before
        if self.rng.random() < .3:
            made += self.tag("else") + self.block(depth - 1)
        return made + self.tag("endfor")

    def macro(self):
        name = f"m{len(self.macros)}"
        self.names, before = self.names + ["p", "q"], self.names
        made = self.tag(f"macro {name}(p, q={self.string(0)})") + self.block(1) + self.tag("endmacro")
        self.names = before
        self.macros.append(name)
        return made

    def template(self):
        made = self.tag("set ns = namespace(s='', n=1, b=false)")
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            made += self.text() + self.macro()
        return made + self.block(3) + self.block(3)


def random_case(rng):
    alphabet = rng.random() < .5
    if alphabet:
        letters = ["漢", "字", "語", "\u3000", "\u2028", "文"]
        content = lambda: "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 3, 8])))
        kwargs = {"word": "אב", "words": ["ג", "דה", ""], "table": {"א": "ו", "ז": "ח"}}
        tools = [{"ט": "י"}]
        calls = [{"כ": "ל"}]
    else:
        parts = ["hello", " ", "\n", "<｜User｜>", "{{ 7*7 }}", "ab", "ㅎ", "漢", "\t", "\"", "\\", "aa", "<|", "|>", "\x7f", "\u2028"]
        content = lambda: "".join(rng.choice(parts) for _ in range(rng.choice([0, 1, 2, 5])))
        kwargs = {"word": rng.choice(["w", "", "user", "a b"]), "words": ["a", "b\n", "ab"], "number": rng.choice([0, -1, 2.5, 1e-7, 1e16, 123456.75]),
                  "table": {"k": "v", "name": "t", "deep": {"n": [1, 2.5, None, True, "ㅎ"], "e": {}, "l": []}}}
        tools = rng.choice([None, [], [{"type": "function", "function": {"name": "f", "parameters": {"x": 0.5, "y": [1, "ㅏ\u2028"]}}}]])
        calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = []
    for _ in range(rng.choice([1, 2, 3])):
        message = {"role": rng.choice(["user", "assistant", "system"]), "content": content() if rng.random() < .98 else None}
        if rng.random() < .2:
            message["tool_calls"] = calls
        messages.append(message)
    case = {"messages": messages, "tools": tools, "kwargs": kwargs, "generate": rng.random() < .5, "alphabet": alphabet}
    case["text"] = Writer(rng, alphabet).template()
    return case


def random_cases(n, seed):
    rng = random.Random(seed)
    for i in range(n):
        case = random_case(rng)
        case["name"] = f"random {seed}/{i}"
        # In alphabet mode bos_token has to be ASCII.
        if case["alphabet"]:
            case["bos"] = "<s>"
            case["kwargs"]["bos_token"] = "<s>"
        case["expect"] = render(case, case["text"])
        case["kwargs"].pop("bos_token", None)
        yield case


def run_random(n, seed):
    cases = list(random_cases(n, seed))
    refused = sum(case["expect"] is None for case in cases)
    print(f"{n} cases, seed {seed}: Jinja refused {refused}")
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(cases, file, ensure_ascii=False)
        file.flush()
        return subprocess.run(["build/test_chat", file.name]).returncode


def write_cases(path, cases):
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


def main():
    if sys.argv[1:2] == ["golden"]:
        write_cases("test/golden/chat_cases.json", golden_cases())
        write_cases("test/golden/chat_random.json", random_cases(120, 7))
        return 0
    if sys.argv[1:2] == ["random"]:
        numbers = [int(word) for word in sys.argv[2:]] + [4000, 1][len(sys.argv) - 2:]
        return run_random(*numbers[:2])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
