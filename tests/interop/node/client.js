// RocketMQ's gRPC client for Node as a program of the matrix: tests/helpers/interop/program.py has the instructions.
// Arguments: the address [access key, secret key]. The directory of its packages is NODE_PATH.

'use strict';

const crypto = require('node:crypto');
const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const ENDS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};
const TIMEOUT_MS = Number(process.env.CLIENT_TIMEOUT_MS ?? 20000);
const INVISIBLE_MS = 30000;
const SHUTDOWN_MS = 5000;
const BATCH = 16;

const [address, accessKey, accessSecret] = process.argv.slice(2);
const options = { endpoints: address, namespace: '', requestTimeout: TIMEOUT_MS, logger: silent() };
if (process.env.CLIENT_TLS) {
  options.sslEnabled = true;
}
if (accessKey) {
  options.sessionCredentials = { accessKey, accessSecret };
}

const producers = new Map();
let received = [];
let checked = 0;
let consumer = null;
let isPolling = false;
let polling = null;

function silent() {
  const tell = (...words) => console.error(...words);
  return { error: tell, warn: tell, info: () => {}, debug: () => {} };
}

// The code of the server, which an error may have as its cause.
function codeOf(error) {
  for (let one = error; one; one = one.cause) {
    if (typeof one.code === 'number') {
      return one.code;
    }
  }
  return null;
}

async function producer(topic) {
  if (!producers.has(topic)) {
    const made = new Producer({ ...options, topics: [topic], topic, maxAttempts: 1 });
    await made.startup();
    producers.set(topic, made);
  }
  return producers.get(topic);
}

function message(topic, one) {
  const made = { topic, body: one.bytes ? crypto.randomBytes(one.bytes) : Buffer.from(one.body) };
  if (one.tags) made.tag = one.tags;
  if (one.keys) made.keys = [one.keys];
  if (one.order) made.messageGroup = one.order;
  if (one.deliverAtMs) made.deliveryTimestamp = new Date(one.deliverAtMs);
  if (one.properties) made.properties = new Map(Object.entries(one.properties));
  return made;
}

function place(sent) {
  return { status: 'OK', msgId: sent.messageId, recallHandle: sent.recallHandle || null };
}

function seen(got) {
  return {
    body: got.body.toString(),
    tags: got.tag ?? null,
    keys: got.keys.join(' '),
    msgId: got.messageId,
    attempt: got.deliveryAttempt,
    properties: Object.fromEntries(got.properties),
  };
}

async function poll(simple) {
  while (isPolling) {
    try {
      for (const got of await simple.receive(BATCH, INVISIBLE_MS)) {
        received.push(seen(got));
        await simple.ack(got);
      }
    } catch (error) {
      console.error(error);
    }
  }
}

const DOES = {
  async send({ topic, messages, mode }) {
    const sender = await producer(topic);
    const sends = messages.map(one => () => sender.send(message(topic, one)));
    if (mode === 'async') {
      return (await Promise.all(sends.map(send => send()))).map(place);
    }
    const places = [];
    for (const send of sends) {
      places.push(place(await send()));
    }
    return places;
  },

  async recall({ topic, handle }) {
    return String(await (await producer(topic)).recallMessage(topic, handle));
  },

  async transaction({ topic, messages, end, check }) {
    const checker = { check: async () => { checked += 1; return ENDS[check]; } };
    const sender = new Producer({ ...options, topics: [topic], topic, checker });
    await sender.startup(); // it stays: the server asks it
    const transaction = sender.beginTransaction();
    const sent = await sender.send(message(topic, messages[0]), transaction);
    if (end === 'commit') {
      await transaction.commit();
    } else if (end === 'rollback') {
      await transaction.rollback();
    }
    return [place(sent)];
  },

  async checked() {
    return checked;
  },

  async consume({ group, topic, mode, tags, sql, fails }) {
    received = [];
    const filter = sql ? new FilterExpression(sql, FilterType.SQL) : new FilterExpression(tags ?? '*', FilterType.TAG);
    const subscriptions = new Map([[topic, filter]]);
    if (mode === 'simple') {
      consumer = new SimpleConsumer({ ...options, consumerGroup: group, subscriptions, awaitDuration: 5000 });
      await consumer.startup();
      isPolling = true;
      polling = poll(consumer);
      return null;
    }
    const messageListener = {
      consume: async got => {
        received.push(seen(got));
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    consumer = new PushConsumer({ ...options, consumerGroup: group, subscriptions, messageListener });
    await consumer.startup();
    return null;
  },

  async received({ count, timeoutMs }) {
    const end = Date.now() + timeoutMs;
    while (received.length < count && Date.now() < end) {
      await new Promise(resolve => setTimeout(resolve, 20));
    }
    return received;
  },

  async leave() {
    isPolling = false;
    await polling;
    polling = null;
    if (consumer) {
      // A push consumer whose message has become a dead letter never ends.
      await Promise.race([consumer.shutdown(), new Promise(resolve => setTimeout(resolve, SHUTDOWN_MS))]);
      consumer = null;
    }
    return null;
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const what = JSON.parse(line);
    let answer;
    try {
      answer = { value: await DOES[what.do](what) };
    } catch (error) {
      console.error(error);
      answer = { error: String(error), code: codeOf(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

main();
