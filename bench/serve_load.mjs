// What bench/serve_load.sh runs: the parts, each a function that returns {rows, data}. A row is
// {what, value, unit, wanted, ok}; ok is null where nothing is wanted.
import { mkdirSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { disconnects } from './serve_disconnects.mjs';
import { benchServe, output, sleep, watchServer, withServer } from './serve_process.mjs';
import { writeTable } from './serve_table.mjs';

const build = process.argv[2];
const root = path.resolve(import.meta.dirname, '..');
const work = path.join(build, 'bench/serve');
const scale = Number(process.env.SERVE_LOAD_SCALE ?? 1);
const seed = Number(process.env.SERVE_LOAD_SEED ?? 1);
const LONG = Math.max(1024, Math.round(32768 * Math.min(1, scale * 4) / 64) * 64);
const WINDOW_S = 10;
// A context for a long prompt, a pool for four of them. Generated prompts are pieces of a text, as long in bytes as its
// mean says: from 0.82 to 1.16 of LONG in tokens.
const ENGINE = ['--max-model-len', Math.round(LONG * 1.3) + 1024, '--kv-tokens', 5 * (LONG + 2048)].map(String);
const NO_LIMITS = ['--max-wait', '0', '--max-queued-requests', '2048', '--max-queued-tokens', '100000000'];

const seconds = (full, least = 3) => Math.max(least, full * scale);
const short = { name: 'short', prompt_tokens: [128, 512], answer_tokens: 32 };
const long = { name: 'long', prompt_tokens: LONG, answer_tokens: 32 };
const least = (what, value, unit, wanted) => ({ what, value, unit, wanted: `>= ${wanted}`, ok: value >= wanted });
const most = (what, value, unit, wanted) => ({ what, value, unit, wanted: `<= ${wanted}`, ok: value <= wanted });
const cachedRow = (what, ...runs) => plain(`${what}: prompt tokens that the cache had`,
  runs.reduce((sum, run) => sum + run.all.cached_tokens, 0), '');
const plain = (what, value, unit) => ({ what, value, unit, wanted: '', ok: null });

function writeMix(name, ...classes) {
  const file = path.join(work, `mix-${name}.json`);
  writeFileSync(file, JSON.stringify({ classes }));
  return file;
}

function mixedClasses(share) {
  return [{ ...short, share: 1 - share }, { ...long, share }];
}

// ---- capacity ----

// What "half of the work" is counted in: seconds that a prompt takes alone, or tokens of prompts.
const READINGS = { seconds: '', tokens: '-tokens' };
const SHORT_TOKENS = (short.prompt_tokens[0] + short.prompt_tokens[1]) / 2;

async function capacity(reading) {
  return withServer(build, [...ENGINE, ...NO_LIMITS], async (server) => {
    const alone = (k, s, other) =>
      benchServe(build, server, ['--mix', writeMix(k.name, k), '--concurrency', 1, '--duration', s, '--seed', seed + other]);
    const shorts = await alone(short, seconds(20), 100);
    const longs = await alone(long, seconds(40), 101);
    const short_s = shorts.all.ttft_s.p50;
    const long_s = longs.all.ttft_s.p50;
    const share = reading === 'tokens' ? SHORT_TOKENS / (SHORT_TOKENS + LONG) : short_s / (short_s + long_s);
    const mix = writeMix(`mixed${READINGS[reading]}`, ...mixedClasses(share));
    const run = await benchServe(build, server, ['--mix', mix, '--concurrency', 16, '--duration', seconds(300), '--seed', seed]);
    const [ran_short, ran_long] = run.classes;
    // As many requests of the exact mix as take the same seconds alone: the run ends somewhere in a deck of classes.
    const done_s = ran_short.done * short_s + ran_long.done * long_s;
    const per_s = done_s / ((1 - share) * short_s + share * long_s) / run.last_end_s;
    return {
      rows: [
        plain('short prompts alone: first token, median', short_s, 's'),
        plain(`${LONG}-token prompts alone: first token, median`, long_s, 's'),
        plain(`share of long prompts among requests, half of the ${reading}`, share, ''),
        plain('share of short prompts among the seconds of prefill', ((1 - share) * short_s) / ((1 - share) * short_s + share * long_s), ''),
        plain('their length alone, in the mix', [longs.all, ran_long].map((l) => Math.round(l.prompt_tokens / l.done)).join(', '), 'tokens'),
        cachedRow('all runs', shorts, longs, run),
        plain(`capacity of the mix, closed loop of 16 clients (${ran_long.done} long ones done)`, per_s, 'requests/s'),
      ],
      data: { capacity_per_s: per_s, share, short_s, long_s, shorts, longs, run },
    };
  });
}

// ---- mixed ----

function variation(values) {
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1)) / mean;
}

// The value at a time, between two samples.
function valueAt(samples, t, pick) {
  const i = Math.min(Math.max(samples.findIndex((s) => s.t_s >= t), 1), samples.length - 1);
  const [a, b] = [samples[i - 1], samples[i]];
  return pick(a) + ((pick(b) - pick(a)) * (t - a.t_s)) / (b.t_s - a.t_s);
}

// Over windows of 10 s while requests came, the first one aside.
function windowVariation(samples, duration_s, pick) {
  const window_s = Math.min(WINDOW_S, duration_s / 6);
  const sums = [];
  for (let t = window_s; t + window_s <= duration_s; t += window_s)
    sums.push(valueAt(samples, t + window_s, pick) - valueAt(samples, t, pick));
  return variation(sums);
}

async function mixedUnder(policy, known, reading) {
  const duration = seconds(Number(process.env.DURATION ?? 600));
  return withServer(build, [...ENGINE, ...NO_LIMITS, '--scheduling-policy', policy], async (server) => {
    const watch = watchServer(server);
    const run = await benchServe(build, server, ['--mix', writeMix(`mixed${READINGS[reading]}`, ...mixedClasses(known.share)), '--rate',
      0.7 * known.capacity_per_s, '--duration', duration, '--wait', 900, '--seed', seed]);
    const { samples } = await watch.stop();
    const m = await server.metrics();
    const tokens = (s) => s.computed + s.answered;
    return {
      policy, duration_s: duration, run, samples,
      tokens_per_s: (m.prompt_tokens_computed_total + m.generation_tokens_total) / run.last_end_s,
      within_per_s: valueAt(samples, duration, tokens) / duration,
      tokens_variation: windowVariation(samples, duration, tokens),
      memory: { peak: m.memory_peak_bytes, planned: m.memory_planned_bytes },
    };
  });
}

async function mixed(reading) {
  const needed = `capacity${READINGS[reading]}`;
  const file = path.join(work, `${needed}.json`);
  if (!existsSync(file)) await runPart(needed);
  const known = JSON.parse(readFileSync(file, 'utf8'));
  if (known.scale !== scale) throw new Error(`${needed} was measured with SERVE_LOAD_SCALE=${known.scale}: run it again`);
  const bins = await mixedUnder('bins', known.data, reading);
  const fcfs = await mixedUnder('fcfs', known.data, reading);
  const rows = [plain('requests/s offered, 70% of capacity', bins.run.rate, '')];
  for (const r of [bins, fcfs]) {
    const [s, l] = r.run.classes;
    rows.push(
      plain(`${r.policy}: done of sent, short`, `${s.done} of ${s.requests}`, ''),
      plain(`${r.policy}: done of sent, long`, `${l.done} of ${l.requests}`, ''),
      plain(`${r.policy}: mean length of long prompts`, Math.round(l.prompt_tokens / l.done), 'tokens'),
      plain(`${r.policy}: short, TTFT p50 / p95`, `${s.ttft_s.p50.toFixed(3)} / ${s.ttft_s.p95.toFixed(3)}`, 's'),
      plain(`${r.policy}: long, TTFT p50 / p95`, `${l.ttft_s.p50.toFixed(2)} / ${l.ttft_s.p95.toFixed(2)}`, 's'),
      plain(`${r.policy}: long, whole p95`, l.total_s.p95, 's'),
      plain(`${r.policy}: tokens computed and answered`, r.tokens_per_s, 'tokens/s'),
      plain(`${r.policy}: the same while requests came`, r.within_per_s, 'tokens/s'),
      cachedRow(r.policy, r.run),
      plain(`${r.policy}: variation of answer tokens, windows of 10 s`, r.run.tokens_variation, ''),
      plain(`${r.policy}: variation of requests ended`, r.run.requests_variation, ''),
      plain(`${r.policy}: variation of tokens computed and answered`, r.tokens_variation, ''),
      most(`${r.policy}: peak of planned memory`, r.memory.peak / r.memory.planned, '', 1),
    );
  }
  const [bs, bl] = bins.run.classes;
  const [fs, fl] = fcfs.run.classes;
  rows.push(
    least('short TTFT p95, fcfs : bins', fs.ttft_s.p95 / bs.ttft_s.p95, 'x', 5),
    most('long TTFT p95, bins : fcfs', bl.ttft_s.p95 / fl.ttft_s.p95, 'x', 1.25),
    most('total throughput until the last answer, the difference', Math.abs(bins.tokens_per_s / fcfs.tokens_per_s - 1), '', 0.05),
    // What users see a server deliver. Tokens computed are for the most part those of long prompts, of which it works on
    // few at a time whatever the order: not steadier, and labelled as what it is.
    least('variation of throughput, answer tokens, fcfs : bins', fcfs.run.tokens_variation / bins.run.tokens_variation, 'x', 1.4),
    least('variation of throughput, requests ended, fcfs : bins', fcfs.run.requests_variation / bins.run.requests_variation, 'x', 1.4),
    plain('variation of tokens computed (prompts) and answered, fcfs : bins', fcfs.tokens_variation / bins.tokens_variation, 'x'),
  );
  return { rows, data: { bins, fcfs } };
}

// ---- equal ----

// Prompts of token ids, equally long, none a prefix of another.
async function askTokens(server, first, n) {
  const prompt = Array.from({ length: n }, (_, i) => 300 + ((first * 7919 + i * 104729) % 7000));
  const begin = performance.now();
  const answer = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: 1, temperature: 0, stream: true }),
  });
  const text = await answer.text();
  if (answer.status !== 200 || text.includes('"error"')) throw new Error(`equal: ${answer.status} ${text.slice(0, 300)}`);
  return (performance.now() - begin) / 1e3;
}

async function equal() {
  return withServer(build, [...ENGINE, ...NO_LIMITS], async (server) => {
    await askTokens(server, 1, 1024);
    const before_s = await askTokens(server, 2, LONG);
    const begin = performance.now();
    const both = await Promise.all([askTokens(server, 3, LONG), askTokens(server, 4, LONG)]);
    const makespan_s = (performance.now() - begin) / 1e3;
    const after_s = await askTokens(server, 5, LONG);
    const m = await server.metrics();
    const alone_s = (before_s + after_s) / 2;
    return {
      rows: [
        plain(`${LONG} tokens alone, before / after`, `${before_s.toFixed(2)} / ${after_s.toFixed(2)}`, 's'),
        plain('two together: the first, the last to end', both.sort((a, b) => a - b).map((s) => s.toFixed(2)).join(', '), 's'),
        most('makespan of two : one alone', makespan_s / alone_s, 'x', 2.16),
        most('peak of planned memory', m.memory_peak_bytes / m.memory_planned_bytes, '', 1),
      ],
      data: { before_s, after_s, both, makespan_s, peak_bytes: m.memory_peak_bytes, planned_bytes: m.memory_planned_bytes },
    };
  });
}

// ---- overload ----

const LIMIT_S = 5;

async function overload() {
  const options = ['--max-model-len', '4096', '--kv-tokens', '65536', '--max-num-seqs', '64', '--max-queued-requests', '192',
    '--max-wait', '1'];
  const mix = writeMix('overload', { ...short, ttft_limit_s: LIMIT_S });
  return withServer(build, options, async (server) => {
    let runs_before = 0; // each run with texts of its own
    const load = async (...more) => {
      const before = [server.cpu(), process.cpuUsage(), performance.now()];
      const run = await benchServe(build, server, ['--mix', mix, '--seed', seed + runs_before++, '--wait', 60, ...more]);
      const cpu = server.cpu();
      const own = process.cpuUsage(before[1]);
      const used = [cpu.front - before[0].front, cpu.worker - before[0].worker, run.cpu_s, 1e-6 * (own.user + own.system)];
      const machine_s = 1e-3 * (performance.now() - before[2]) * os.cpus().length;
      return { ...run, cpu_shares: used.map((s) => s / machine_s), front_cpu_s: used[0] };
    };
    const cpuRow = (what, run) => plain(`${what}: CPU of front / worker / load generator / this script, of the machine's`,
      run.cpu_shares.map((share) => `${(100 * share).toFixed(1)}%`).join(' / '), '');
    const peaks = [];
    for (const clients of [8, 16, 32]) peaks.push(await load('--concurrency', clients, '--duration', seconds(30)));
    const peak = Math.max(...peaks.map((p) => p.good_per_s));
    const rows = [plain('peak, closed loop of 8, 16, 32 clients, first token within 5 s', peak, 'requests/s'),
      cpuRow('peak', peaks.find((p) => p.good_per_s === peak)),
      plain('resident memory before, front', server.rss().front / 2 ** 20, 'MiB'),
      plain('resident memory before, worker', server.rss().worker / 2 ** 20, 'MiB')];
    const runs = [];
    for (const times of [2, 10]) {
      const watch = watchServer(server);
      const run = await load('--rate', times * peak, '--duration', seconds(60), '--concurrency', 8192);
      const { rss } = await watch.stop();
      await server.idle();
      runs.push({ times, run, rss });
      rows.push(
        plain(`${times}x: done / refused / failed of sent`, `${run.all.done} / ${run.all.refused} / ${run.all.failed + run.all.late} of ${run.all.requests}`, ''),
        least(`${times}x: within the limit, of the peak`, run.good_per_s / peak, '', 0.95),
        most(`${times}x: refusals, p99`, 1e3 * run.all.refusal_s.p99, 'ms', 10),
        plain(`${times}x: first token, p99`, run.all.ttft_s.p99, 's'),
        plain(`${times}x: sent after it was due, p99`, 1e3 * run.send_late_s.p99, 'ms'),
        cpuRow(`${times}x`, run),
        plain(`${times}x: CPU of the front a request sent`, (1e6 * run.front_cpu_s) / run.all.requests, 'us'),
        plain(`${times}x: resident memory at most, front`, rss.front / 2 ** 20, 'MiB'),
        plain(`${times}x: resident memory at most, worker`, rss.worker / 2 ** 20, 'MiB'),
      );
    }
    const [two, ten] = runs.map((r) => r.rss);
    rows.push(most('resident memory, 10x : 2x, front', ten.front / two.front, 'x', 1.1),
      most('resident memory, 10x : 2x, worker', ten.worker / two.worker, 'x', 1.1),
      cachedRow('all runs', ...peaks, ...runs.map((r) => r.run)));
    return { rows, data: { peaks, runs } };
  });
}

// ---- streams, stalled ----

// tools/front_bench.c: the front before a worker that only counts.
async function frontBench(streams, tokens, half_open, stalled) {
  const { code, text } = await output(path.join(build, 'front_bench'),
    [path.join(build, 'stub_worker'), streams, tokens, 20, half_open, stalled].map(String), { cwd: path.dirname(build) });
  const counts = /tokens (\d+) of (\d+) wrong (\d+)/.exec(text);
  const late = /median ([\d.]+) p99 ([\d.]+) p99\.9 ([\d.]+) most ([\d.]+); front CPU ([\d.]+)/.exec(text);
  if (!counts || !late) throw new Error(`front_bench ended with ${code}: ${text}`);
  const [got, sent, wrong] = counts.slice(1).map(Number);
  const [median, p99, p999, worst, cpu_us] = late.slice(1).map(Number);
  return { got, sent, wrong, median_ms: median, p99_ms: p99, p999_ms: p999, most_ms: worst, cpu_us };
}

const streamCount = () => Math.max(50, Math.round(1000 * Math.min(1, scale * 10)));

async function streams() {
  const n = streamCount();
  const r = await frontBench(n, Math.round(20 * seconds(60)), 0, 0);
  return {
    rows: [
      plain('streams of 20 tokens/s', n, ''),
      most('tokens lost', r.sent - r.got, '', 0),
      most('tokens out of order', r.wrong, '', 0),
      most('from the worker to the client, p99', r.p99_ms, 'ms', 5),
      plain('the same, median / p99.9 / most', `${r.median_ms} / ${r.p999_ms} / ${r.most_ms}`, 'ms'),
      most('CPU of the front a token', r.cpu_us, 'us', 10),
    ],
    data: r,
  };
}

const middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

// Alternating runs: what the machine itself varies by shows in the three without.
async function stalled() {
  const n = streamCount();
  const tokens = Math.round(20 * seconds(30));
  const [half_open, readers] = [5000, 500].map((x) => Math.round(x * Math.min(1, scale * 10)));
  const without = [];
  const beside = [];
  for (let i = 0; i < (scale < 1 ? 1 : 3); i++) {
    without.push(await frontBench(n, tokens, 0, 0));
    beside.push(await frontBench(n, tokens, half_open, readers));
  }
  const p99 = (runs) => runs.map((r) => r.p99_ms);
  return {
    rows: [
      plain('streams / half-open connections / stalled readers', `${n} / ${half_open} / ${readers}`, ''),
      most('tokens lost or out of order, beside', beside.reduce((sum, r) => sum + r.sent - r.got + r.wrong, 0), '', 0),
      plain('p99 of each run without', p99(without).join(', '), 'ms'),
      plain('p99 of each run beside them', p99(beside).join(', '), 'ms'),
      most('p99, median of runs, beside : without', middle(p99(beside)) / middle(p99(without)), 'x', 1.05),
      most('time a token is between tokens: 50 ms and the p99, beside : without',
        (50 + middle(p99(beside))) / (50 + middle(p99(without))), 'x', 1.05),
    ],
    data: { without, beside },
  };
}

// ---- all ----

const parts = {
  capacity: () => capacity('seconds'), mixed: () => mixed('seconds'),
  'capacity-tokens': () => capacity('tokens'), 'mixed-tokens': () => mixed('tokens'),
  equal, overload, streams, stalled,
  disconnects: () => disconnects(build, Math.round(Math.max(100, 10000 * scale)), seed, { most, plain }),
};

async function runPart(name) {
  const begin = Date.now();
  console.error(`serve_load: ${name}`);
  const result = await parts[name]();
  const commit = (await output('git', ['-C', root, 'rev-parse', '--short', 'HEAD'])).text.trim();
  const record = { part: name, date: new Date(begin).toISOString(), wall_s: (Date.now() - begin) / 1e3, commit, scale, seed, ...result };
  writeFileSync(path.join(work, `${name}.json`), JSON.stringify(record));
  for (const row of result.rows)
    console.error(`  ${row.what}: ${typeof row.value === 'number' ? Number(row.value.toPrecision(4)) : row.value} ${row.unit} ` +
      `${row.wanted && `(wanted ${row.wanted}: ${row.ok ? 'yes' : 'NO'})`}`);
  return record;
}

const named = process.argv.slice(3);
const unknown = named.find((name) => !(name in parts));
if (unknown) {
  console.error(`serve_load: no part '${unknown}'; expected ${Object.keys(parts).join(', ')}`);
  process.exit(2);
}
mkdirSync(work, { recursive: true });
let failed = 0;
for (const name of named.length > 0 ? named : Object.keys(parts)) {
  try {
    const { rows } = await runPart(name);
    failed += rows.filter((row) => row.ok === false).length;
  } catch (error) {
    console.error(`serve_load: ${name}: ${error.message}`);
    failed++;
  }
  await sleep(1);
}
writeTable(work, root, scale);
process.exit(failed > 0 ? 1 : 0);
