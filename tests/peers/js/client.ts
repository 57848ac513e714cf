// The package under test, and the server. Both come from the environment: what runs here is one program for all versions.
//
// PEERS_PACKAGE  folder whose node_modules holds the package `bunqueue`
// PEERS_PORT     TCP port of the server

const packageFolder = process.env.PEERS_PACKAGE!;

export const { Queue, Worker, QueueEvents, FlowProducer, SandboxedWorker, Bunqueue, UnrecoverableError, DelayedError } =
  await import(Bun.resolveSync("bunqueue/client", packageFolder));

// One connection is enough for a producer; the default pool of four costs time to open.
export const connection = { host: "127.0.0.1", port: Number(process.env.PEERS_PORT), poolSize: 1 };

// One line of JSON for the test that started this program.
export function say(line: unknown): void {
  process.stdout.write(JSON.stringify(line) + "\n");
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// Ask until the answer is yes. The limit is far beyond what a slow machine needs.
export async function until(condition: () => unknown, what: string): Promise<void> {
  const deadline = Date.now() + 30_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`did not happen: ${what}`);
    await sleep(10);
  }
}
