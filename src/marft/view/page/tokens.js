// What is known of each token of a reply, and where a number falls on its colour scale: numbers in, numbers out.

const BOUNDS = {
  advantage: [0.1, 0.25, 0.5, 1, 2, 3, 5, 10],
  ratio: [1.02, 1.05, 1.1, 1.25, 1.5, 2, 4, 10, 100],
};

const PLAIN = "This run was made before tokens were kept with the episodes, so the reply is plain text.";

export const COLOURS = [
  { value: "none", text: "Nothing" },
  { value: "logprob", text: "Log-probability" },
  { value: "advantage", text: "Advantage" },
  { value: "ratio", text: "Ratio" },
];

/** [{piece, logprob, p, advantage, ratio}] (null: not known), or null for a reply whose tokens were not kept. */
export function tokensOf(action) {
  const { pieces, logprobs, advantage, ratio } = action;
  if (!Array.isArray(pieces)) return null;
  const each = (list, index) => (Array.isArray(list) && list.length === pieces.length ? (list[index] ?? null) : null);
  return pieces.map((piece, index) => {
    const logprob = each(logprobs, index);
    return {
      piece,
      logprob,
      p: logprob === null ? null : Math.exp(logprob),
      advantage: typeof advantage === "number" ? advantage : each(advantage, index),
      ratio: each(ratio, index),
    };
  });
}

/** Why the reply cannot be coloured by this, in a sentence; null when it can be. */
export function missing(action, colour) {
  if (colour === "none") return null;
  const tokens = tokensOf(action);
  if (tokens === null) return PLAIN;
  if (!tokens.length || tokens.some((token) => token[colour] !== null)) return null;
  if (colour === "logprob") return "No log-probabilities were recorded for this reply.";
  if (colour === "ratio" && action.advantage !== undefined && action.advantage !== null) {
    return "The ratio was not measured on this reply; it is measured on a quarter of what is learnt from.";
  }
  const what = colour === "ratio" ? "ratio" : "advantage";
  return `There is no ${what}: nothing was learnt from this reply (evaluation, failure, a frozen agent, or left out).`;
}

/** The sentence that holds for every reply, so that it is said once; null where some can be coloured. */
export function missingOf(actions, colour) {
  const sentences = new Set(actions.map((action) => missing(action, colour)));
  return sentences.size === 1 ? [...sentences][0] : null;
}

/** One decision or many: {mean, count} of the advantage, null where none was recorded. */
export function advantageOf(action) {
  if (typeof action.advantage === "number") return { mean: action.advantage, count: 1 };
  const numbers = (Array.isArray(action.advantage) ? action.advantage : []).filter((each) => each !== null);
  if (!numbers.length) return null;
  return { mean: numbers.reduce((sum, each) => sum + each, 0) / numbers.length, count: numbers.length };
}

/** The scale that replies share: {colour, bound}; the smallest round bound that holds nineteen tokens of twenty. */
export function scaleOf(actions, colour) {
  if (colour !== "advantage" && colour !== "ratio") return { colour, bound: 1 };
  const far = actions
    .flatMap((action) => tokensOf(action) ?? [])
    .map((token) => distance(token[colour], colour))
    .filter((each) => each !== null)
    .sort((a, b) => a - b);
  const most = far.length ? far[Math.ceil(far.length * 0.95) - 1] : 0;
  const bounds = BOUNDS[colour];
  return { colour, bound: bounds.find((bound) => distance(bound, colour) >= most) ?? bounds.at(-1) };
}

function distance(value, colour) {
  if (value === null || value === undefined) return null;
  return Math.abs(colour === "ratio" ? Math.log(Math.max(value, 1e-9)) : value);
}

/** {side: "seq" | "low" | "high", depth: 0 to 1} of a number; null where it is not known. */
export function shade(token, scale) {
  const value = token[scale.colour];
  if (value === null || value === undefined) return null;
  if (scale.colour === "logprob") return { side: "seq", depth: 1 - token.p };
  const middle = scale.colour === "ratio" ? 1 : 0;
  const depth = Math.min(1, distance(value, scale.colour) / distance(scale.bound, scale.colour));
  return { side: value < middle ? "low" : "high", depth };
}

/** The marks of the legend, [{text, side, depth}], from low to high. */
export function legendOf(scale) {
  if (scale.colour === "logprob") {
    return [0, 0.25, 0.5, 0.75, 1].map((p) => ({ text: `${p}`, side: "seq", depth: 1 - p }));
  }
  const ratio = scale.colour === "ratio";
  const text = (part) => {
    if (!ratio) return part === 0 ? "0" : `${part < 0 ? "−" : "+"}${short(Math.abs(part) * scale.bound)}`;
    return part === 0 ? "1" : short(scale.bound ** part);
  };
  return [-1, -0.5, 0, 0.5, 1].map((part) => ({
    text: text(part),
    side: part < 0 ? "low" : "high",
    depth: Math.abs(part),
  }));
}

const short = (number) => `${Number(number.toPrecision(3))}`;

/** The exact numbers of a token in words, one after another. */
export function wordsOf(token) {
  const sign = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);
  const words = [];
  if (token.logprob !== null) words.push(["log-probability", minus(token.logprob.toFixed(4))], ["p", percent(token.p)]);
  if (token.advantage !== null) words.push(["advantage", sign(token.advantage)]);
  if (token.ratio !== null) words.push(["ratio", token.ratio.toFixed(3)]);
  return words;
}

const minus = (text) => text.replace("-", "−");
const percent = (p) => (p < 0.001 ? p.toExponential(1) : p.toFixed(3));
