// One peer among several: it works jobs of every peer, its own too, and makes jobs for every peer.
//
// Usage: bun pairing.ts NAME PEER...    The queue PRODUCER-to-WORKER is between those two. Says every job that it runs.
import { Queue, Worker, connection, say, until } from "./client.ts";

const [me, ...peers] = process.argv.slice(2);

// `undefined` is no data at all: the client leaves the key out.
const payloads: Record<string, unknown> = {
  map: { to: "ada" },
  "own-name": { name: "Bob", to: "ada" },
  list: [1, "two"],
  null: null,
  missing: undefined,
};

let expected = peers.length * Object.keys(payloads).length * 2;
const errors: string[] = [];

const workers = peers.map((peer) => {
  const worker = new Worker(
    `${peer}-to-${me}`,
    async (job: any) => {
      say({ id: job.id, name: job.name, data: job.data });
      return { by: me };
    },
    { connection },
  );
  worker.on("completed", () => expected--);
  worker.on("error", (error: Error) => errors.push(String(error)));
  return worker;
});

const queues = peers.map((peer) => new Queue(`${me}-to-${peer}`, { connection, autoBatch: { enabled: false } }));
for (const queue of queues) {
  for (const [kind, data] of Object.entries(payloads)) {
    await queue.add("send", data, { jobId: `${queue.name}-${kind}-add` });
  }
  await queue.addBulk(
    Object.entries(payloads).map(([kind, data]) => ({
      name: "send",
      data,
      opts: { jobId: `${queue.name}-${kind}-bulk` },
    })),
  );
}

await until(() => expected <= 0, "all jobs are done");
await Promise.all(workers.map((worker) => worker.close()));
for (const queue of queues) queue.close();
say({ errors });
process.exit(0);
