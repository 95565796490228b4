#!/usr/bin/env python3
"""Checks that llama.cpp computes the same model before its speed is compared.

usage: check.py PEER_BENCH MODEL.gguf GOLDEN_DIR NAME [NAME ...]

Feeds the ids of GOLDEN_DIR/NAME.safetensors to llama.cpp, flash-attention off and on, and compares with the golden
values (fp32). BF16 weights, activations and F16 cache explain a few hundredths; a wrong tensor or router does not.
Exit 1 if the last top-1 differs, if under 95% of all top-1 ids agree, or if the mean |log-prob difference| over the
agreeing positions is above 0.05.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile


def read_golden(path):
    with open(path, "rb") as f:
        header_bytes = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(header_bytes))
        data = f.read()

    def values(name, code):
        begin, end = header[name]["data_offsets"]
        return struct.unpack("<%d%s" % ((end - begin) // 4, code), data[begin:end])

    return {"ids": values("ids", "i"), "last": values("last_logits", "f"),
            "top1": values("top1_ids", "i"), "logprobs": values("top1_logprobs", "f")}


def run_peer(tool, gguf, ids, flash, n_vocab):
    with tempfile.TemporaryDirectory() as folder:
        ids_path, out_path = os.path.join(folder, "ids"), os.path.join(folder, "out")
        with open(ids_path, "wb") as f:
            f.write(struct.pack("<%di" % len(ids), *ids))
        subprocess.run([tool, "logits", gguf, ids_path, out_path, flash], check=True)
        with open(out_path, "rb") as f:
            data = f.read()
    n = len(ids)
    return struct.unpack("<%df%di%df" % (n_vocab, n, n), data)


def compare(tool, gguf, golden_dir, name, flash):
    g = read_golden(os.path.join(golden_dir, name + ".safetensors"))
    n, n_vocab = len(g["ids"]), len(g["last"])
    out = run_peer(tool, gguf, g["ids"], flash, n_vocab)
    last, top1, logprobs = out[:n_vocab], out[n_vocab:n_vocab + n], out[n_vocab + n:]
    same = [i for i in range(n) if top1[i] == g["top1"][i]]
    agree = len(same) / n
    mean = sum(abs(logprobs[i] - g["logprobs"][i]) for i in same) / max(1, len(same))
    worst = max(abs(a - b) for a, b in zip(last, g["last"]))
    good = top1[-1] == g["top1"][-1] and agree >= 0.95 and mean <= 0.05
    print(json.dumps({"check": name, "flash": flash == "on", "tokens": n, "last_top1_equal": top1[-1] == g["top1"][-1],
                      "last_logits_max_diff": round(worst, 4), "top1_agree": round(agree, 5),
                      "mean_logprob_diff": round(mean, 5), "same_model": good}), flush=True)
    return good


def main():
    if len(sys.argv) < 5:
        sys.exit("usage: check.py PEER_BENCH MODEL.gguf GOLDEN_DIR NAME [NAME ...]")
    tool, gguf, golden_dir = sys.argv[1:4]
    results = [compare(tool, gguf, golden_dir, name, flash) for name in sys.argv[4:] for flash in ("off", "on")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
