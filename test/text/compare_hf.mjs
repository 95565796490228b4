// The reference's ids: node compare_hf.mjs NODE_MODULES TOKENIZER.JSON TEXTS IDS. @anush008/tokenizers is Hugging Face's
// Rust library; formats as in tools/tokenizer_tool.c. Special tokens in the text are recognised, none are added.
import { createRequire } from 'node:module';
import { openSync, readFileSync, writeSync, closeSync } from 'node:fs';
import { resolve } from 'node:path';

const [modules, json, texts, ids] = process.argv.slice(2);
if (!ids) throw new Error('usage: compare_hf.mjs NODE_MODULES TOKENIZER.JSON TEXTS IDS');
const { Tokenizer } = createRequire(resolve(modules) + '/')('@anush008/tokenizers');

const tokenizer = Tokenizer.fromFile(json);
const bytes = readFileSync(texts);
const out = openSync(ids, 'w');
let total = 0;
for (let at = 0; at < bytes.length;) {
    const n = bytes.readUInt32LE(at);
    const text = bytes.toString('utf8', at + 4, at + 4 + n);
    at += 4 + n;
    const encoding = await tokenizer.encode(text, null, { addSpecialTokens: false });
    const list = Uint32Array.from(encoding.getIds());
    writeSync(out, Uint32Array.of(list.length));
    writeSync(out, list);
    total += list.length;
}
closeSync(out);
console.log(`${json}: ${total} reference tokens`);
