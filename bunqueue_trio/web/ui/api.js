// Asks the server. Addresses are relative to the page, so that a prefix in front of it needs no setting.

const ROOT = new URL("../", location.href.split(/[?#]/)[0]);
const STORED = "bunqueue.token";

export class ApiError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

// Where the browser keeps nothing for us, the token lives as long as the page.
let token = "";
try {
  token = sessionStorage.getItem(STORED) ?? "";
} catch { /* stays empty */ }

export const hasToken = () => token !== "";

export function setToken(text) {
  token = text;
  try {
    if (text) sessionStorage.setItem(STORED, text);
    else sessionStorage.removeItem(STORED);
  } catch { /* see above */ }
}

export function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export const address = (path) => new URL(path, ROOT);

/** A segment of a path. Dots alone would be resolved away before anybody sees them. */
export const segment = (name) => encodeURIComponent(name);

/** The decoded answer; an ApiError with the server's words for what it refuses, whatever the status. */
export async function ask(method, path, body) {
  const options = { method, headers: headers(body ? { "Content-Type": "application/json" } : {}), cache: "no-store" };
  if (body) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(address(path), options);
  } catch {
    throw new ApiError("The server cannot be reached", 0);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new ApiError(`The server answered ${response.status}`, response.status);
  }
  if (!response.ok || answer?.ok === false) throw new ApiError(answer?.error ?? `Error ${response.status}`, response.status);
  return answer;
}

export const get = (path) => ask("GET", path);
export const post = (path, body) => ask("POST", path, body);

/** The health report, which also comes with the status of trouble. */
export async function health() {
  const response = await fetch(address("health"), { cache: "no-store" });
  return response.json();
}
