// A firstlight server for tests: started on a port of its own, its log kept, ended with SIGTERM.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import path from 'node:path';

export const root = process.env.FL_ROOT ?? path.resolve(import.meta.dirname, '../..');
const build = process.env.FL_BUILD ?? path.join(root, 'build');

// The demo's document hides this fact; the bundled model finds it.
export const document = readFileSync(path.join(root, 'share/demo/document.txt'), 'utf8');
export const question = 'What is the special magic number for hidden-lantern mentioned in the provided text?';
export const fact = '4718293';

export async function startServer({ options = [], key } = {}) {
  const args = ['serve', path.join(build, 'models/spark-66m'), '--port', '0', '--log-format', 'json', ...options];
  if (key) args.push('--api-key', key);
  const child = spawn(path.join(build, 'firstlight'), args, { stdio: ['ignore', 'inherit', 'pipe'] });
  const log = [];
  const port = await new Promise((resolve, reject) => {
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}: ${log.join('\n')}`)));
    createInterface({ input: child.stderr }).on('line', (line) => {
      log.push(line);
      let entry = {};
      try {
        entry = JSON.parse(line);
      } catch {
        // the line stays in the log
      }
      if (entry.event === 'listening') resolve(entry.port);
    });
  });
  const url = `http://127.0.0.1:${port}`;
  for (let i = 0; i < 600; i++) {
    if ((await fetch(`${url}/health`)).status === 200) break;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return {
    url,
    log,
    async stop() {
      const code = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGTERM');
      return code;
    },
    // One value of /metrics, whatever its labels.
    async metric(name) {
      const headers = key ? { authorization: `Bearer ${key}` } : {};
      const text = await (await fetch(`${url}/metrics`, { headers })).text();
      const line = text.split('\n').find((l) => l.startsWith(`firstlight:${name}{`));
      return line === undefined ? undefined : Number(line.split(' ').at(-1));
    },
  };
}

export async function until(condition, what, timeout_s = 30) {
  for (const end = Date.now() + timeout_s * 1e3; Date.now() < end; ) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not within ${timeout_s} s: ${what}`);
}
