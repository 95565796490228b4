// Clients that leave at random moments: in the head, in the body, during prefill, while the answer streams.
import net from 'node:net';
import { sleep, withServer } from './serve_process.mjs';

const AT_ONCE = 32;
const MOMENTS = ['head', 'body', 'prefill', 'stream'];

// Numbers from 0 to 1, the same for the same seed (mulberry32).
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}

function request(draw) {
  const words = Array.from({ length: 10 + Math.floor(draw() * 80) }, () => Math.floor(draw() * 1e4)).join(' ');
  const body = JSON.stringify({ stream: true, max_tokens: 200, ignore_eos: true, messages: [{ role: 'user', content: words }] });
  const head = `POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n`;
  return { head, body };
}

// One client; resolves when its socket is closed, with true if the answer was none or 200. RST or FIN, as drawn.
function leave(port, moment, draw) {
  const { head, body } = request(draw);
  const [cut, reset, delay_ms] = [draw(), draw() < 0.5, draw() * 30];
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1');
    const go = () => (reset ? socket.resetAndDestroy() : socket.destroy());
    let tokens = 0;
    let good = true;
    socket.on('error', () => {});
    socket.once('close', () => resolve(good));
    socket.setTimeout(60000, () => {
      good = false;
      go();
    });
    socket.once('connect', () => {
      if (moment === 'head') socket.write(head.slice(0, 1 + cut * (head.length - 2)), () => setTimeout(go, delay_ms / 3));
      else if (moment === 'body') socket.write(head + body.slice(0, cut * (body.length - 1)), () => setTimeout(go, delay_ms / 3));
      else socket.write(head + body, () => moment === 'prefill' && setTimeout(go, delay_ms));
    });
    socket.on('data', (bytes) => {
      if (bytes.includes('HTTP/1.1 ') && !bytes.includes('HTTP/1.1 200')) {
        good = false;
        go();
      }
      if (moment !== 'stream') return;
      if (bytes.includes('"content":"')) tokens++;
      if (tokens > cut * 8 || bytes.includes('[DONE]')) go();
    });
  });
}

// How many were told anything but 200, or nothing for a minute.
async function crowd(port, n, draw) {
  let left = n;
  let bad = 0;
  const one = async () => {
    while (left-- > 0) bad += !(await leave(port, MOMENTS[Math.floor(draw() * MOMENTS.length)], draw));
  };
  await Promise.all(Array.from({ length: AT_ONCE }, one));
  return bad;
}

async function look(server) {
  await server.idle();
  await sleep(2); // who left in the middle of a request is given one
  const m = await server.metrics();
  return { kv_usage: m.kv_cache_usage_perc, running: m.num_requests_running, in_flight: m.http_requests_in_flight,
    body_bytes: m.http_body_bytes, rss: server.rss(), fds: server.fds() };
}

export async function disconnects(build, n, seed, { most, plain }) {
  const options = ['--max-model-len', '4096', '--kv-tokens', '16384', '--max-wait', '0', '--max-queued-requests', '2048'];
  return withServer(build, options, async (server) => {
    const draw = random(seed);
    await crowd(server.port, Math.max(200, n / 10), draw); // touches every page of the pool once
    const before = await look(server);
    const begin = performance.now();
    const bad = await crowd(server.port, n, draw);
    const took_s = (performance.now() - begin) / 1e3;
    const after = await look(server);
    const restarts = (await server.metrics()).worker_restarts_total;
    const grown = (name) => (after.rss[name] - before.rss[name]) / 2 ** 20;
    const fds = after.fds.front + after.fds.worker - before.fds.front - before.fds.worker;
    return {
      rows: [
        plain('disconnects', `${n} in ${took_s.toFixed(0)} s`, ''),
        most('other answers than 200, or none for a minute', bad, '', 0),
        plain('KV pages held before', before.kv_usage, 'of the pool'),
        most('KV pages held after, beyond that', after.kv_usage - before.kv_usage, 'of the pool', 0),
        most('requests left, running and in the front (this question is one)', after.running + after.in_flight, '', 1),
        most('bytes of bodies left', after.body_bytes, '', 0),
        most('open files, more than before', fds, '', 0),
        most('resident memory, front, more than before', grown('front'), 'MiB', 4),
        most('resident memory, worker, more than before', grown('worker'), 'MiB', 4),
        most('workers that died', restarts, '', 0),
      ],
      data: { n, took_s, before, after },
    };
  });
}
