// Groups of protocol 3: their jobs take turns, and their limits come from the worker or from the queue.
import { sleep, until } from "./client.ts";
import { Scene } from "./scene.ts";

function grouped(id: string, count: number): object[] {
  return Array.from({ length: count }, (_, n) => ({ name: `${id}${n}`, data: {}, opts: { group: { id } } }));
}

export async function takeTurns(scene: Scene) {
  const queue = scene.queue();
  await queue.addBulk([...grouped("a", 3), ...grouped("b", 2), { name: "alone", data: {} }]);
  const order: string[] = [];
  scene.worker(async (job) => order.push(job.name), { concurrency: 1, batchSize: 1 });
  await until(() => order.length === 6, "all have run");
  return { order };
}

export async function areLimitedByTheWorker(scene: Scene) {
  const queue = scene.queue();
  await queue.addBulk([...grouped("a", 4), ...grouped("b", 4)]);
  const running: Record<string, number> = { a: 0, b: 0 };
  const most: Record<string, number> = { a: 0, b: 0 };
  let done = 0;
  scene.worker(
    async (job) => {
      const group = job.name[0];
      most[group] = Math.max(most[group], ++running[group]);
      await sleep(100);
      running[group]--;
      done++;
    },
    { concurrency: 8, group: { concurrency: 2 } },
  );
  await until(() => done === 8, "all have run");
  return { most };
}

export async function arePausedAndCounted(scene: Scene) {
  const queue = scene.queue();
  await queue.addBulk([...grouped("a", 2), ...grouped("b", 3)]);
  const counts = [
    await queue.getGroupJobsCount("a"),
    await queue.getGroupsJobsCount(),
    await queue.getGroupActiveCount("a"),
  ];
  const paused = [await queue.pauseGroup("a"), await queue.pauseGroup("a"), await queue.isGroupPaused("a")];
  const order: string[] = [];
  scene.worker(async (job) => order.push(job.name), { concurrency: 1 });
  await until(() => order.length === 3, "the other group has run");
  const whilePaused = order.map((name) => name[0]);
  const left = (await queue.getGroupJobs("a")).map((job: any) => job.name);
  const resumed = await queue.resumeGroup("a");
  await until(() => order.length === 5, "the paused group has run");
  return { counts, paused, whilePaused, left, resumed, isPaused: await queue.isGroupPaused("a") };
}

export async function haveLimitsOfTheirOwn(scene: Scene) {
  const queue = scene.queue();
  const before = [await queue.getGroupConcurrency("a"), await queue.getGroupRateLimit("a")];
  await queue.setGroupConcurrency("a", 3);
  await queue.setGroupRateLimit("a", 5, 1_000);
  const set = [
    await queue.getGroupConcurrency("a"),
    await queue.getGroupRateLimit("a"),
    await queue.getGroupRateLimitTtl("a"),
  ];
  const removed = [await queue.removeGroupConcurrency("a"), await queue.removeGroupRateLimit("a")];
  return { before, set, removed, after: [await queue.getGroupConcurrency("a"), await queue.getGroupRateLimit("a")] };
}

export async function areFull(scene: Scene) {
  const queue = scene.queue();
  const options = { group: { id: "a", maxSize: 1 } };
  await queue.add("first", {}, options);
  const refusal = await queue.add("second", {}, options).catch((error: Error) => error.message);
  return { refusal, count: await queue.countAsync() };
}
