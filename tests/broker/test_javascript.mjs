// One step of a conversation with the broker, by the official JavaScript SDK: node test_javascript.mjs STEP JSON.
// Prints one line of JSON. Run by test_javascript.py from a folder that has @azure/service-bus installed.
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const { ServiceBusClient } = require("@azure/service-bus");

const [step, text] = process.argv.slice(2);
const given = JSON.parse(text);
const client = new ServiceBusClient(given.connection, { retryOptions: { maxRetries: 0, timeoutInMs: 20000 } });

const shown = (message) => ({
  body: Buffer.isBuffer(message.body) ? message.body.toString("utf8") : message.body,
  messageId: message.messageId,
  sessionId: message.sessionId ?? null,
  timeToLive: message.timeToLive ?? null,
  subject: message.subject ?? null,
  contentType: message.contentType ?? null,
  correlationId: message.correlationId ?? null,
  properties: Object.fromEntries(
    Object.entries(message.applicationProperties ?? {}).map(([key, value]) => [
      key,
      value instanceof Date ? { date: value.toISOString() } : value,
    ]),
  ),
  sequenceNumber: message.sequenceNumber.toString(),
  state: message.state,
  deliveryCount: message.deliveryCount,
});

const steps = {
  async send() {
    const sender = client.createSender(given.queue);
    await sender.sendMessages(
      given.messages.map((message) => ({
        ...message,
        body: Buffer.from(message.body, "utf8"),
        applicationProperties: { ...message.applicationProperties, when: new Date("2026-01-02T03:04:05.678Z") },
      })),
    );
    return given.messages.length;
  },

  async receive() {
    const receiver = given.session
      ? await client.acceptSession(given.queue, given.session)
      : client.createReceiver(given.queue);
    const messages = await receiver.receiveMessages(given.count, { maxWaitTimeInMs: 15000 });
    for (const message of messages) await receiver.completeMessage(message);
    return messages.map(shown);
  },

  async deferred() {
    const receiver = client.createReceiver(given.queue);
    const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 15000 });
    await receiver.deferMessage(message);
    const peeked = await receiver.peekMessages(10);
    const [again] = await receiver.receiveDeferredMessages([message.sequenceNumber]);
    await receiver.completeMessage(again);
    const left = await receiver.peekMessages(10, { fromSequenceNumber: message.sequenceNumber });
    return { peeked: peeked.map(shown), again: shown(again), left: left.length };
  },

  async modified() {
    const receiver = client.createReceiver(given.queue);
    const one = async () => (await receiver.receiveMessages(1, { maxWaitTimeInMs: 15000 }))[0];
    await receiver.abandonMessage(await one(), { step: "abandoned", by: "link", whole: 5, yes: true });
    const again = await one();
    await receiver.deferMessage(again, { step: "deferred" });
    const deferred = async () => (await receiver.receiveDeferredMessages([again.sequenceNumber]))[0];
    const second = await deferred();
    await receiver.abandonMessage(second, { by: "request", fraction: 1.5 });
    const third = await deferred();
    await receiver.deadLetterMessage(third, { deadLetterReason: "why", deadLetterErrorDescription: "what", last: "yes" });
    await receiver.deadLetterMessage(await one(), { deadLetterReason: "why", last: "by link" });
    return [again, second, third].map((message) => shown(message).properties);
  },

  async peek() {
    const receiver = client.createReceiver(given.queue);
    return (await receiver.peekMessages(10)).map(shown);
  },

  async schedule() {
    const sender = client.createSender(given.queue);
    const [number] = await sender.scheduleMessages({ body: "later", messageId: "js-1" }, new Date(Date.now() + 3600000));
    if (given.cancel) await sender.cancelScheduledMessages(number);
    return number.toString();
  },

  async refused() {
    try {
      await client.createSender(given.queue).sendMessages({ body: "x" });
      return { code: null };
    } catch (error) {
      return { code: error.code, message: error.message };
    }
  },
};

try {
  console.log(JSON.stringify(await steps[step]()));
} finally {
  await client.close();
}
