// What a worker's processor may do with a job, and what the queue says about the job afterwards.
import { DelayedError, UnrecoverableError, sleep, until } from "./client.ts";
import { Scene, once } from "./scene.ts";

// A job as its owner sees it afterwards.
async function seen(queue: any, id: string): Promise<object> {
  const job = await queue.getJob(id);
  const { name, data, attemptsMade, progress, returnvalue, failedReason } = job;
  return { name, data, attemptsMade, progress, returnvalue, failedReason, state: await job.getState() };
}

export async function completes(scene: Scene) {
  const queue = scene.queue();
  const worker = scene.worker(async (job) => ({ sent: job.data.to }));
  const ready = once(worker, "ready");
  await worker.waitUntilReady();
  await ready;
  const completed = once(worker, "completed");
  const job = await queue.add("send", { to: "ada" });
  const [finished, result] = await completed;
  return { added: job.name, finished: [finished.name, finished.data, result], after: await seen(queue, job.id) };
}

export async function triesAgain(scene: Scene) {
  const queue = scene.queue();
  const runs: unknown[] = [];
  const worker = scene.worker(async (job) => {
    runs.push([job.name, job.data, job.attemptsMade]);
    if (runs.length < 3) throw new Error("not yet");
    return "at last";
  });
  const completed = once(worker, "completed");
  const failures: string[] = [];
  worker.on("failed", (_job: any, error: Error) => failures.push(error.message));
  const job = await queue.add("send", { to: "ada" }, { attempts: 3, backoff: 10 });
  await completed;
  return { runs, failures, after: await seen(queue, job.id) };
}

export async function failsForGood(scene: Scene) {
  const queue = scene.queue();
  const worker = scene.worker(async () => {
    throw new Error("boom");
  });
  const failed = once(worker, "failed");
  const job = await queue.add("send", { to: "ada" }, { attempts: 1 });
  const [finished, error] = await failed;
  await until(async () => (await job.getState()) === "failed", "the failure is known");
  return { finished: [finished.name, error.message], after: await seen(queue, job.id) };
}

export async function givesUpAtOnce(scene: Scene) {
  const queue = scene.queue();
  let runs = 0;
  const worker = scene.worker(async () => {
    runs++;
    throw new UnrecoverableError("no use");
  });
  const failed = once(worker, "failed");
  const job = await queue.add("send", { to: "ada" }, { attempts: 5, backoff: 1 });
  await failed;
  await until(async () => (await job.getState()) === "failed", "the failure is known");
  return { runs, after: await seen(queue, job.id) };
}

export async function movesToDelayed(scene: Scene) {
  const queue = scene.queue();
  const runs: unknown[] = [];
  const worker = scene.worker(async (job) => {
    runs.push([job.name, job.data]);
    if (runs.length === 1) {
      await job.moveToDelayed(Date.now() + 100, job.token);
      throw new DelayedError();
    }
    return "later";
  });
  const completed = once(worker, "completed");
  const job = await queue.add("send", { to: "ada" });
  await completed;
  return { runs, after: await seen(queue, job.id) };
}

// The second run must still know the name.
export async function updatesItsJob(scene: Scene) {
  const queue = scene.queue();
  const runs: unknown[] = [];
  const worker = scene.worker(async (job) => {
    runs.push([job.name, job.data]);
    if (runs.length === 1) {
      await job.updateData({ to: "grace", copies: 2 });
      await job.updateProgress(40, "half way");
      await job.log("sent the first");
      throw new Error("again, please");
    }
    await job.updateProgress(100);
  });
  const progress: number[] = [];
  worker.on("progress", (_job: any, value: number) => progress.push(value));
  const completed = once(worker, "completed");
  const job = await queue.add("send", { to: "ada" }, { attempts: 2, backoff: 10 });
  await completed;
  return { runs, progress, after: await seen(queue, job.id), logs: (await queue.getJobLogs(job.id)).logs };
}

export async function removesWhatIsFinished(scene: Scene) {
  const queue = scene.queue();
  const jobs = await queue.addBulk([
    { name: "good", data: {}, opts: { attempts: 1 } },
    { name: "bad", data: {}, opts: { attempts: 1 } },
  ]);
  const finished: string[] = [];
  const worker = scene.worker(
    async (job) => {
      if (job.name === "bad") throw new Error("boom");
    },
    { removeOnComplete: true, removeOnFail: true },
  );
  worker.on("completed", (job: any) => finished.push(job.name));
  worker.on("failed", (job: any) => finished.push(job.name));
  await until(() => finished.length === 2, "both are finished");
  await until(async () => (await queue.countAsync()) === 0, "nothing is left");
  const counts = await queue.getJobCountsAsync();
  return {
    finished: finished.sort(),
    left: await Promise.all(jobs.map((job: any) => queue.getJob(job.id))),
    counts: [counts.completed, counts.failed],
  };
}

// What was pulled and has not begun goes back at once, and is nobody's failure.
export async function closesWithJobsInItsBuffer(scene: Scene) {
  const queue = scene.queue();
  await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: "send", data: { n } })));
  let runs = 0;
  const worker = scene.worker(
    async () => {
      runs++;
      await sleep(300);
    },
    { concurrency: 1, batchSize: 10 },
  );
  await once(worker, "active");
  await worker.close();
  const counts = await queue.getJobCountsAsync();
  const waiting = await queue.getWaitingAsync(0, 20);
  return {
    runs,
    counts: [counts.waiting, counts.active, counts.completed, counts.failed],
    names: [...new Set(waiting.map((job: any) => job.name))],
    attempts: [...new Set(waiting.map((job: any) => job.attemptsMade))],
  };
}

export async function worksManyAtATime(scene: Scene) {
  const queue = scene.queue();
  const jobs = await queue.addBulk(Array.from({ length: 200 }, (_, n) => ({ name: "send", data: { n } })));
  const results = new Map<string, unknown>();
  const worker = scene.worker(async (job) => job.data.n * 2, { concurrency: 20, batchSize: 50 });
  worker.on("completed", (job: any, result: unknown) => results.set(job.id, result));
  await until(() => results.size === 200, "all are done");
  return { asExpected: jobs.every((job: any, n: number) => results.get(job.id) === n * 2) };
}

export async function routesJobsByTheirNames(scene: Scene) {
  const often = `${scene.name}-often`;
  const results: Record<string, unknown> = {};
  const app = scene.app({
    routes: {
      send: async (job: any) => ({ sent: job.data.to }),
      count: async (job: any) => job.data.n + 1,
      [often]: async (job: any) => job.data.to,
    },
  });
  app.on("completed", (job: any, result: unknown) => (results[job.name.replace(often, "often")] = result));
  await app.add("send", { to: "ada" });
  await app.addBulk([{ name: "count", data: { n: 1 } }]);
  await app.every(often, 100, { to: "grace" });
  await until(() => Object.keys(results).length === 3, "all three kinds have run");
  await app.removeCron(often);
  return results;
}
