// What can be done to a job or a queue, each with its question.

import { ask, post, segment } from "./api.js";
import { act } from "./dialogs.js";
import { count } from "./format.js";

export const REPLAY_MAX = 1_000;

export function setPaused(queue, pause) {
  return act(
    pause
      ? { title: `Pause ${queue}?`, text: "Its jobs stay where they are; none is handed out until it is resumed. Jobs that run go on.", action: "Pause" }
      : { title: `Resume ${queue}?`, text: "Its jobs are handed out again at once.", action: "Resume" },
    () => post(`queues/${segment(queue)}/${pause ? "pause" : "resume"}`),
    () => `${queue} is ${pause ? "paused" : "running"}`,
  );
}

const promote = (job) => act(
  { title: "Run it now?", text: `Job ${job.id} will not wait for its time any longer.`, action: "Promote" },
  () => post(`jobs/${segment(job.id)}/promote`),
  () => "Job promoted",
);

const cancel = (job) => act(
  { title: "Cancel this job?", text: `Job ${job.id} is removed for good, with its data.`, action: "Cancel the job", danger: true },
  () => ask("DELETE", `jobs/${segment(job.id)}`),
  () => "Job cancelled",
);

const counted = (answer, word) => {
  if (answer.count === 0) throw new Error(`Nothing was ${word}: it has gone, or its unique key is taken`);
  return answer;
};

export const replay = (queue, job) => act(
  { title: "Retry this job?", text: `Job ${job.id} goes back to ${queue} with all its attempts.`, action: "Retry" },
  async () => counted(await post(`queues/${segment(queue)}/dlq/retry`, { jobId: job.id }), "retried"),
  () => "Job is back in its queue",
);

const runAgain = (job) => act(
  { title: "Run it again?", text: `Job ${job.id} has completed. It is run once more, with the data it had.`, action: "Run again" },
  async () => counted(await post(`queues/${segment(job.queue)}/retry-completed`, { id: job.id }), "run again"),
  () => "Job is back in its queue",
);

export const replayOldest = (queue, total) => act(
  {
    title: "Replay dead letters", action: "Replay",
    text: `The oldest go back to ${queue}, with all their attempts. It has ${count(total)}.`,
    number: { label: `How many, at most ${count(REPLAY_MAX)}`, value: Math.min(total, 100) || 1, max: REPLAY_MAX },
  },
  (howMany) => post(`queues/${segment(queue)}/dlq/replay`, { count: howMany }),
  (answer) => `${count(answer.count)} replayed`,
);

/** What may be done to a job in its state: [word, question, is it a removal]. */
export function actionsOf(job) {
  switch (job.state) {
    case "failed": return [["Retry", () => replay(job.queue, job)]];
    case "completed": return [["Run again", () => runAgain(job)]];
    case "delayed": return [["Promote", () => promote(job)], ["Cancel", () => cancel(job), true]];
    case "waiting": case "prioritized": case "paused": case "waiting-children": return [["Cancel", () => cancel(job), true]];
    default: return [];
  }
}
