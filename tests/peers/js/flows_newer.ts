// What FlowProducer and Queue do with parents since protocol 3.
import { until } from "./client.ts";
import { Scene } from "./scene.ts";

// All or nothing: neither half of a refused flow is there.
export async function refusesAFlowWhole(scene: Scene) {
  const queue = scene.queue();
  await queue.add("taken", {}, { jobId: `${scene.name}-taken` });
  const reason = await scene
    .flows()
    .add({
      name: "parent",
      queueName: scene.name,
      data: {},
      children: [
        { name: "child", queueName: scene.name, data: {} },
        { name: "child", queueName: scene.name, data: {}, opts: { jobId: `${scene.name}-taken` } },
      ],
    })
    .catch((error: Error) => error.message);
  return { reason, count: await queue.countAsync() };
}

export async function addsAChildToAParentThatIsThere(scene: Scene) {
  const queue = scene.queue();
  const parent = await queue.add("parent", {});
  const child = await queue.add("child", { n: 1 }, { parent: { id: parent.id, queue: scene.name } });
  const parked = await parent.getState();
  const order: string[] = [];
  scene.worker(async (job) => {
    order.push(job.name);
    return { of: job.name, children: Object.values(await job.getChildrenValues()) };
  });
  await until(async () => (await parent.getState()) === "completed", "the parent has run");
  const read = await queue.getJob(parent.id);
  return { parked, order, returnvalue: read.returnvalue, childState: await child.getState() };
}

// A processor makes children for its own job, and lets it wait for them.
export async function waitsForChildrenOfItsOwn(scene: Scene) {
  const queue = scene.queue();
  const order: string[] = [];
  scene.worker(async (job) => {
    order.push(job.name);
    if (job.name !== "parent" || Object.keys(await job.getChildrenValues()).length > 0) return "done";
    const parked = await job.moveToWaitingChildren(job.token);
    order.push(`parked ${parked}`);
    await queue.add("child", {}, { parent: { id: job.id, queue: scene.name } });
    throw new Error("not counted: the job has gone");
  });
  const job = await queue.add("parent", {}, { attempts: 1 });
  await until(async () => (await job.getState()) === "completed", "the parent has run");
  return { order };
}

// A worker in another language runs this tree; its queue is known to the test.
export async function addsATreeForOthers(scene: Scene) {
  const child = (name: string) => ({ name, queueName: scene.name, data: { of: name } });
  const tree = await scene
    .flows()
    .add({ name: "parent", queueName: scene.name, data: { of: "parent" }, children: [child("left"), child("right")] });
  const queue = scene.queue();
  await until(async () => (await queue.getJobState(tree.job.id)) === "completed", "the other has run the tree");
  const parent = await queue.getJob(tree.job.id);
  return { name: parent.name, returnvalue: parent.returnvalue };
}
