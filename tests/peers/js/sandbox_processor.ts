// Runs in a worker thread of its own, which SandboxedWorker makes.
export default async (job: any) => {
  if (job.data.fails) throw new Error("boom in the box");
  job.progress(50);
  return { name: job.name, data: job.data };
};
