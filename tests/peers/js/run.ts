// Runs all scenarios of one file at once, each on queues of its own, and says what came of each.
//
// Usage: bun run.ts FILE [SCENARIO...]
// Says {"scenario", "outcome", "errors"} or {"scenario", "failure"} per exported function.
import { resolve } from "node:path";
import { say, sleep } from "./client.ts";
import { Scene, type Scenario } from "./scene.ts";

const [file, ...only] = process.argv.slice(2);
const scenarios: Record<string, Scenario> = await import(resolve(file));

// One that hangs must not take the others' outcomes along.
const LIMIT_MS = 40_000;

function giveUp(): never {
  throw new Error(`not finished within ${LIMIT_MS} ms`);
}

async function play(scenario: string): Promise<void> {
  const scene = new Scene(`${process.env.PEERS_PREFIX}-${scenario}`);
  try {
    const outcome = await Promise.race([scenarios[scenario](scene), sleep(LIMIT_MS).then(giveUp)]);
    await scene.close();
    say({ scenario, outcome, errors: scene.errors });
  } catch (failure) {
    say({ scenario, failure: failure instanceof Error ? failure.stack : String(failure), errors: scene.errors });
  }
}

const chosen = Object.keys(scenarios).filter((name) => only.length === 0 || only.includes(name));
await Promise.all(chosen.map(play));
process.exit(0);
