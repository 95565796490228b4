#!/usr/bin/env python3
"""Writes a deepseek_v3 checkpoint folder as one GGUF file that llama.cpp's deepseek2 graph loads.

usage: to_gguf.py MODEL_DIR OUT.gguf

Only for the speed comparison in bench/peer: the product never reads GGUF. FP8 weights are multiplied by their 128x128
block scale and rounded once to BF16; embeddings and head stay BF16; norms, router and router bias are F32, as llama.cpp
wants them. kv_b_proj is stored split (attn_k_b transposed, attn_v_b), which makes llama.cpp use its absorbed MLA path.
Standard library only: bytes.translate does the dequantisation, one table a scale.
"""
import array
import json
import os
import struct
import sys

ALIGN_BYTES = 32
BLOCK = 128
F32, BF16 = 0, 30  # ggml tensor types
U32, FLOAT, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # GGUF value types
ROUTER_SIGMOID = 2


def bf16_bits(value):
    """Nearest-even BF16 bits of a finite value, by way of F32 as every other reader of the checkpoint does it."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def e4m3_value(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return None  # NaN
    if exponent == 0:
        return sign * mantissa * 2.0 ** -9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = [e4m3_value(code) for code in range(256)]


class Checkpoint:
    """The tensors of a folder of safetensors shards, read on demand."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            self.config = json.load(f)
        with open(os.path.join(folder, "tokenizer.json")) as f:
            self.tokenizer = json.load(f)
        self.tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                self._add_shard(os.path.join(folder, name))

    def _add_shard(self, path):
        with open(path, "rb") as f:
            header_bytes = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(header_bytes))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                self.tensors[name] = (entry["dtype"], entry["shape"], path, 8 + header_bytes + begin, end - begin)

    def raw(self, name):
        dtype, shape, path, offset, n_bytes = self.tensors[name]
        with open(path, "rb") as f:
            f.seek(offset)
            data = f.read(n_bytes)
        if len(data) != n_bytes:
            raise ValueError("%s: %s ends after %d of %d bytes" % (path, name, len(data), n_bytes))
        return dtype, shape, data

    def f32(self, name):
        dtype, _, data = self.raw(name)
        if dtype == "F32":
            return data
        if dtype != "BF16":
            raise ValueError("%s: F32 or BF16 wanted, found %s" % (name, dtype))
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return bytes(wide)

    def bf16(self, name):
        dtype, shape, data = self.raw(name)
        if dtype == "BF16":
            return data
        if dtype != "F8_E4M3":
            raise ValueError("%s: BF16 or F8_E4M3 wanted, found %s" % (name, dtype))
        return self._dequantise(name, shape, data)

    def _dequantise(self, name, shape, data):
        rows, cols = shape
        _, (scale_rows, scale_cols), scale_data = self.raw(name + "_scale_inv")
        if (scale_rows, scale_cols) != (-(-rows // BLOCK), -(-cols // BLOCK)):
            raise ValueError("%s: %d x %d scales do not fit %d x %d" % (name, scale_rows, scale_cols, rows, cols))
        scales = struct.unpack("<%df" % (scale_rows * scale_cols), scale_data)
        low, high = bytearray(len(data)), bytearray(len(data))
        for block_row in range(scale_rows):
            for block_col in range(scale_cols):
                low_table, high_table = self._tables(name, scales[block_row * scale_cols + block_col])
                first, last = block_col * BLOCK, min(cols, (block_col + 1) * BLOCK)
                for row in range(block_row * BLOCK, min(rows, (block_row + 1) * BLOCK)):
                    at, end = row * cols + first, row * cols + last
                    piece = data[at:end]
                    low[at:end], high[at:end] = piece.translate(low_table), piece.translate(high_table)
        out = bytearray(2 * len(data))
        out[0::2], out[1::2] = low, high
        return bytes(out)

    @staticmethod
    def _tables(name, scale):
        if not 0 < scale < 1e30:
            raise ValueError("%s: scale %r" % (name, scale))
        bits = [0x7FC0 if v is None else bf16_bits(v * scale) for v in E4M3]
        return bytes(b & 255 for b in bits), bytes(b >> 8 for b in bits)


def split_kv_b(data, heads, nope, v_dim, rank):
    """kv_b_proj rows are, head by head, nope key rows then v_dim value rows, each of rank BF16 values.
    Returns k_b [heads][rank][nope] (transposed) and v_b [heads][v_dim][rank]."""
    values = array.array("H", data)
    k_b, v_b = array.array("H"), array.array("H")
    for head in range(heads):
        base = head * (nope + v_dim) * rank
        for column in range(rank):
            k_b.extend(values[base + column:base + nope * rank:rank])
        v_b.extend(values[base + nope * rank:base + (nope + v_dim) * rank])
    return k_b.tobytes(), v_b.tobytes()


def gguf_string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_string(value)
    return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}[kind], value)


class Writer:
    def __init__(self):
        self.pairs, self.infos, self.blobs, self.offset = [], [], [], 0

    def pair(self, key, kind, value):
        self.pairs.append(gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value))

    def pair_array(self, key, kind, values):
        head = gguf_string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
        self.pairs.append(head + b"".join(gguf_value(kind, v) for v in values))

    def tensor(self, name, dims, kind, data):
        """dims: fastest first, as ggml counts them."""
        n = 1
        for d in dims:
            n *= d
        if n * (4 if kind == F32 else 2) != len(data):
            raise ValueError("%s: %s has %d bytes" % (name, dims, len(data)))
        self.infos.append(gguf_string(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, kind, self.offset))
        padded = data + b"\0" * (-len(data) % ALIGN_BYTES)
        self.blobs.append(padded)
        self.offset += len(padded)

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.infos), len(self.pairs))
        head += b"".join(self.pairs) + b"".join(self.infos)
        with open(path + ".part", "wb") as f:
            f.write(head + b"\0" * (-len(head) % ALIGN_BYTES))
            for blob in self.blobs:
                f.write(blob)
        os.replace(path + ".part", path)


def write_settings(out, c):
    if c["model_type"] != "deepseek_v3" or c.get("rope_scaling") or c["scoring_func"] != "sigmoid":
        raise ValueError("only deepseek_v3 with sigmoid routing and without rope scaling is converted")
    rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
    out.pair("general.architecture", STRING, "deepseek2")
    out.pair("general.name", STRING, "bench/peer copy")
    out.pair("general.file_type", U32, 32)
    for key, kind, value in (
            ("context_length", U32, c["max_position_embeddings"]),
            ("embedding_length", U32, c["hidden_size"]),
            ("block_count", U32, c["num_hidden_layers"]),
            ("feed_forward_length", U32, c["intermediate_size"]),
            ("vocab_size", U32, c["vocab_size"]),
            ("attention.head_count", U32, c["num_attention_heads"]),
            ("attention.head_count_kv", U32, 1),  # absorbed: all heads share one latent
            ("attention.layer_norm_rms_epsilon", FLOAT, c["rms_norm_eps"]),
            ("attention.q_lora_rank", U32, c["q_lora_rank"]),
            ("attention.kv_lora_rank", U32, rank),
            ("attention.key_length", U32, rank + rope),
            ("attention.value_length", U32, rank),
            ("attention.key_length_mla", U32, c["qk_nope_head_dim"] + rope),
            ("attention.value_length_mla", U32, c["v_head_dim"]),
            ("rope.dimension_count", U32, rope),
            ("rope.freq_base", FLOAT, c["rope_theta"]),
            ("leading_dense_block_count", U32, c["first_k_dense_replace"]),
            ("expert_count", U32, c["n_routed_experts"]),
            ("expert_used_count", U32, c["num_experts_per_tok"]),
            ("expert_shared_count", U32, c["n_shared_experts"]),
            ("expert_feed_forward_length", U32, c["moe_intermediate_size"]),
            ("expert_group_count", U32, c["n_group"]),
            ("expert_group_used_count", U32, c["topk_group"]),
            ("expert_gating_func", U32, ROUTER_SIGMOID),
            ("expert_weights_scale", FLOAT, c["routed_scaling_factor"]),
            ("expert_weights_norm", BOOL, c["norm_topk_prob"])):
        out.pair("deepseek2." + key, kind, value)


def write_tokenizer(out, c, tokenizer):
    tokens = ["[unused%d]" % i for i in range(c["vocab_size"])]
    kinds = [5] * len(tokens)  # unused
    for text, index in tokenizer["model"]["vocab"].items():
        tokens[index], kinds[index] = text, 1  # normal
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = added["content"], 3  # control
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    out.pair("tokenizer.ggml.model", STRING, "gpt2")
    out.pair("tokenizer.ggml.pre", STRING, "deepseek-v3")
    out.pair_array("tokenizer.ggml.tokens", STRING, tokens)
    out.pair_array("tokenizer.ggml.token_type", I32, kinds)
    out.pair_array("tokenizer.ggml.merges", STRING, merges)
    out.pair("tokenizer.ggml.bos_token_id", U32, c["bos_token_id"])
    out.pair("tokenizer.ggml.eos_token_id", U32, c["eos_token_id"])
    out.pair("tokenizer.ggml.add_bos_token", BOOL, True)


def write_attention(out, model, layer):
    c = model.config
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v_dim = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    rank, q_rank = c["kv_lora_rank"], c["q_lora_rank"]
    ours, theirs = "model.layers.%d." % layer, "blk.%d." % layer
    for name, source, dim in (("attn_norm", "input_layernorm", hidden),
                              ("ffn_norm", "post_attention_layernorm", hidden),
                              ("attn_q_a_norm", "self_attn.q_a_layernorm", q_rank),
                              ("attn_kv_a_norm", "self_attn.kv_a_layernorm", rank)):
        out.tensor(theirs + name + ".weight", [dim], F32, model.f32(ours + source + ".weight"))
    for name, source, dims in (("attn_q_a", "q_a_proj", [hidden, q_rank]),
                               ("attn_q_b", "q_b_proj", [q_rank, heads * (nope + rope)]),
                               ("attn_kv_a_mqa", "kv_a_proj_with_mqa", [hidden, rank + rope]),
                               ("attn_output", "o_proj", [heads * v_dim, hidden])):
        out.tensor(theirs + name + ".weight", dims, BF16, model.bf16(ours + "self_attn." + source + ".weight"))
    k_b, v_b = split_kv_b(model.bf16(ours + "self_attn.kv_b_proj.weight"), heads, nope, v_dim, rank)
    out.tensor(theirs + "attn_k_b.weight", [nope, rank, heads], BF16, k_b)
    out.tensor(theirs + "attn_v_b.weight", [rank, v_dim, heads], BF16, v_b)


def write_mlp(out, model, layer):
    c = model.config
    hidden, experts, width = c["hidden_size"], c["n_routed_experts"], c["moe_intermediate_size"]
    ours, theirs = "model.layers.%d.mlp." % layer, "blk.%d." % layer
    parts = ("gate", "up", "down")

    def dims(part, inner):
        return [inner, hidden] if part == "down" else [hidden, inner]

    if layer < c["first_k_dense_replace"]:
        for part in parts:
            data = model.bf16(ours + part + "_proj.weight")
            out.tensor(theirs + "ffn_%s.weight" % part, dims(part, c["intermediate_size"]), BF16, data)
        return
    out.tensor(theirs + "ffn_gate_inp.weight", [hidden, experts], F32, model.f32(ours + "gate.weight"))
    out.tensor(theirs + "exp_probs_b.bias", [experts], F32, model.f32(ours + "gate.e_score_correction_bias"))
    for part in parts:
        data = b"".join(model.bf16(ours + "experts.%d.%s_proj.weight" % (e, part)) for e in range(experts))
        out.tensor(theirs + "ffn_%s_exps.weight" % part, dims(part, width) + [experts], BF16, data)
        data = model.bf16(ours + "shared_experts.%s_proj.weight" % part)
        out.tensor(theirs + "ffn_%s_shexp.weight" % part, dims(part, width * c["n_shared_experts"]), BF16, data)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: to_gguf.py MODEL_DIR OUT.gguf")
    model, out = Checkpoint(sys.argv[1]), Writer()
    c = model.config
    table = [c["hidden_size"], c["vocab_size"]]
    write_settings(out, c)
    write_tokenizer(out, c, model.tokenizer)
    out.tensor("token_embd.weight", table, BF16, model.bf16("model.embed_tokens.weight"))
    out.tensor("output_norm.weight", [c["hidden_size"]], F32, model.f32("model.norm.weight"))
    out.tensor("output.weight", table, BF16, model.bf16("lm_head.weight"))
    for layer in range(c["num_hidden_layers"]):
        write_attention(out, model, layer)
        write_mlp(out, model, layer)
    out.write(sys.argv[2])
    print("%s: %d tensors, %d bytes of weights" % (sys.argv[2], len(out.infos), out.offset))


if __name__ == "__main__":
    main()
