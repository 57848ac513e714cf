// FlowProducer: parents run after their children, and get their results.
import { until } from "./client.ts";
import { Scene } from "./scene.ts";

type Run = { name: string; children?: unknown[] };

// A worker of the scenario's queue that writes down what it runs, and in what order.
function runs(scene: Scene): Run[] {
  const done: Run[] = [];
  scene.worker(
    async (job) => {
      if (job.data.fails) throw new Error("boom");
      const children = Object.values(await job.getChildrenValues());
      done.push(children.length > 0 ? { name: job.name, children: children.sort() } : { name: job.name });
      return `${job.name}'s result`;
    },
    { concurrency: 5 },
  );
  return done;
}

function node(scene: Scene, name: string, children?: object[], opts?: object, data: object = { of: name }) {
  return { name, queueName: scene.name, data, opts, ...(children && { children }) };
}

function names(tree: any): object {
  return { name: tree.job.name, children: (tree.children ?? []).map(names) };
}

export async function addsATree(scene: Scene) {
  const flows = scene.flows();
  const tree = await flows.add(
    node(scene, "release", [node(scene, "build", [node(scene, "compile"), node(scene, "link")]), node(scene, "notes")]),
  );
  const states = await Promise.all(
    [tree, tree.children[0], tree.children[1]].map((part: any) => scene.queue().getJobState(part.job.id)),
  );
  const read = await flows.getFlow({ id: tree.job.id, queueName: scene.name });
  const shallow = await flows.getFlow({ id: tree.job.id, queueName: scene.name, depth: 1 });
  const done = runs(scene);
  await until(() => done.length === 5, "the whole tree has run");
  return { added: names(tree), states, read: names(read), shallow: names(shallow), done };
}

export async function addsSeveralTrees(scene: Scene) {
  const trees = await scene
    .flows()
    .addBulk([node(scene, "one", [node(scene, "one-child")]), node(scene, "two", [node(scene, "two-child")])]);
  const done = runs(scene);
  await until(() => done.length === 4, "both trees have run");
  return { added: trees.map(names), parents: done.filter((run) => run.children) };
}

export async function addsAChain(scene: Scene) {
  const steps = ["fetch", "process", "store"].map((name) => node(scene, name));
  const { jobIds } = await scene.flows().addChain(steps);
  const queue = scene.queue();
  const states = await Promise.all(jobIds.map((id: string) => queue.getJobState(id)));
  const done = runs(scene);
  await until(() => done.length === 3, "the chain has run");
  return { states, order: done.map((run) => run.name) };
}

export async function addsManyThenOne(scene: Scene) {
  const result = await scene.flows().addBulkThen([node(scene, "left"), node(scene, "right")], node(scene, "merge"));
  const queue = scene.queue();
  const merge = await queue.getJobState(result.finalId);
  const done = runs(scene);
  await until(() => done.length === 3, "all have run");
  return { parallel: result.parallelIds.length, merge, last: done[2] };
}

// Here the root runs first: `addTree` is a tree of followers.
export async function addsAFollowingTree(scene: Scene) {
  const { jobIds } = await scene
    .flows()
    .addTree(node(scene, "root", [node(scene, "left", [node(scene, "leaf")]), node(scene, "right")]));
  const done = runs(scene);
  await until(() => done.length === 4, "the tree has run");
  const order = done.map((run) => run.name);
  return { count: jobIds.length, first: order[0], leafAfterLeft: order.indexOf("leaf") > order.indexOf("left") };
}

export async function failsAParentWithItsChild(scene: Scene) {
  const tree = await scene
    .flows()
    .add(
      node(scene, "parent", [
        node(scene, "bad", undefined, { attempts: 1, failParentOnFailure: true }, { fails: true }),
      ]),
    );
  const queue = scene.queue();
  runs(scene);
  await until(async () => (await queue.getJobState(tree.job.id)) === "failed", "the parent has failed");
  return { child: await queue.getJobState(tree.children[0].job.id) };
}

export async function letsAParentIgnoreAFailure(scene: Scene) {
  const tree = await scene
    .flows()
    .add(
      node(scene, "parent", [
        node(scene, "bad", undefined, { attempts: 1, ignoreDependencyOnFailure: true }, { fails: true }),
        node(scene, "good"),
      ]),
    );
  const queue = scene.queue();
  const done = runs(scene);
  await until(async () => (await queue.getJobState(tree.job.id)) === "completed", "the parent has run");
  return { done };
}
