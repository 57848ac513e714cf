// The stage of one scenario: makes queues, workers and the like, remembers each complaint, and closes everything.
import { Bunqueue, FlowProducer, Queue, QueueEvents, SandboxedWorker, Worker, connection } from "./client.ts";

export type Scenario = (scene: Scene) => Promise<unknown>;

export class Scene {
  // What `error` events said. The test that reads the outcome expects none.
  readonly errors: string[] = [];
  private readonly closings: (() => unknown)[] = [];

  // `name` names the scenario's main queue; others are told apart by a suffix.
  constructor(readonly name: string) {}

  queue(suffix = "", options: object = {}): any {
    return this.open(new Queue(this.name + suffix, { connection, ...options }));
  }

  worker(process: (job: any) => Promise<unknown>, options: object = {}, suffix = ""): any {
    return this.open(new Worker(this.name + suffix, process, { connection, ...options }));
  }

  sandboxedWorker(options: object): any {
    const worker = new SandboxedWorker(this.name, { connection, ...options });
    return this.open(worker, () => worker.stop());
  }

  async events(suffix = ""): Promise<any> {
    const events = this.open(new QueueEvents(this.name + suffix, { connection }));
    events.setMaxListeners(0);
    await events.waitUntilReady();
    return events;
  }

  // Queue and worker in one object.
  app(options: object): any {
    return this.open(new Bunqueue(this.name, { connection, ...options }));
  }

  flows(): any {
    return this.open(new FlowProducer({ connection }));
  }

  private open(subject: any, close = () => subject.close()): any {
    subject.on?.("error", (error: Error) => this.errors.push(String(error)));
    this.closings.push(close);
    return subject;
  }

  // The youngest first: a worker before the queue that it was made for.
  async close(): Promise<void> {
    for (const close of this.closings.reverse()) await close();
  }
}

// The moment of an event of a worker or of QueueEvents: its arguments.
export function once(emitter: any, event: string): Promise<any[]> {
  return new Promise((resolve) => emitter.once(event, (...args: any[]) => resolve(args)));
}
