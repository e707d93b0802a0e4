// Numbers and addresses as texts; a missing number is a dash.

const MISSING = "–";

export function number(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return MISSING;
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text;
  if (x === 0) text = "0";
  else if (size >= 1e6 || size < 1e-4) text = x.toExponential(1);
  else if (size >= 1000) text = Math.round(x).toLocaleString("en");
  else text = String(Number(x.toPrecision(3)));
  return text.replace("-", "−");
}

export function percent(x) {
  return x === null || x === undefined || Number.isNaN(x) ? MISSING : `${Number((100 * x).toFixed(1))}%`;
}

export function interval(value) {
  if (!value || value.mean === null || value.mean === undefined) return MISSING;
  const { mean, low, high } = value;
  return low === null || low === undefined ? percent(mean) : `${percent(mean)} (${percent(low)} to ${percent(high)})`;
}

export function count(x) {
  return x === null || x === undefined ? MISSING : Math.round(x).toLocaleString("en");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return MISSING;
  if (seconds < 90) return `${number(seconds)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function when(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return iso || MISSING;
  return date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

// "10:42", as the clock on the wall says it.
export function clock(date) {
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function href(view, params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params))
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  const text = query.toString().replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3A", ":");
  return `#/${view}${text ? `?${text}` : ""}`;
}
