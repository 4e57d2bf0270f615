// RocketMQ's Node client of version 5, told by lines; see interop_grpc.py for them. Arguments: the
// endpoint, `tls` or `plain`, the namespace or '', and the directory of the client's package.
const { createRequire } = require('node:module');
const path = require('node:path');
const readline = require('node:readline');

const [endpoints, security, namespace, home] = process.argv.slice(2);
const fetched = createRequire(path.join(home, 'package.json'));
const rocketmq = fetched('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = fetched('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
const [accessKey, accessSecret] = [process.env.SATURNMQ_ACCESS_KEY, process.env.SATURNMQ_SECRET_KEY];
const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
const common = { sessionCredentials, endpoints, namespace, sslEnabled: security === 'tls', logger };
const consumers = new Map();
const views = new Map();
const seen = new Map();
let producer;

function described(view) {
  const { body, deliveryAttempt, messageId, tag, keys, messageGroup, properties } = view;
  return [body, deliveryAttempt, messageId, tag || '-', keys.join('+') || '-', messageGroup || '-', properties.get('n') || '-'].join(',');
}

function message([, topic, body, ...words]) {
  const made = { topic, body: Buffer.from(body) };
  for (const word of words) {
    const at = word.indexOf('=');
    const value = word.slice(at + 1);
    switch (word.slice(0, at)) {
      case 'tag': made.tag = value; break;
      case 'key': made.keys = [value]; break;
      case 'group': made.messageGroup = value; break;
      case 'at': made.deliveryTimestamp = new Date(Number(value)); break;
      case 'n': made.properties = new Map([['n', value]]); break;
    }
  }
  return made;
}

function options([, consumerGroup, topic, kind, expression]) {
  const type = kind === 'sql' ? FilterType.SQL : FilterType.TAG;
  const filter = new rocketmq.FilterExpression(expression.replaceAll('_', ' '), type);
  return { ...common, consumerGroup, subscriptions: new Map([[topic, filter]]) };
}

async function started(group, consumer) {
  consumers.set(group, consumer);
  await consumer.startup();
  return 'started';
}

const lines = {
  async producer([, ...topic]) {
    const check = async view => (String(view.body).startsWith('commit') ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK);
    producer = new rocketmq.Producer({ ...common, topic, checker: { check } });
    await producer.startup();
    return 'started';
  },
  async send(words) {
    const receipt = await producer.send(message(words));
    return `${receipt.messageId} ${receipt.recallHandle}`;
  },
  async recall([, topic, handle]) {
    await producer.recallMessage(topic, handle);
    return 'recalled';
  },
  async transaction(words) {
    const transaction = producer.beginTransaction();
    await producer.send(message(words), transaction);
    if (words[3] === 'end=commit') await transaction.commit();
    if (words[3] === 'end=rollback') await transaction.rollback();
    return 'sent';
  },
  simple(words) {
    return started(words[1], new rocketmq.SimpleConsumer({ ...options(words), awaitDuration: 2000 }));
  },
  async receive([, group, seconds]) {
    const got = await consumers.get(group).receive(32, seconds * 1000);
    for (const view of got) views.set(String(view.body), view).set(`${view.body}@${view.deliveryAttempt}`, view);
    return got.map(described).join(' ');
  },
  async ack([, group, body]) {
    await consumers.get(group).ack(views.get(body));
    return 'done';
  },
  async hide([, group, body, seconds]) {
    await consumers.get(group).changeInvisibleDuration(views.get(body), seconds * 1000);
    return 'done';
  },
  push(words) {
    const came = [];
    seen.set(words[1], came);
    const consume = async view => {
      came.push(described(view));
      return String(view.body).startsWith('bad') ? rocketmq.ConsumeResult.FAILURE : rocketmq.ConsumeResult.SUCCESS;
    };
    return started(words[1], new rocketmq.PushConsumer({ ...options(words), messageListener: { consume } }));
  },
  async seen([, group, count, seconds]) {
    const end = Date.now() + seconds * 1000;
    while (seen.get(group).length < count && Date.now() < end) await new Promise(done => setTimeout(done, 10));
    return seen.get(group).join(' ');
  },
  async leave([, group]) {
    await consumers.get(group).shutdown();
    return 'left';
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const words = line.split(' ');
    try {
      console.log(`\n> ok ${await lines[words[0]](words)}`);
    } catch (problem) {
      console.error(problem);
      console.log(`\n> failed ${String(problem).replaceAll('\n', ' ')}`);
    }
  }
  process.exit(0);
}

main();
