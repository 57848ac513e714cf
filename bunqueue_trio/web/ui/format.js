// Figures and times as people read them.

const number = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const count = (value) => (value < 10_000_000 ? number.format(value) : compact.format(value));

export function rate(value) {
  return value >= 100 ? number.format(Math.round(value)) : value.toFixed(value >= 10 || value === 0 ? 0 : 1);
}

export const absolute = (ms) => (Number.isFinite(ms) ? moment.format(ms) : "");
/** A day and a minute, for lists of moments. */
export const brief = (ms) => short.format(ms);
export const timeOfDay = (ms) => clockTime.format(ms);

const STEPS = [[1_000, "s"], [60_000, "min"], [3_600_000, "h"], [86_400_000, "d"]];

/** A length of time in its two largest units: "850 ms", "12 s", "3 min 5 s". */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "";
  const size = Math.max(0, Math.round(ms));
  if (size < 1_000) return `${size} ms`;
  let at = STEPS.length - 1;
  while (STEPS[at][0] > size) at -= 1;
  const [unit, name] = STEPS[at];
  const whole = Math.floor(size / unit);
  if (at === 0) return size < 10_000 && size % 1_000 >= 100 ? `${(size / 1_000).toFixed(1)} s` : `${whole} s`;
  const [smaller, smallerName] = STEPS[at - 1];
  const rest = Math.floor((size % unit) / smaller);
  return rest && whole < 10 ? `${whole} ${name} ${rest} ${smallerName}` : `${whole} ${name}`;
}

/** "5 s ago", "in 3 min", "now". */
export function relative(ms, now = Date.now()) {
  if (!Number.isFinite(ms)) return "";
  const away = Math.round((ms - now) / 1_000) * 1_000;
  if (Math.abs(away) < 1_000) return "now";
  const [largest] = duration(Math.abs(away)).match(/^[\d.]+ \w+/);
  return away > 0 ? `in ${largest}` : `${largest} ago`;
}

const TEXT_LIMIT = 100_000;

/** A value as indented JSON, cut where it would be too much to show. */
export function json(value) {
  const text = JSON.stringify(value, null, 2) ?? "";
  if (text.length <= TEXT_LIMIT) return text;
  return `${text.slice(0, TEXT_LIMIT)}\n… cut here: ${count(text.length)} characters in all`;
}

const NAME_LIMIT = 120;

/** The name that clients give a job: it stands beside its data, or in them. */
export function jobName(job) {
  const name = job?.name ?? job?.data?.name;
  return typeof name === "string" ? name.slice(0, NAME_LIMIT) : "";
}
