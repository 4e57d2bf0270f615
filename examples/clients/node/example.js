// Three messages through RocketMQ's own Node client.
//
//   npm install rocketmq-client-nodejs
//   node example.js 127.0.0.1:8081 greetings
//
// The endpoint is the gRPC address of any node. This client speaks plain text; with `sslEnabled: true` it
// checks the certificate of the node.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const COUNT = 3;
const INVISIBLE_MS = 30_000; // the time in which a message is acknowledged, or it comes again

async function main(endpoints, topic) {
  const common = { endpoints, namespace: '' };
  const producer = new Producer({ ...common, topics: [topic] });
  const consumer = new SimpleConsumer({
    ...common, consumerGroup: 'node-readers', subscriptions: new Map([[topic, '*']]), awaitDuration: 5000,
  });
  await producer.startup();
  await consumer.startup();
  for (let number = 0; number < COUNT; number++) {
    const receipt = await producer.send({ topic, tag: 'polite', body: Buffer.from(`hello ${number}`) });
    console.log('sent', receipt.messageId);
  }
  for (let received = 0; received < COUNT;) {
    for (const message of await consumer.receive(COUNT, INVISIBLE_MS)) {
      console.log('received', String(message.body));
      await consumer.ack(message);
      received++;
    }
  }
  await consumer.shutdown();
  await producer.shutdown();
}

main(...process.argv.slice(2));
