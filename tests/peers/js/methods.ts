// Methods of Queue that need more than protocol 2.
import { sleep, until } from "./client.ts";
import { Scene, once } from "./scene.ts";

export async function keepsANameBesideItsData(scene: Scene) {
  const queue = scene.queue();
  const kinds: [string, unknown][] = [
    ["send", { to: "ada" }],
    ["send", { name: "Bob" }],
    ["send", [1, 2]],
    ["send", null],
    ["send", undefined],
    ["send", "text"],
    ["send", 7],
    ["default", { to: "ada" }],
    ["default", { name: "Bob" }],
  ];
  const added = await queue.addBulk(kinds.map(([name, data]) => ({ name, data })));
  const jobs = await Promise.all(added.map((job: any) => queue.getJob(job.id)));
  const page = await queue.getJobsAsync({ state: "waiting", start: 0, end: 100 });
  await jobs[0].updateData({ to: "grace", name: "Grace" });
  await jobs[1].updateData(["a list now"]);
  const updated = await Promise.all(added.slice(0, 2).map((job: any) => queue.getJob(job.id)));
  const both = (list: any[]) => list.map((job) => ({ name: job.name, data: job.data }));
  return { read: both(jobs), page: both(page), updated: both(updated) };
}

export async function refusesBadNames(scene: Scene) {
  const queue = scene.queue();
  const refusal = (name: unknown) =>
    queue.add(name, {}).then(
      () => "taken",
      (error: Error) => error.message,
    );
  return { empty: await refusal(""), long: await refusal("x".repeat(257)), fits: await refusal("x".repeat(256)) };
}

export async function namesTheJobsOfASchedule(scene: Scene) {
  const queue = scene.queue();
  const made = await queue.upsertJobScheduler(
    `${scene.name}-nightly`,
    { every: 3_600_000, immediately: true },
    { name: "report", data: { to: "ada" } },
  );
  const shown = await queue.getJobScheduler(`${scene.name}-nightly`);
  const listed = (await queue.getJobSchedulers()).filter((schedule: any) => schedule.id.includes(scene.name));
  const worker = scene.worker(async () => {});
  const [job] = await once(worker, "completed");
  const removed = await queue.removeJobScheduler(`${scene.name}-nightly`);
  return {
    names: [made.name, shown.name, ...listed.map((schedule: any) => schedule.name)],
    spawned: [job.name, job.data],
    every: shown.every,
    removed,
  };
}

export async function shows(scene: Scene) {
  const queue = scene.queue();
  const added = await queue.addBulk([1, 2, 3].map((n) => ({ name: `job-${n}`, data: { n } })));
  const names = async (options: object) =>
    (await queue.getJobsAsync({ state: "waiting", ...options })).map((job: any) => job.name);
  const rising = await names({ start: 0, end: 10, asc: true });
  const falling = await names({ start: 0, end: 10, asc: false });
  const newest = await names({ start: 0, end: 1, asc: false });
  const worker = scene.worker(async (job) => ({ n: job.data.n }));
  await until(async () => (await queue.getCompletedCount()) === 3, "all are done");
  await worker.close();
  const completed = await queue.getCompletedAsync(0, 10);
  return {
    rising,
    falling,
    newest,
    returnvalues: completed.map((job: any) => [job.name, job.returnvalue]).sort(),
    one: (await queue.getJob(added[0].id)).returnvalue,
  };
}

// Two jobs end among the dead letters, one after the other; `between` is a moment after the first.
async function bury(scene: Scene): Promise<{ queue: any; first: any; second: any; between: number }> {
  const queue = scene.queue();
  const worker = scene.worker(async () => {
    throw new Error("boom");
  });
  const fail = async (name: string, n: number) => {
    const job = await queue.add(name, { n }, { attempts: 1 });
    await until(async () => (await job.getState()) === "failed", "the job is dead");
    await sleep(20);
    return job;
  };
  const first = await fail("first", 1);
  const between = Date.now();
  await sleep(20);
  const second = await fail("second", 2);
  await worker.close();
  return { queue, first, second, between };
}

export async function readsDeadLetters(scene: Scene) {
  const { queue, between } = await bury(scene);
  const [letter] = await queue.getDlqAsync();
  const stats = await queue.getDlqStatsAsync();
  const names = async (filter?: object) => (await queue.getDlqAsync(filter)).map((letter: any) => letter.job.name);
  return {
    all: await names(),
    letter: [letter.job.name, letter.job.data, letter.reason, letter.error, letter.attempts.length],
    byReason: [await names({ reason: "max_attempts_exceeded" }), await names({ reason: "stalled" })],
    byTime: [await names({ olderThan: between }), await names({ newerThan: between })],
    byPlace: [await names({ limit: 1 }), await names({ offset: 1 })],
    stats: [stats.total, stats.byReason.max_attempts_exceeded, stats.byReason.stalled, Object.values(stats.byQueue)],
    times: stats.oldestEntry < between && between < stats.newestEntry,
  };
}

export async function retriesDeadLettersThatAFilterSelects(scene: Scene) {
  const { queue, first, second, between } = await bury(scene);
  const counts = [
    await queue.retryDlqByFilterAsync({ reason: "stalled" }),
    await queue.retryDlqByFilterAsync({ newerThan: between }),
  ];
  return { counts, states: [await first.getState(), await second.getState()] };
}

export async function removesADeadLetter(scene: Scene) {
  const { queue, first } = await bury(scene);
  const removed = await queue.removeDlqJobAsync(first.id);
  const again = await queue.removeDlqJobAsync(first.id);
  const left = (await queue.getDlqAsync()).map((letter: any) => letter.job.name);
  return { removed, again, left, job: await queue.getJob(first.id) };
}

export async function readsItsLimits(scene: Scene) {
  const queue = scene.queue();
  const read = async () => [
    await queue.getGlobalConcurrency(),
    await queue.getGlobalRateLimit(),
    await queue.isMaxed(),
    await queue.getRateLimitTtl(),
  ];
  const before = await read();
  await queue.setGlobalConcurrencyAsync(1);
  await queue.setGlobalRateLimitAsync(5, 60_000);
  const set = await read();
  const worker = scene.worker(() => new Promise((resolve) => setTimeout(resolve, 30_000)));
  const active = once(worker, "active");
  await queue.add("send", {});
  await active;
  const maxed = await queue.isMaxed();
  await queue.removeGlobalConcurrencyAsync();
  await queue.removeGlobalRateLimitAsync();
  const after = await read();
  await worker.close(true);
  return { before, set, maxed, after };
}

export async function freesDeduplicationKeys(scene: Scene) {
  const queue = scene.queue();
  const options = { deduplication: { id: "only" } };
  const first = await queue.add("send", {}, options);
  const duplicate = await queue.add("send", {}, options);
  const holder = await queue.getDeduplicationJobId("only");
  const freed = [await queue.removeDeduplicationKey("only"), await queue.removeDeduplicationKey("only")];
  const free = await queue.getDeduplicationJobId("only");
  const second = await queue.add("send", {}, options);
  const job = await queue.getJob(second.id);
  const byJob = [await job.removeDeduplicationKey(), await job.removeDeduplicationKey()];
  return {
    duplicateIsFirst: duplicate.id === first.id,
    holderIsFirst: holder === first.id,
    freed,
    free,
    secondIsNew: second.id !== first.id,
    byJob,
    count: await queue.countAsync(),
  };
}

export async function countsWhatIsFinished(scene: Scene) {
  const queue = scene.queue();
  const none = await queue.getMetrics("completed");
  scene.worker(async (job) => {
    if (job.name === "bad") throw new Error("boom");
  });
  await queue.addBulk(["good", "good", "bad"].map((name) => ({ name, data: {}, opts: { attempts: 1 } })));
  await until(async () => (await queue.getMetrics("failed")).meta.count === 1, "the failure is counted");
  await until(async () => (await queue.getMetrics("completed")).meta.count === 2, "the others are counted");
  const completed = await queue.getMetrics("completed", 0, -1);
  return {
    none: [none.meta.count, none.data, none.count],
    total: completed.data.reduce((sum: number, minute: number) => sum + minute, 0),
    isRecent: Date.now() - completed.meta.prevTS < 60_000,
    length: completed.count === completed.data.length,
  };
}

export async function trimsEvents(scene: Scene) {
  return { isNumber: typeof (await scene.queue().trimEvents(10)) === "number" };
}

// A program that drives its jobs itself, without a processor.
export async function finishesJobsByHand(scene: Scene) {
  const queue = scene.queue();
  const worker = scene.worker(async () => {}, { autorun: false });
  const ids = (await queue.addBulk([1, 2, 3, 4].map((n) => ({ name: `job-${n}`, data: { n } })))).map(
    (job: any) => job.id,
  );
  const jobs: any[] = [];
  for (const _ of ids) jobs.push(await worker.getNextJob("mine"));
  await queue.moveJobToCompleted(jobs[0].id, { done: true }, jobs[0].token);
  await queue.moveJobToFailed(jobs[1].id, new Error("boom"), jobs[1].token);
  const wrongToken = await queue.moveJobToWait(jobs[2].id, "somebody else's").then(
    () => "moved",
    (error: Error) => error.message,
  );
  const moved = await queue.moveJobToWait(jobs[2].id, jobs[2].token);
  await queue.moveJobToDelayed(jobs[3].id, Date.now() + 60_000, jobs[3].token);
  return {
    names: jobs.map((job) => job.name),
    wrongToken,
    moved,
    states: await Promise.all(ids.map((id: string) => queue.getJobState(id))),
    returnvalue: (await queue.getJob(ids[0])).returnvalue,
  };
}

export async function runsFinishedJobsAgain(scene: Scene) {
  const queue = scene.queue();
  const worker = scene.worker(async () => "done");
  const jobs = await queue.addBulk([1, 2, 3].map((n) => ({ name: `job-${n}`, data: { n } })));
  await until(async () => (await queue.getCompletedCount()) === 3, "all are done");
  await worker.close();
  await queue.retryJobs({ state: "completed", count: 2 });
  return {
    waiting: (await queue.getWaitingAsync(0, 10)).map((job: any) => job.name).length,
    completed: await queue.getCompletedCount(),
    names: (await Promise.all(jobs.map((job: any) => queue.getJob(job.id)))).map((job: any) => job.name),
  };
}

// One call of the processor for many jobs, of which one fails.
export async function worksBatches(scene: Scene) {
  const queue = scene.queue();
  const jobs = await queue.addBulk(
    Array.from({ length: 20 }, (_, n) => ({ name: `job-${n}`, data: { n }, opts: { attempts: 1 } })),
  );
  let calls = 0;
  scene.worker(
    async (job) => {
      calls++;
      for (const one of job.getBatch()) if (one.data.n === 7) one.setAsFailed(new Error("not seven"));
      return "done";
    },
    { batch: { size: 10, minSize: 10, timeout: 1_000 } },
  );
  await until(
    async () => (await queue.getCompletedCount()) + (await queue.getFailedCount()) === 20,
    "all are finished",
  );
  const states = await Promise.all(jobs.map((job: any) => job.getState()));
  const failed = await queue.getJob(jobs[7].id);
  return { calls, failed: [states[7], failed.failedReason], others: [...new Set(states.filter((_, n) => n !== 7))] };
}
