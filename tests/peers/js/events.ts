// QueueEvents and waitUntilFinished.
import { until } from "./client.ts";
import { Scene, once } from "./scene.ts";

const EVENTS = [
  "waiting",
  "active",
  "progress",
  "completed",
  "failed",
  "retried",
  "delayed",
  "removed",
  "paused",
  "resumed",
  "duplicated",
  "waiting-children",
];

// A list that fills with what QueueEvents tell: ["event", its fields].
function record(events: any): [string, any][] {
  const told: [string, any][] = [];
  for (const event of EVENTS) events.on(event, (fields: any) => told.push([event, fields]));
  return told;
}

function about(told: [string, any][], id: string): [string, object][] {
  return told.filter(([, fields]) => fields.jobId === id).map(([event, { jobId, ...fields }]) => [event, fields]);
}

export async function tellAJobsLife(scene: Scene) {
  const queue = scene.queue();
  const told = record(await scene.events());
  let tries = 0;
  scene.worker(async (job) => {
    if (job.name === "good") {
      await job.updateProgress(30, "a third");
      return { sent: true };
    }
    if (job.name === "delays" && tries++ === 0) {
      await job.moveToDelayed(Date.now() + 50, job.token);
      throw new Error("not counted: the job has gone");
    }
    if (job.name === "bad") throw new Error("boom");
  });
  const good = await queue.add("good", { to: "ada" });
  const bad = await queue.add("bad", { to: "ada" }, { attempts: 2, backoff: 10 });
  const delays = await queue.add("delays", {});
  await until(() => about(told, good.id).length === 4, "the good job is finished");
  await until(() => about(told, bad.id).filter(([event]) => event === "failed").length === 2, "the bad job has failed");
  await until(() => about(told, delays.id).some(([event]) => event === "completed"), "the delayed job has run");
  return {
    good: about(told, good.id),
    bad: about(told, bad.id),
    delays: about(told, delays.id).map(([event]) => event),
  };
}

export async function tellWhatHappensToAQueue(scene: Scene) {
  const queue = scene.queue();
  const told = record(await scene.events());
  await queue.pauseAsync();
  await queue.resumeAsync();
  const job = await queue.add("send", {}, { deduplication: { id: "only" } });
  await queue.add("send", {}, { deduplication: { id: "only" } });
  await job.remove();
  await until(() => told.some(([event]) => event === "removed"), "the removal is told");
  const marks = told.map(([event, { jobId, ...fields }]) => [event, jobId === job.id, fields]);
  return { marks };
}

export async function tellOfAJobThatParksItself(scene: Scene) {
  const queue = scene.queue();
  const told = record(await scene.events());
  scene.worker(async (job) => {
    if (job.name === "child" || Object.keys(await job.getChildrenValues()).length > 0) return "done";
    await job.moveToWaitingChildren(job.token);
    await queue.add("child", {}, { parent: { id: job.id, queue: scene.name } });
    throw new Error("not counted: the job has gone");
  });
  const job = await queue.add("parent", {}, { attempts: 1 });
  await until(() => about(told, job.id).some(([event]) => event === "completed"), "the parent has run");
  return { events: about(told, job.id).map(([event]) => event) };
}

export async function ofOneQueueTellNothingOfAnother(scene: Scene) {
  const told = record(await scene.events());
  await scene.queue("-other").add("send", {});
  const job = await scene.queue().add("send", {});
  await until(() => told.length > 0, "the job is told of");
  return { told: told.map(([event, fields]) => [event, fields.jobId === job.id]) };
}

// A third is finished before the call, a third runs during it, a third is not begun.
export async function waitAThousandTimes(scene: Scene) {
  const queue = scene.queue();
  const events = await scene.events();
  const jobs = await queue.addBulk(Array.from({ length: 999 }, (_, n) => ({ name: "send", data: { n } })));
  jobs.push(await queue.add("send", { n: 999 }));
  const atOnce: (() => void)[] = [];
  let mayFinish = false;
  let finished = 0;
  const worker = scene.worker(
    async (job) => {
      if (job.data.n >= 333 && !mayFinish) await new Promise<void>((resolve) => atOnce.push(resolve));
      return { n: job.data.n };
    },
    { concurrency: 333, batchSize: 333, autorun: false },
  );
  worker.on("completed", () => finished++);
  worker.run();
  await until(() => finished === 333 && atOnce.length === 333, "a third is done and another begun");
  const waits = jobs.map((job: any) => job.waitUntilFinished(events, 25_000));
  mayFinish = true;
  for (const resolve of atOnce) resolve();
  const results = await Promise.allSettled(waits);
  return {
    asExpected: results.filter((result: any, n: number) => result.value?.n === n).length,
    firstMistake: results.find((result: any, n: number) => result.value?.n !== n),
  };
}

// Each job is waited for the moment it is made, as a caller who wants an answer does.
export async function waitForEachJobAsItIsMade(scene: Scene) {
  const queue = scene.queue();
  const events = await scene.events();
  scene.worker(async (job) => job.data.n, { concurrency: 10 });
  const results: number[] = [];
  await Promise.all(
    Array.from({ length: 100 }, async (_, n) => {
      const job = await queue.add("send", { n });
      results[n] = (await job.waitUntilFinished(events, 25_000)) as number;
    }),
  );
  return { asExpected: results.filter((result, n) => result === n).length };
}

// A worker whose lease ends is told so, and so is everybody else.
export async function tellOfStalls(scene: Scene) {
  const queue = scene.queue();
  const events = await scene.events();
  let wake = () => {};
  const worker = scene.worker(() => new Promise<void>((resolve) => (wake = resolve)), {
    lockDuration: 400,
    skipLockRenewal: true,
  });
  await worker.waitUntilReady();
  const stalled = [once(events, "stalled"), once(worker, "stalled")];
  const active = once(worker, "active");
  const job = await queue.add("send", {});
  await active;
  worker.pause();
  const [[told], [id]] = await Promise.all(stalled);
  wake();
  return { isTheJob: [told.jobId === job.id, id === job.id] };
}
