// The clients that people use, as they come from npm, and curl: each drives a real server with the bundled model.
import { test, before, after, describe } from 'node:test';
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { promisify } from 'node:util';
import OpenAI from 'openai';
import { generateObject, generateText, streamText, tool, stepCountIs } from 'ai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { z } from 'zod';
import { startServer, until, document, question, fact } from './server.mjs';

const key = 'sk-e2e-1';
const model = 'spark-66m';
const asked = [{ role: 'user', content: [{ type: 'text', text: document }, { type: 'text', text: question }] }];
const one = `${document}\n\n${question}`;
let server;

before(async () => {
  server = await startServer({ key, options: ['--sse-ping-interval', '0.1'] });
});
after(async () => {
  assert.equal(await server.stop(), 0);
});

describe('openai', () => {
  let client;
  before(() => {
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: key, maxRetries: 0 });
  });

  test('lists the model', async () => {
    const models = await client.models.list();
    assert.equal(models.data[0].id, model);
  });

  test('answers whole, and again from the cache with the same text', async () => {
    const ask = () => client.chat.completions.create({ model, messages: asked, max_tokens: 24, temperature: 0 });
    const first = await ask();
    const second = await ask();
    assert.match(first.choices[0].message.content, new RegExp(fact));
    assert.equal(second.choices[0].message.content, first.choices[0].message.content);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens > 1000);
    assert.equal(second.usage.total_tokens, second.usage.prompt_tokens + second.usage.completion_tokens);
  });

  test('streams: the role first, then text, a reason to end, usage last', async () => {
    const stream = await client.chat.completions.create({
      model, messages: asked, max_tokens: 24, temperature: 0, stream: true, stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.equal(chunks[0].choices[0].delta.role, 'assistant');
    const text = chunks.map((c) => c.choices[0]?.delta.content ?? '').join('');
    assert.match(text, new RegExp(fact));
    assert.ok(['stop', 'length'].includes(chunks.at(-2).choices[0].finish_reason));
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.ok(chunks.at(-1).usage.completion_tokens > 0);
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  });

  test('gives log-probabilities, several choices, stops', async () => {
    const answer = await client.chat.completions.create({
      model, messages: asked, max_tokens: 12, temperature: 1, seed: 7, n: 2, logprobs: true, top_logprobs: 3,
    });
    assert.equal(answer.choices.length, 2);
    for (const { logprobs } of answer.choices)
      for (const token of logprobs.content) {
        assert.ok(token.logprob <= 0 && token.top_logprobs.length === 3);
        assert.ok(token.top_logprobs[0].logprob >= token.top_logprobs[2].logprob);
      }
    const whole = await client.chat.completions.create({ model, messages: asked, max_tokens: 24, temperature: 0 });
    const stop = fact.slice(2, 4);
    const cut = await client.chat.completions.create({ model, messages: asked, max_tokens: 24, temperature: 0, stop });
    assert.equal(cut.choices[0].finish_reason, 'stop');
    assert.equal(cut.choices[0].message.content, whole.choices[0].message.content.split(stop)[0]);
  });

  test('completes plain text and token ids', async () => {
    const body = JSON.stringify({ model, prompt: 'Once upon a time' });
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const { tokens } = await (await fetch(`${server.url}/tokenize`, { method: 'POST', headers, body })).json();
    const text = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8, temperature: 0 });
    const ids = await client.completions.create({ model, prompt: tokens, max_tokens: 8, temperature: 0 });
    assert.equal(text.choices[0].text, ids.choices[0].text);
    assert.equal(text.usage.prompt_tokens, tokens.length);
  });

  test('answers in a JSON schema', async () => {
    const schema = {
      type: 'object', additionalProperties: false, required: ['number', 'sure'],
      properties: { number: { type: 'integer' }, sure: { type: 'boolean' } },
    };
    const answer = await client.chat.completions.create({
      model, messages: asked, max_tokens: 64, temperature: 0,
      response_format: { type: 'json_schema', json_schema: { name: 'found', strict: true, schema } },
    });
    const value = JSON.parse(answer.choices[0].message.content);
    assert.ok(Number.isInteger(value.number) && typeof value.sure === 'boolean');
    assert.deepEqual(Object.keys(value).sort(), ['number', 'sure']);
  });

  test('calls a tool that it must call, whole and streamed', async () => {
    const tools = [{ type: 'function', function: { name: 'look_up', description: 'looks a number up', parameters: {
      type: 'object', additionalProperties: false, required: ['name'], properties: { name: { type: 'string', maxLength: 20 } } } } }];
    const call = { model, messages: asked, max_tokens: 80, temperature: 0, tools,
      tool_choice: { type: 'function', function: { name: 'look_up' } } };
    const answer = await client.chat.completions.create(call);
    const [made] = answer.choices[0].message.tool_calls;
    assert.equal(made.function.name, 'look_up');
    assert.equal(typeof JSON.parse(made.function.arguments).name, 'string');
    let name = '';
    let args = '';
    for await (const chunk of await client.chat.completions.create({ ...call, stream: true }))
      for (const part of chunk.choices[0]?.delta.tool_calls ?? []) {
        name += part.function?.name ?? '';
        args += part.function?.arguments ?? '';
      }
    assert.equal(name, 'look_up');
    assert.deepEqual(JSON.parse(args), JSON.parse(made.function.arguments));
  });

  test('names what was wrong', async () => {
    const ask = (more) => client.chat.completions.create({ model, messages: asked, ...more });
    await assert.rejects(ask({ temperature: -1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
    await assert.rejects(ask({ messages: [] }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'messages');
    await assert.rejects(ask({ model: 'gpt-4' }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'wrong', maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  });

  test('leaves in the middle of a stream, and the server stops working for it', async () => {
    const stream = await client.chat.completions.create({
      model, messages: asked, max_tokens: 4000, ignore_eos: true, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
    stream.controller.abort();
    await until(async () => (await server.metric('num_requests_running')) === 0, 'the request ended');
  });
});

describe('ai and @ai-sdk/openai-compatible', () => {
  let spark;
  before(() => {
    const provider = createOpenAICompatible({
      name: 'firstlight', baseURL: `${server.url}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true });
    spark = provider(model);
  });

  test('answers whole and streamed, with usage', async () => {
    const whole = await generateText({ model: spark, prompt: one, temperature: 0, maxOutputTokens: 24 });
    assert.match(whole.text, new RegExp(fact));
    assert.ok(whole.usage.inputTokens > 1000 && whole.usage.outputTokens > 0);
    const stream = streamText({ model: spark, prompt: one, temperature: 0, maxOutputTokens: 24 });
    let text = '';
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).inputTokens, whole.usage.inputTokens);
  });

  test('makes objects of a schema', async () => {
    const { object } = await generateObject({ model: spark, prompt: one, temperature: 0, maxOutputTokens: 64,
      schema: z.object({ number: z.number().int(), kind: z.enum(['magic', 'other']) }) });
    assert.ok(Number.isInteger(object.number) && ['magic', 'other'].includes(object.kind));
  });

  test('calls a tool', async () => {
    const seen = [];
    await generateText({ model: spark, prompt: one, temperature: 0, maxOutputTokens: 80, stopWhen: stepCountIs(1),
      toolChoice: 'required',
      tools: { look_up: tool({ description: 'looks a number up',
        inputSchema: z.object({ exact: z.boolean() }), execute: async (input) => seen.push(input) }) } });
    assert.equal(typeof seen[0]?.exact, 'boolean');
  });

  test('gives up', async () => {
    const leave = new AbortController();
    const stream = streamText({ model: spark, prompt: one, maxOutputTokens: 4000, abortSignal: leave.signal, onError() {} });
    for await (const piece of stream.textStream) {
      if (piece) leave.abort();
    }
    await until(async () => (await server.metric('num_requests_running')) === 0, 'the request ended');
  });
});

describe('@langchain/openai', () => {
  let spark;
  before(() => {
    spark = new ChatOpenAI({ model, apiKey: key, temperature: 0, maxTokens: 64, maxRetries: 0,
      configuration: { baseURL: `${server.url}/v1` } });
  });

  test('invokes and streams', async () => {
    const whole = await spark.invoke(one);
    assert.match(whole.content, new RegExp(fact));
    assert.ok(whole.usage_metadata.input_tokens > 1000);
    let text = '';
    for await (const chunk of await spark.stream(one)) text += chunk.content;
    assert.equal(text, whole.content);
  });

  test('structured output and tools', async () => {
    const Found = z.object({ number: z.number().int() });
    const found = await spark.withStructuredOutput(Found, { name: 'found', method: 'jsonSchema' }).invoke(one);
    assert.ok(Number.isInteger(found.number));
    const call = await spark.bindTools([{ name: 'look_up', description: 'looks a number up', schema: Found }],
      { tool_choice: 'look_up' }).invoke(one);
    assert.equal(call.tool_calls[0].name, 'look_up');
    assert.ok(Number.isInteger(call.tool_calls[0].args.number));
  });

  test('errors keep their message', async () => {
    await assert.rejects(spark.invoke([]), /messages/);
  });
});

describe('curl', () => {
  const curl = (args) => promisify(execFile)('curl', ['-sS', '-H', `authorization: Bearer ${key}`, ...args]);

  test('reads a stream', async () => {
    const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }], max_tokens: 5, stream: true });
    const { stdout } = await curl(['-N', '-i', '-H', 'content-type: application/json', '-d', body,
      `${server.url}/v1/chat/completions`]);
    assert.match(stdout, /^HTTP\/1\.1 200 OK\r\n/);
    assert.match(stdout, /content-type: text\/event-stream/i);
    assert.ok(stdout.trimEnd().endsWith('data: [DONE]'));
  });

  test('sees progress before the first token', async () => {
    const text = `Another one: ${document}`; // nothing of it is cached
    const body = JSON.stringify({ model, messages: [{ role: 'user', content: text }], max_tokens: 1, stream: true });
    const child = spawn('curl', ['-sSN', '-H', `authorization: Bearer ${key}`, '-H', 'content-type: application/json',
      '--data-binary', '@-', `${server.url}/v1/chat/completions`]);
    child.stdin.end(body);
    let out = '';
    for await (const piece of child.stdout) out += piece;
    assert.match(out, /^: prefill \d+% \d+\/\d+ tokens$/m);
    assert.ok(out.trimEnd().endsWith('data: [DONE]'));
  });
});
