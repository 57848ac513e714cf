// Jobs of a SandboxedWorker, whose processor is a file.
import { join } from "node:path";
import { until } from "./client.ts";
import { Scene } from "./scene.ts";

export async function worksInABox(scene: Scene) {
  const queue = scene.queue();
  const worker = scene.sandboxedWorker({ processor: join(import.meta.dir, "sandbox_processor.ts"), concurrency: 2 });
  const results: unknown[] = [];
  const failures: unknown[] = [];
  worker.on("completed", (_job: any, result: unknown) => results.push(result));
  worker.on("failed", (_job: any, error: Error) => failures.push(error.message));
  await worker.start();
  const good = await queue.add("good", { to: "ada" });
  const bad = await queue.add("bad", { fails: true }, { attempts: 1 });
  await until(() => results.length === 1 && failures.length === 1, "both are finished");
  await until(async () => (await bad.getState()) === "failed", "the failure is known");
  return { results, failures, states: [await good.getState(), await bad.getState()] };
}
