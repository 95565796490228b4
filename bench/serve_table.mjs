// The results of bench/serve_load.sh as a file of JSON lines and a table, dated, of the parts that ran.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const ORDER = ['capacity', 'mixed', 'capacity-tokens', 'mixed-tokens', 'equal', 'overload', 'streams', 'stalled', 'disconnects'];

function machine() {
  const name = /^model name[^:]*:\s*(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1] ?? os.arch();
  return { name, file: name.replace(/[^A-Za-z0-9]+/g, '-').replace(/-+$/, '') };
}

function number(value) {
  if (typeof value !== 'number') return String(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

function rowText(row) {
  const met = row.ok === null ? '' : row.ok ? 'yes' : '**no**';
  return `| ${row.what} | ${number(row.value)} ${row.unit} | ${row.wanted} | ${met} |`.replace(/ +\|/g, ' |');
}

function partText(record) {
  return [`## ${record.part}`, '', `${record.date.slice(0, 16)}Z, ${Math.round(record.wall_s)} s, commit ${record.commit}, seed ${record.seed}.`, '',
    '| what | measured | wanted | met |', '|---|---|---|---|', ...record.rows.map(rowText), ''];
}

function readRecords(file) {
  return existsSync(file) ? readFileSync(file, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line)) : [];
}

// Parts of another scale than this run's are left out; of those already in the file of this day and machine the newest
// stays. A trial's table stays in the build folder.
export function writeTable(work, root, scale) {
  const { name, file } = machine();
  const folder = scale === 1 ? path.join(root, 'bench/results') : work;
  const out = path.join(folder, `serve-${new Date().toISOString().slice(0, 10)}-${file}`);
  const found = [...readRecords(`${out}.jsonl`), ...ORDER.flatMap((part) => readRecords(path.join(work, `${part}.json`)))]
    .filter((record) => record.scale === scale).sort((a, b) => a.date.localeCompare(b.date));
  const records = ORDER.map((part) => found.findLast((record) => record.part === part)).filter(Boolean);
  if (records.length === 0) return;
  const parts = records.map((record) => record.part).join(' ');
  const lines = [`# The server under load, ${new Date().toISOString().slice(0, 10)}`, '',
    `${name}, ${os.cpus().length} CPUs; Node ${process.version}; command \`bench/serve_load.sh build ${parts}\`; spark-66m, bf16 KV. The`,
    'load generator runs on the same CPUs. Lines without a "wanted" are there to judge the others by.', ''];
  if (scale !== 1) lines.push(`**A trial at ${scale} of the full durations, counts and prompt lengths: not a result.**`, '');
  writeFileSync(`${out}.md`, [...lines, ...records.flatMap(partText)].join('\n'));
  writeFileSync(`${out}.jsonl`, records.map((record) => `${JSON.stringify({ ...record, machine: name, cpus: os.cpus().length })}\n`).join(''));
  console.error(`serve_load: ${out}.md`);
}
