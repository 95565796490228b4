// The page at "/" in a real browser: documents are dropped and asked about, meters are drawn, keys and errors are told;
// by keyboard, and at 400 pixels. FL_SCREENSHOTS=FOLDER keeps pictures.
import { test, before, after } from 'node:test';
import assert from 'node:assert/strict';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { startServer, until, document, question, fact } from './server.mjs';

const key = 'sk-page-1';
let server;
let browser;
let page;
const complaints = [];

const shot = async (name) => {
  if (process.env.FL_SCREENSHOTS) await page.screenshot({ path: path.join(process.env.FL_SCREENSHOTS, name) });
};

before(async () => {
  server = await startServer({ key, options: ['--sse-ping-interval', '0.1'] });
  browser = await chromium.launch({ executablePath: process.env.FL_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update'] });
  page = await browser.newPage({ viewport: { width: 1100, height: 900 }, colorScheme: 'light' });
  page.on('console', (m) => m.type() === 'error' && complaints.push(m.text()));
  page.on('pageerror', (e) => complaints.push(String(e)));
});
after(async () => {
  await browser?.close();
  assert.equal(await server.stop(), 0);
});

test('is served with a strict policy and without a key', async () => {
  const answer = await page.goto(server.url);
  assert.equal(answer.status(), 200);
  assert.match(answer.headers()['content-security-policy'], /default-src 'none'.*script-src 'self'/);
  await page.getByText('ready').waitFor({ timeout: 90e3 });
});

test('asks for the key when there must be one', async () => {
  const field = page.getByLabel('API key');
  await field.waitFor();
  await field.fill(key);
  await field.blur();
  await page.getByText('spark-66m').waitFor();
  assert.ok(complaints.every((c) => c.includes('401')), complaints.join('\n'));
  complaints.length = 0;
});

test('answers a question about a dropped document, and shows where the time went', async () => {
  const data = await page.evaluateHandle((text) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], 'report.txt', { type: 'text/plain' }));
    return transfer;
  }, document);
  await page.locator('#drop').dispatchEvent('drop', { dataTransfer: data });
  await page.getByText('report.txt').waitFor();
  await page.getByLabel('Question').fill(question);
  await page.getByRole('button', { name: 'Ask', exact: true }).click();
  await page.getByText(/reading: \d+%, [\d,]+ of [\d,]+ tokens/).waitFor({ timeout: 60e3 });
  await shot('page-reading.png');
  await page.locator('#timeline').waitFor({ timeout: 120e3 });
  assert.match(await page.locator('#answer').textContent(), new RegExp(fact));
  for (const id of ['ttft', 'prompt', 'cached', 'answer', 'speed'])
    assert.notEqual(await page.locator(`#figure-${id}`).textContent(), '-', id);
  const marks = await page.locator('.mark > span:first-child').allTextContents();
  for (const name of ['Tokenise', 'Queue', 'Prefill', 'First token', 'Answer'])
    assert.ok(marks.some((m) => m.startsWith(name)), name);
  await shot('page-answer.png');
});

test('the same question again comes from the cache, by keyboard alone', async () => {
  await page.getByLabel('Question').focus();
  await page.keyboard.press('Control+Enter');
  await page.locator('#progress-row').waitFor({ state: 'hidden', timeout: 60e3 });
  assert.match(await page.locator('#figure-cached').textContent(), /\((9\d|100)%\)/);
});

test('stops in the middle of a prefill, and the server stops too', async () => {
  await page.getByText('Paste a document').click();
  await page.getByLabel('Its text').fill(document.split(' ').reverse().join(' ')); // nothing of it is cached
  await page.getByLabel('Question').fill('What is it about?');
  await page.getByRole('button', { name: 'Ask', exact: true }).click();
  await until(async () => (await server.metric('num_requests_running')) === 1, 'the request runs');
  await page.getByRole('button', { name: 'Stop' }).click();
  await until(async () => (await server.metric('num_requests_running')) === 0, 'the request ended');
  assert.ok(await page.locator('#error').isHidden());
  assert.equal(await page.locator('#figure-ttft').textContent(), '-');
});

test('says what is wrong', async () => {
  await page.getByLabel('Its text').fill('word '.repeat(150000)); // more than the context
  await page.getByRole('button', { name: 'Ask', exact: true }).click();
  await page.getByRole('alert').filter({ hasText: 'context' }).waitFor();
  await page.getByLabel('Its text').fill('');
});

test('refuses a file that is no text, until another is taken', async () => {
  const take = (name, bytes) => page.locator('#files').setInputFiles({ name, mimeType: 'text/plain', buffer: Buffer.from(bytes) });
  await take('picture.png', [0x89, 0x50, 0xff]);
  await page.getByRole('alert').filter({ hasText: 'picture.png is not UTF-8 text' }).waitFor();
  await take('note.txt', 'a note');
  await page.getByText('note.txt').waitFor();
  assert.ok(await page.getByRole('alert').isHidden());
});

test('draws the meters', async () => {
  await page.getByRole('tab', { name: 'Ask' }).focus();
  await page.keyboard.press('ArrowRight');
  await page.getByText('Peak memory').waitFor();
  await page.locator('#plot-ttft canvas').waitFor();
  await page.waitForTimeout(4500); // a few points
  for (const id of ['requests', 'kv', 'tokens', 'ttft']) {
    const inked = await page.locator(`#plot-${id} canvas`).evaluate((canvas) => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      return data.some((v, i) => i % 4 === 3 && v > 0);
    });
    assert.ok(inked, id);
  }
  assert.match(await page.locator('#live').textContent(), /Time goes to[a-z]+ \d+%/);
  await shot('page-meters.png');
});

test('fits 400 pixels', async () => {
  await page.setViewportSize({ width: 400, height: 800 });
  for (const name of ['Meters', 'Ask']) {
    await page.getByRole('tab', { name }).click();
    const { scroll, width } = await page.evaluate(() => (
      { scroll: window.document.documentElement.scrollWidth, width: window.innerWidth }));
    assert.ok(scroll <= width, `${name}: ${scroll} > ${width}`);
  }
  await shot('page-narrow.png');
});

test('nothing was complained about in the console', () => {
  assert.deepEqual(complaints.filter((c) => !c.includes('400')), []);
});
