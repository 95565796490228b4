// Servers and load generators as processes: started, asked, measured, ended.
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1e3 * seconds));

// All of a program's standard output; its standard error goes to ours.
export async function output(command, args, options = {}) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'], ...options });
  let text = '';
  child.stdout.setEncoding('utf8').on('data', (piece) => (text += piece));
  const code = await new Promise((resolve, reject) => child.once('error', reject).once('close', resolve));
  return { code, text };
}

function rssBytes(pid) {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return 1024 * Number(/^VmRSS:\s*(\d+)/m.exec(status)[1]);
}

function children(pid) {
  return readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number));
}

// CPU seconds of a process, all of its threads.
const ticks_s = 0.01;
function cpuSeconds(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return ticks_s * (Number(fields[11]) + Number(fields[12]));
}

// A server on a port of its own. Its log goes to a file: reading a line for each request would be part of the load.
export async function startServer(build, options) {
  const log = path.join(build, 'bench/serve/server.log');
  const args = ['serve', path.join(build, 'models/spark-66m'), '--port', '0', '--log-format', 'json', ...options];
  const log_fd = openSync(log, 'w');
  const child = spawn(path.join(build, 'firstlight'), args, { stdio: ['ignore', 'inherit', log_fd] });
  closeSync(log_fd);
  const entries = () => readFileSync(log, 'utf8').split('\n').slice(0, -1)
    .map((line) => (line.startsWith('{') ? JSON.parse(line) : { level: 'error', line }));
  const errors = () => entries().filter((entry) => entry.level === 'error').map((entry) => JSON.stringify(entry)).join('\n');
  let port;
  while (!port) {
    if (child.exitCode !== null || child.signalCode) throw new Error(`the server ended with ${child.exitCode}: ${errors()}`);
    await sleep(0.05);
    port = entries().find((entry) => entry.event === 'listening')?.port;
  }
  const url = `http://127.0.0.1:${port}`;
  while ((await fetch(`${url}/health`)).status !== 200) await sleep(0.1);
  const [worker] = children(child.pid);
  const server = {
    url, port, options,
    // Values of /metrics without labels of their own, by name.
    async metrics() {
      const text = await (await fetch(`${url}/metrics`)).text();
      const found = text.matchAll(/^firstlight:(\w+)\{model_name="[^"]*"\} (\S+)$/gm);
      return Object.fromEntries([...found].map(([, name, value]) => [name, Number(value)]));
    },
    cpu: () => ({ front: cpuSeconds(child.pid), worker: cpuSeconds(worker) }),
    rss: () => ({ front: rssBytes(child.pid), worker: rssBytes(worker) }),
    fds: () => ({ front: readdirSync(`/proc/${child.pid}/fd`).length, worker: readdirSync(`/proc/${worker}/fd`).length }),
    async idle() {
      for (let calm = 0; calm < 5; await sleep(0.3)) {
        const m = await server.metrics();
        calm = m.num_requests_running + m.num_requests_waiting === 0 ? calm + 1 : 0;
      }
    },
    async stop() {
      const code = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGTERM');
      if ((await code) !== 0) throw new Error(`the server ended with ${await code}: ${errors()}`);
    },
  };
  return server;
}

// Runs `work` with a server that ends with it.
export async function withServer(build, options, work) {
  const server = await startServer(build, options);
  try {
    return await work(server);
  } finally {
    await server.stop();
  }
}

// Looks at a server each second: stop() gives {samples: [{t_s, computed, answered}], rss}.
export function watchServer(server) {
  const samples = [];
  const rss = { front: 0, worker: 0 };
  const begin = performance.now();
  let on = true;
  const done = (async () => {
    while (on) {
      const m = await server.metrics();
      samples.push({
        t_s: (performance.now() - begin) / 1e3,
        computed: m.prompt_tokens_computed_total,
        answered: m.generation_tokens_total,
      });
      const now = server.rss();
      for (const name of ['front', 'worker']) rss[name] = Math.max(rss[name], now[name]);
      await sleep(1);
    }
  })();
  return {
    async stop() {
      on = false;
      await done;
      return { samples, rss };
    },
  };
}

// firstlight bench serve; its JSON.
export async function benchServe(build, server, options) {
  const args = ['bench', 'serve', '--url', server.url, '--json', '-q', ...options.map(String)];
  const { code, text } = await output(path.join(build, 'firstlight'), args);
  if (code !== 0) throw new Error(`firstlight ${args.join(' ')} ended with ${code}`);
  return JSON.parse(text);
}
