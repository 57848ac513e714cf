// A server with tokens and TLS, reached with the certificate in PEERS_CERTIFICATE.
import { Queue, QueueEvents, Worker, connection } from "./client.ts";
import { Scene } from "./scene.ts";

const tls = { caFile: process.env.PEERS_CERTIFICATE };

async function firstError(subject: any): Promise<string> {
  const refusal = new Promise<string>((resolve) => subject.on("error", (error: Error) => resolve(error.message)));
  return Promise.race([
    refusal,
    subject.waitUntilReady().then(
      () => "let in",
      (error: Error) => error.message,
    ),
  ]);
}

export async function letsInWhoHasTheToken(scene: Scene) {
  const options = { connection: { ...connection, tls, token: "right" } };
  const queue = new Queue(scene.name, options);
  const events = new QueueEvents(scene.name, options);
  const worker = new Worker(scene.name, async (job: any) => job.data.to, options);
  await Promise.all([events.waitUntilReady(), worker.waitUntilReady()]);
  const job = await queue.add("send", { to: "ada" });
  const result = await job.waitUntilFinished(events, 20_000);
  await worker.close();
  await events.disconnect();
  await queue.disconnect();
  return { result };
}

export async function keepsOutWhoHasNone(scene: Scene) {
  const refused = async (token?: string) => {
    const queue = new Queue(scene.name, { connection: { ...connection, tls, token, commandTimeout: 3_000 } });
    return queue.add("send", {}).then(
      () => "taken",
      (error: Error) => error.message,
    );
  };
  const events = new QueueEvents(scene.name, { connection: { ...connection, tls } });
  return { none: await refused(), wrong: await refused("wrong"), events: await firstError(events) };
}
