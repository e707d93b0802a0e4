// Where the page's data comes from: the server on this machine, or what a report carries within itself.

const embedded = typeof document === "undefined" ? null : document.getElementById("marft-data");
const POLL = 2000; // milliseconds between two looks at what is new

// ---- the functions every view calls; all are async

export const runs = () => source.runs();
export const metrics = (run) => source.metrics(run);
export const evaluations = (run) => source.evaluations(run);
export const glossary = () => source.glossary();
export const team = (run, iteration = null) => source.team(run, iteration);
export const episodes = (run, query = {}) => source.episodes(run, query);
export const episode = (run, id) => source.episode(run, id);
export const task = (run, task) => source.task(run, task);
export const health = (run) => source.health(run);

// `callback(changed, answer)`: the runs whose stamp changed, and the whole new answer of `runs()`. Returns what ends it.
export function subscribe(callback) {
  return source.subscribe(callback);
}

// `callback(when)`: the server has not answered three polls in a row, and last did so at `when`; null: it does again.
// Returns what ends it; a report is never without its server.
export function watchServer(callback) {
  watchers.add(callback);
  if (missed >= PATIENCE) callback(answered);
  return () => watchers.delete(callback);
}

// ---- live: asked of the server

const PATIENCE = 3; // polls without an answer, until whoever watches the server is told
const watchers = new Set();
let answered = null;
let missed = 0;

function heard(there) {
  const gone = missed >= PATIENCE;
  missed = there ? 0 : missed + 1;
  if (there) answered = new Date();
  if (gone !== missed >= PATIENCE) for (const callback of [...watchers]) callback(there ? null : answered);
}

async function ask(name, words = {}) {
  const asked = new URLSearchParams(Object.entries(words).filter(([, word]) => given(word)));
  let answer;
  try {
    answer = await fetch(`/api/${name}?${asked}`, { cache: "no-store" });
  } catch {
    throw new Error("The server does not answer; is `marft view` still running?");
  }
  heard(true);
  let body = null;
  try {
    body = await answer.json();
  } catch {
    throw new Error(`The server's answer to ${name} is not JSON (status ${answer.status}).`);
  }
  if (!answer.ok) throw new Error(body.error ?? `The server refused ${name} (status ${answer.status}).`);
  return body;
}

// One poll serves all subscribers; it rests while the page is hidden
const subscribers = new Set();
let stamps = null;
let timer = null;

async function poll() {
  timer = null;
  if (!document.hidden) {
    const before = answered;
    try {
      const answer = await ask("runs");
      const seen = new Map(answer.runs.map((run) => [run.id, run.stamp]));
      const before = stamps;
      stamps = seen;
      const changed = before === null ? [] : answer.runs.filter((run) => before.get(run.id) !== run.stamp);
      if (changed.length) for (const callback of [...subscribers]) callback(changed, answer);
    } catch {
      // The server may be gone for a moment; whoever asks it for something is told
      if (answered === before) heard(false);
    }
  }
  if (subscribers.size && timer === null) timer = setTimeout(poll, POLL);
}

const live = {
  runs: async () => {
    const answer = await ask("runs");
    stamps ??= new Map(answer.runs.map((run) => [run.id, run.stamp]));
    return answer;
  },
  metrics: (run) => ask("metrics", { run }),
  evaluations: (run) => ask("evaluations", { run }),
  glossary: () => ask("glossary"),
  team: (run, iteration) => ask("team", { run, iteration }),
  episodes: (run, query) => ask("episodes", { ...plain(query), run }),
  episode: (run, id) => ask("episode", { run, id }),
  task: (run, task) => ask("task", { run, task }),
  health: (run) => ask("health", { run }),
  subscribe(callback) {
    subscribers.add(callback);
    timer ??= setTimeout(poll, POLL);
    return () => {
      subscribers.delete(callback);
      if (!subscribers.size) {
        clearTimeout(timer);
        timer = null;
      }
    };
  },
};

// ---- embedded: what the report carries, filtered and sorted here by the rules of view/index.py

// Runs of an opened report: {runs, glossary, metrics: {RUN: …}, …}; `data` may be a promise
export function reportSource(data) {
  const of = async (part, run) => {
    const found = (await data)[part][run];
    if (found === undefined) throw new Error(`run: there is no run '${run}' in this report`);
    return found;
  };
  return {
    runs: async () => (await data).runs,
    metrics: (run) => of("metrics", run),
    evaluations: (run) => of("evaluations", run),
    glossary: async () => (await data).glossary,
    async team(run, iteration) {
      const { whole, iterations } = await of("team", run);
      if (!given(iteration)) return whole;
      const none = { episodes: 0, edges: [], influence: influenceUntil(iterations, Number(iteration)) };
      return { ...whole, ...(iterations[iteration] ?? none) };
    },
    async episodes(run, query) {
      const held = await of("episodes", run);
      return page(held.items, (item) => searchable(held.records[item.id]), plain(query));
    },
    async episode(run, id) {
      const { records } = await of("episodes", run);
      if (!Object.hasOwn(records, id)) throw new Error(`id: there is no episode '${id}' in this report`);
      return records[id];
    },
    async task(run, task) {
      const { items } = await of("episodes", run);
      const found = items.filter((item) => item.task.id === task);
      if (!found.length) throw new Error(`task: there is no episode of '${task}' in this report`);
      return found.map(({ id, split, iteration, success, reward, failed }) => ({
        id, split, iteration, success, reward, failed,
      }));
    },
    health: (run) => of("health", run),
    subscribe: () => () => {}, // a report never changes
  };
}

// Each filter is one rule, as in `_conditions` of view/index.py
const OUTCOMES = {
  won: (item) => !item.failed && item.success >= 0.5,
  lost: (item) => !item.failed && item.success < 0.5,
  failed: (item) => item.failed,
};
const CHANGES = {
  up: (item) => item.change !== null && item.change > 0,
  down: (item) => item.change !== null && item.change < 0,
  same: (item) => item.change === 0,
  new: (item) => item.change === null && !item.failed,
};
const FILTERS = {
  split: (item, split) => item.split === split,
  iteration: (item, iteration) => item.iteration === Number(iteration),
  agent: (item, agent) => item.agents.includes(agent), // who spoke in it
  task: (item, task) => item.task.id === task,
  outcome: (item, outcome) => OUTCOMES[outcome](item),
  change: (item, change) => CHANGES[change](item), // of the reward, since the task was last played
  search: (item, search, said) => said(item).includes(search.toLowerCase()), // anywhere in prompt or replies
};

// An evaluation after n iterations stands just before the training play of iteration n, as in view/index.py
const time = (item) => 2 * item.iteration + (item.split === "train" ? 1 : 0);
const rising = (value) => (a, b) => value(a) - value(b);
const falling = (value) => (a, b) => value(b) - value(a);
const unknownLast = (value) => rising((item) => (value(item) === null ? 1 : 0));
const failedLast = rising((item) => (item.failed ? 1 : 0));

// Each order is a list of comparisons, the first that tells two episodes apart decides; then the newest comes first,
// and within one file the order of its lines (`items` are oldest first, and sorting keeps the order of equals)
const ORDERS = {
  newest: [],
  oldest: [rising(time)],
  best: [failedLast, falling((item) => item.reward)],
  worst: [failedLast, rising((item) => item.reward)],
  risen: [unknownLast((item) => item.change), falling((item) => item.change)],
  fallen: [unknownLast((item) => item.change), rising((item) => item.change)],
  longest: [falling((item) => item.tokens)],
  unlikely: [unknownLast((item) => item.mean_logprob), rising((item) => item.mean_logprob)],
};

// One page of the items that a query asks for; `items` are oldest first, `said(item)` is its text in small letters
export function page(items, said, query) {
  const words = Object.entries(FILTERS).filter(([key]) => given(query[key]));
  for (const [key, allowed] of [["outcome", OUTCOMES], ["change", CHANGES], ["sort", ORDERS]]) {
    if (given(query[key]) && !Object.hasOwn(allowed, query[key])) {
      throw new Error(`${key}: there is no '${query[key]}'; choose from ${Object.keys(allowed).join(", ")}`);
    }
  }
  const kept = items.filter((item) => words.every(([key, rule]) => rule(item, query[key], said)));
  const order = [...ORDERS[query.sort || "newest"], falling(time)];
  kept.sort((a, b) => {
    for (const compare of order) {
      const found = compare(a, b);
      if (found) return found;
    }
    return 0;
  });
  const size = Number(query.size || 50);
  const start = Number(query.page || 0) * size;
  return { total: kept.length, items: kept.slice(start, start + size) };
}

// All text of an episode that a search looks through, in small letters, as in view/episodes.py; kept once made
const texts = new WeakMap();
export function searchable(record) {
  if (!texts.has(record)) {
    const parts = [record.task.prompt ?? ""];
    for (const action of record.actions) parts.push(action.text ?? "", ...(action.tool_results ?? []));
    parts.push(record.answer ?? "", record.error?.who ?? "", record.error?.reason ?? "");
    texts.set(record, parts.join("\n").toLowerCase());
  }
  return texts.get(record);
}

// The influence that was known after at most so many iterations
function influenceUntil(iterations, last) {
  const known = Object.keys(iterations).map(Number).filter((each) => each <= last);
  return known.length ? iterations[Math.max(...known)].influence : {};
}

// What stands in a report: gzip in base64, which no text of a model can break out of
export async function open(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const given = (word) => word !== null && word !== undefined && word !== "";
const plain = (query) => (query instanceof URLSearchParams ? Object.fromEntries(query) : query);

const source = embedded ? reportSource(open(embedded.textContent)) : live;
