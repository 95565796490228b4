// The page at "/": asks about documents with the same API that every client uses, and draws /metrics.
'use strict';

const $ = (id) => document.getElementById(id);
const count = new Intl.NumberFormat('en-US');
const documents = []; // {name, text}
let running = null; // AbortController of the answer being made

// ---- small things ------------------------------------------------------------------------------------------------

function seconds(s) {
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  return s < 100 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : `${count.format(Math.round(s))} s`;
}

function bytes(n) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (n < 1024 || unit === 'GiB') return `${n < 10 && unit !== 'B' ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
}

function element(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem('key');
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) $('key-row').hidden = false;
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // no JSON: the status says it
  }
  const after = answer.headers.get('retry-after');
  throw Object.assign(new Error(after ? `${message} (try again in ${after} s)` : message), { status: answer.status });
}

// ---- tabs --------------------------------------------------------------------------------------------------------

const tabs = [$('tab-ask'), $('tab-meters')];

function show(tab) {
  for (const t of tabs) {
    const chosen = t === tab;
    t.setAttribute('aria-selected', chosen);
    t.tabIndex = chosen ? 0 : -1;
    $(t.getAttribute('aria-controls')).hidden = !chosen;
  }
  if (tab === $('tab-meters')) readMeters();
}

for (const t of tabs) {
  t.addEventListener('click', () => show(t));
  t.addEventListener('keydown', (event) => {
    if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
    const other = tabs[1 - tabs.indexOf(t)];
    show(other);
    other.focus();
  });
}

// ---- documents ---------------------------------------------------------------------------------------------------

function listDocuments() {
  $('documents').replaceChildren(...documents.map((d, i) => {
    const row = element('li');
    const remove = element('button', '', 'Remove');
    remove.type = 'button';
    remove.setAttribute('aria-label', `Remove ${d.name}`);
    remove.addEventListener('click', () => {
      documents.splice(i, 1);
      listDocuments();
    });
    row.append(element('span', '', d.name), element('span', 'quiet', bytes(new Blob([d.text]).size)), remove);
    return row;
  }));
}

async function addFiles(files) {
  $('error').hidden = true;
  for (const file of files) {
    try {
      const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
      documents.push({ name: file.name, text });
    } catch {
      fail(`${file.name} is not UTF-8 text`);
    }
  }
  listDocuments();
}

$('files').addEventListener('change', async () => {
  await addFiles($('files').files);
  $('files').value = '';
});
for (const name of ['dragenter', 'dragover'])
  $('drop').addEventListener(name, (event) => {
    event.preventDefault();
    $('drop').classList.add('over');
  });
for (const name of ['dragleave', 'drop']) $('drop').addEventListener(name, () => $('drop').classList.remove('over'));
$('drop').addEventListener('drop', (event) => {
  event.preventDefault();
  addFiles(event.dataTransfer.files);
});

// ---- an answer ---------------------------------------------------------------------------------------------------

function fail(message) {
  $('error').textContent = message;
  $('error').hidden = false;
}

function parts() {
  const texts = documents.map((d) => (documents.length > 1 ? `${d.name}\n${d.text}` : d.text));
  if ($('pasted').value.trim()) texts.push($('pasted').value);
  return [...texts, $('question').value].map((text) => ({ type: 'text', text }));
}

function showProgress(fraction, text) {
  $('progress-row').hidden = false;
  if (fraction === null) $('progress').removeAttribute('value');
  else $('progress').value = fraction;
  $('progress-text').textContent = text;
}

// Comments of the stream: where the prefill is, and at the end where the time went.
function takeComment(text) {
  const prefill = /^prefill (\d+)% (\d+)\/(\d+) tokens$/.exec(text);
  if (prefill) {
    const [, percent, done, all] = prefill.map(Number);
    showProgress(percent / 100, `reading: ${percent}%, ${count.format(done)} of ${count.format(all)} tokens`);
  } else if (text.startsWith('timeline ')) drawTimeline(JSON.parse(text.slice(9)));
  else showProgress(null, text);
}

function takeChunk(chunk, answer) {
  if (chunk.error) throw new Error(chunk.error.message);
  const text = chunk.choices[0]?.delta?.content;
  if (text) {
    const now = performance.now();
    if (!answer.first) {
      answer.first = now;
      $('figure-ttft').textContent = seconds((now - answer.start) / 1e3);
      showProgress(1, 'answering');
    }
    answer.last = now;
    $('answer').append(text);
  }
  if (chunk.usage) showUsage(chunk.usage, answer);
}

function showUsage(usage, answer) {
  const cached = usage.prompt_tokens_details.cached_tokens;
  const took = (answer.last - answer.first) / 1e3;
  $('figure-prompt').textContent = `${count.format(usage.prompt_tokens)} tokens`;
  $('figure-cached').textContent = `${count.format(cached)} (${Math.round((100 * cached) / usage.prompt_tokens)}%)`;
  $('figure-answer').textContent = `${count.format(usage.completion_tokens)} tokens`;
  if (took > 0) $('figure-speed').textContent = `${((usage.completion_tokens - 1) / took).toFixed(1)} tokens/s`;
}

// Lines of an event stream, as they come.
async function* lines(body) {
  let rest = '';
  for (const reader = body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const all = (rest + value).split('\n');
    rest = all.pop();
    yield* all;
  }
}

async function read(answer, signal) {
  const body = JSON.stringify({
    model: $('model').textContent, messages: [{ role: 'user', content: parts() }], stream: true, timeline: true,
    stream_options: { include_usage: true }, max_tokens: Number($('max-tokens').value), temperature: 0,
  });
  const headers = { 'content-type': 'application/json' };
  const stream = await call('/v1/chat/completions', { method: 'POST', headers, body, signal });
  for await (const line of lines(stream.body)) {
    if (line.startsWith(': ')) takeComment(line.slice(2));
    else if (line.startsWith('data: ') && line !== 'data: [DONE]') takeChunk(JSON.parse(line.slice(6)), answer);
  }
}

function begin() {
  for (const id of ['ttft', 'prompt', 'cached', 'answer', 'speed']) $(`figure-${id}`).textContent = '-';
  $('answer').replaceChildren();
  for (const id of ['answer', 'figures']) $(id).hidden = false;
  for (const id of ['error', 'timeline']) $(id).hidden = true;
  $('go').disabled = true;
  $('stop').disabled = false;
  showProgress(null, 'sending');
}

function end() {
  running = null;
  $('go').disabled = false;
  $('stop').disabled = true;
  $('progress-row').hidden = true;
}

$('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  if (running) return;
  if ($('key').value) sessionStorage.setItem('key', $('key').value);
  running = new AbortController();
  begin();
  try {
    await read({ start: performance.now() }, running.signal);
  } catch (error) {
    if (error.name !== 'AbortError') fail(error.message);
  }
  end();
});
$('stop').addEventListener('click', () => running?.abort());
$('question').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) $('form').requestSubmit();
});

const markNames = { receive: 'Receive', tokenize: 'Tokenise', queue: 'Queue', prefill: 'Prefill', first_token: 'First token', decode: 'Answer' };

// A row for each kind of mark, in the order they came; a prompt of many steps has many bars in one row.
function drawTimeline(marks) {
  const all = Math.max(...marks.map((m) => m.end_s), 1e-9);
  const kinds = [...new Set(marks.map((m) => m.name))];
  $('timeline-rows').replaceChildren(...kinds.map((kind) => {
    const own = marks.filter((m) => m.name === kind);
    const row = element('div', 'mark');
    const track = element('div', 'track');
    for (const m of own) {
      const bar = element('div', 'bar');
      bar.style.left = `${(100 * m.start_s) / all}%`;
      bar.style.width = `calc(${(100 * (m.end_s - m.start_s)) / all}% - 1px)`;
      bar.title = `${seconds(m.end_s - m.start_s)}${m.tokens ? `, ${count.format(m.tokens)} tokens` : ''}`;
      track.append(bar);
    }
    const took = own.reduce((sum, m) => sum + m.end_s - m.start_s, 0);
    const steps = own.length > 1 ? ` (${own.length} steps)` : '';
    row.append(element('span', '', (markNames[kind] ?? kind) + steps), track,
      element('span', 'time', kind === 'first_token' ? `at ${seconds(own[0].end_s)}` : seconds(took)));
    return row;
  }));
  $('timeline').hidden = false;
}

// ---- meters ------------------------------------------------------------------------------------------------------

const every_s = 2;
const kept = 300; // points of the plots
const history = { time: [], running: [], waiting: [], kv: [], prompt: [], answer: [] };
const plots = {};
let before = null;

// {name: [{labels, value}]} of Prometheus' text.
function parseMetrics(text) {
  const found = {};
  for (const line of text.split('\n')) {
    const m = /^firstlight:(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (m) (found[m[1]] ??= []).push({ labels: m[2] ?? '', value: Number(m[3]) });
  }
  return found;
}

const metric = (m, name) => (m[name] ?? []).reduce((sum, { value }) => sum + value, 0);

function addPoint(m, now) {
  const rate = (name) => (before ? Math.max(0, metric(m, name) - metric(before.m, name)) / (now - before.now) : 0);
  const point = { time: now, running: metric(m, 'num_requests_running'), waiting: metric(m, 'num_requests_waiting'),
    kv: 100 * metric(m, 'kv_cache_usage_perc'), prompt: rate('prompt_tokens_total'), answer: rate('generation_tokens_total') };
  for (const [name, value] of Object.entries(point)) {
    history[name].push(value);
    if (history[name].length > kept) history[name].shift();
  }
  before = { m, now };
}

// Requests a bucket, from the cumulative counts.
function buckets(m) {
  const edges = (m.time_to_first_token_seconds_bucket ?? []).map(({ labels, value }) => ({
    end: /le="([^"]+)"/.exec(labels)[1], value }));
  return edges.map((e, i) => ({ end: e.end, n: e.value - (i > 0 ? edges[i - 1].value : 0) }));
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function plot(id, names, data, options = {}) {
  if (plots[id]) {
    plots[id].setData(data);
    return;
  }
  const strokes = [color('--accent'), color('--good')];
  const axis = { stroke: color('--quiet'), grid: { stroke: color('--line'), width: 1 }, ticks: { stroke: color('--line'), width: 1 } };
  const series = names.map((label, i) => ({ label, stroke: strokes[i], width: 2, points: { show: false }, ...options.series }));
  plots[id] = new uPlot({ width: $(id).clientWidth, height: 180, series: [options.x ?? {}, ...series],
    axes: [{ ...axis, ...options.xAxis }, { ...axis, size: 60 }], scales: { y: { range: (u, low, high) => [0, Math.max(high, 1)] },
      ...options.scales }, cursor: { y: false } }, data, $(id));
}

function drawHistogram(m) {
  const bins = buckets(m);
  const used = bins.findLastIndex((b) => b.n > 0);
  const shown = bins.slice(0, Math.max(used + 1, 8));
  const data = [shown.map((_, i) => i), shown.map((b) => b.n)];
  plots['plot-ttft']?.destroy();
  delete plots['plot-ttft'];
  plot('plot-ttft', ['requests'], data, {
    x: { label: 'seconds up to', value: (u, i) => (i === null || i === undefined ? '' : shown[i]?.end) },
    xAxis: { values: (u, splits) => splits.map((i) => shown[i]?.end ?? '') },
    scales: { x: { time: false, range: [-0.5, shown.length - 0.5] } },
    series: { paths: uPlot.paths.bars({ size: [0.8, 60] }), fill: color('--accent') },
  });
}

function drawPlots(m) {
  const h = history;
  $('no-plots').hidden = Boolean(window.uPlot);
  if (!window.uPlot) return;
  plot('plot-requests', ['running', 'waiting'], [h.time, h.running, h.waiting]);
  plot('plot-kv', ['% of the pool'], [h.time, h.kv]);
  plot('plot-tokens', ['read', 'written'], [h.time, h.prompt, h.answer]);
  drawHistogram(m);
}

// The three meters stand first: memory, where the time goes, communication.
function figures(m) {
  const all = metric(m, 'step_seconds_total') || 1; // of all kinds
  const kinds = (m.step_seconds_total ?? []).map(({ labels, value }) => (
    { kind: /kind="([^"]+)"/.exec(labels)[1], share: Math.round((100 * value) / all) }));
  const most = kinds.filter((k) => k.share > 0 && k.kind !== 'communication').sort((a, b) => b.share - a.share).slice(0, 2);
  return [
    ['Peak memory', bytes(metric(m, 'memory_peak_bytes'))],
    ['Time goes to', most.map((k) => `${k.kind} ${k.share}%`).join(', ') || '-'],
    ['Communication', `${kinds.find((k) => k.kind === 'communication')?.share ?? 0}%`],
    ['Running', count.format(metric(m, 'num_requests_running'))],
    ['Waiting', count.format(metric(m, 'num_requests_waiting'))],
    ['KV in use', `${Math.round(100 * metric(m, 'kv_cache_usage_perc'))}%`],
    ['Wait for a new one', seconds(metric(m, 'predicted_wait_seconds'))],
    ['Worker restarts', count.format(metric(m, 'worker_restarts_total'))],
  ];
}

async function readMeters() {
  const m = parseMetrics(await (await call('/metrics')).text());
  addPoint(m, Date.now() / 1e3);
  if ($('meters').hidden) return;
  $('live').replaceChildren(...figures(m).map(([name, value]) => {
    const row = element('div');
    row.append(element('dt', '', name), element('dd', '', value));
    return row;
  }));
  drawPlots(m);
}

async function readState() {
  const pill = $('health');
  try {
    const health = await fetch('/health');
    pill.textContent = health.ok ? 'ready' : (await health.json()).error.message;
    pill.className = health.ok ? 'pill good' : 'pill';
    if (!$('model').textContent) $('model').textContent = (await (await call('/v1/models')).json()).data[0].id;
    await readMeters();
  } catch (error) {
    if (error.status === 401) return; // the server is well, and the key's field is there
    pill.textContent = error instanceof TypeError ? 'no connection' : error.message;
    pill.className = 'pill bad';
  }
}

window.addEventListener('resize', () => {
  for (const [id, p] of Object.entries(plots)) p.setSize({ width: $(id).clientWidth, height: 180 });
});
$('key').addEventListener('change', () => {
  sessionStorage.setItem('key', $('key').value);
  readState();
});
readState();
setInterval(readState, every_s * 1000);
