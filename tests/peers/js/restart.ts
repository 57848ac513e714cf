// A Worker and a QueueEvents that live through a restart of the server. Says what happens, until standard input ends.
//
// Usage: bun restart.ts QUEUE     Reads lines: each is the name of a job to make and to wait for.
import { Queue, QueueEvents, Worker, connection, say, sleep } from "./client.ts";

const [queueName] = process.argv.slice(2);
const queue = new Queue(queueName, { connection });
const events = new QueueEvents(queueName, { connection });
const worker = new Worker(queueName, async (job: any) => `${job.name}: ${job.data.n}`, { connection });

// A connection that breaks may say so.
for (const subject of [events, worker]) subject.on("error", () => {});
events.on("completed", ({ returnvalue }: any) => say({ event: "completed", returnvalue }));
worker.on("completed", (job: any) => say({ worked: job.name, data: job.data }));

await Promise.all([events.waitUntilReady(), worker.waitUntilReady()]);
say({ ready: true });

// While it is not connected a push fails at once, without having been sent.
async function add(name: string): Promise<any> {
  for (;;) {
    try {
      return await queue.add(name, { n: 1 });
    } catch {
      await sleep(50);
    }
  }
}

for await (const line of console) {
  if (line === "") break; // the end of standard input
  const job = await add(line);
  job.waitUntilFinished(events, 20_000).then(
    (result: unknown) => say({ waited: line, result }),
    (error: Error) => say({ waited: line, failure: error.message }),
  );
}
await worker.close();
await events.disconnect();
await queue.close();
process.exit(0);
