#!/usr/bin/env python3
"""A prompt of half a million tokens over HTTP, as a client sees it: the first token cold, again, with another question and
after a restart from disk; a short question beside it; then short questions alone. Needs a GPU to be worth its time.
usage: serve_long.py BUILD OUT.json [BACKEND]      (about a minute on an H200; run in the root of the repository)"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

FACT = "One of the special magic numbers for blue-canyon is: 5550123. "
ASKED = "What is the special magic number for {} mentioned in the provided text?"
LONG = ["--max-model-len", "512k", "--rope", "yarn", "--rope-factor", "4"]


class Server:
    """firstlight serve on a port of its own, until it is stopped."""

    def __init__(self, build, backend, options):
        self.log = tempfile.TemporaryFile("w+")
        self.program = subprocess.Popen(
            [f"{build}/firstlight", "serve", f"{build}/models/spark-66m", "--backend", backend, "--port", "0",
             "--log-format", "json", *options], stderr=self.log)
        self.url = None
        while not self.url or not self.ready():
            time.sleep(0.05)
            self.log.seek(0)
            lines = self.log.readlines()
            if self.program.poll() is not None:
                sys.exit(f"the server ended: {''.join(lines[-3:])}")
            for line in lines:
                if '"event":"listening"' in line:
                    self.url = f"http://127.0.0.1:{json.loads(line)['port']}"

    def ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health").status == 200
        except OSError:
            return False

    def stop(self):
        self.program.terminate()
        if self.program.wait() != 0:
            sys.exit("the server did not end cleanly")

    def ask(self, parts, max_tokens=32):
        """One streamed chat: seconds to the first token and to the end, text, tokens, comments on the way."""
        content = [{"type": "text", "text": part} for part in parts]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        begin, out = time.time(), {"ttft_s": None, "text": "", "comments": 0}
        for line in urllib.request.urlopen(request):
            line = line.decode().rstrip()
            out["comments"] += line.startswith(": ")
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if text and out["ttft_s"] is None:
                out["ttft_s"] = time.time() - begin
            out["text"] += text or ""
            if chunk.get("usage"):
                out["prompt_tokens"] = chunk["usage"]["prompt_tokens"]
                out["cached_tokens"] = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        out["total_s"] = time.time() - begin
        return out


def book(number):
    """59 chapters, about 517,000 tokens, none of them in another book's cache; one hides the fact."""
    with open("share/demo/document.txt", encoding="utf8") as file:
        chapter = file.read()
    chapters = [f"Chapter {number}-{i}. {chapter}" for i in range(59)]
    chapters[23] += FACT
    return "\n".join(chapters)


def report(rows, kind, **row):
    rows.append({"kind": kind, **row})
    print(kind, {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items() if v != ""})


def long_prompts(build, backend, policy, rows):
    disk = tempfile.mkdtemp(prefix="firstlight-kv-")
    options = [*LONG, "--policy", policy, "--kv-disk", disk]
    first, canyon, lantern = book(1), ASKED.format("blue-canyon"), ASKED.format("hidden-lantern")
    server = Server(build, backend, options)
    report(rows, f"{policy}, cold", **server.ask([first, canyon]))
    report(rows, f"{policy}, again", **server.ask([first, canyon]))
    report(rows, f"{policy}, another question", **server.ask([first, lantern]))
    server.stop()
    server = Server(build, backend, options)
    report(rows, f"{policy}, after a restart", **server.ask([first, canyon]))
    big = threading.Thread(target=lambda: report(rows, f"{policy}, another book", **server.ask([book(2), canyon])))
    big.start()
    time.sleep(0.3)
    report(rows, f"{policy}, a question beside it", **server.ask(["The sky is blue.", "What is blue?"], 8))
    big.join()
    server.stop()
    subprocess.run(["rm", "-rf", disk], check=True)


def short_questions(build, backend, rows):
    server = Server(build, backend, ["--max-model-len", "8k", "--kv-tokens", "512k", "--max-num-seqs", "256"])
    for clients in (1, 16, 64):
        found = subprocess.run([f"{build}/firstlight", "bench", "serve", "--url", server.url, "--concurrency",
                                str(clients), "--duration", "12", "--json", "-q"], capture_output=True, check=True)
        load = json.loads(found.stdout)
        report(rows, f"questions of 128 to 512 tokens, {clients} clients", requests_per_s=load["requests_per_s"],
               answer_tokens_per_s=load["answer_tokens_per_s"], ttft_p50_s=load["all"]["ttft_s"]["p50"],
               ttft_p99_s=load["all"]["ttft_s"]["p99"], failed=load["all"]["failed"])
    server.stop()


def main():
    build, out, backend = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "cuda"
    rows = []
    for policy in ("window-anchors", "full"):
        long_prompts(build, backend, policy, rows)
    short_questions(build, backend, rows)
    with open(out, "w", encoding="utf8") as file:
        json.dump({"date": time.strftime("%Y-%m-%d"), "backend": backend, "cpus": os.cpu_count(), "rows": rows}, file,
                  indent=1)


main()
