// What the page's scripts get from Python, and what they give each other. Times are in seconds.

/** A stage's value; `Screen.value` of ui/screen.py makes it, `packed` of ui/panels.py sends it as `Packed`. */
export interface StageValue {
  status: { text: string; kind: "" | "busy" | "error"; fraction: number | null };
  /** The baseline, and one other lane. */
  lanes: LaneValue[];
  verdict: Verdict;
  /** What to run of the chosen lane in an engine. */
  deploy: Deploy | null;
  difference: Difference | null;
  drafters: DraftersTable | null;
  /** The words of a button that agrees to a download; "" without one. */
  offer: string;
  banner: string;
  /** The messages up to the one that is answered, where there are more than that one. */
  conversation: Message[];
  /** Whether a turn can be added to it. */
  goes_on: boolean;
  /** "recorded": the run that ships with the page; "alone": nothing of what was shown before stays beside it. */
  kind: "" | "recorded" | "alone";
  /** Whether the page begins to replay by itself: once after a run; in a loop what was opened with the page. */
  replay: "" | "once" | "loop";
  sampled: boolean;
  /** Model, device and date, for the picture; and the beginning of the prompt. */
  ran: string;
  asked: string;
}

export interface Message {
  role: string;
  text: string;
}

/** `rest`: the value as JSON, without the logs, which grow apart from it. */
export interface Packed {
  rest: string;
  logs: string[];
}

export interface LaneValue {
  name: string;
  /** "Standard" or "Speculative". */
  title: string;
  /** Where its tokens come from, in words. */
  how: string;
  label: string;
  state: "" | "waiting" | "running" | "done" | "stopped";
  /** Whether the limit of tokens ended it. */
  cut: boolean;
  figures: Figure[];
  /** A line a round, each the JSON of a `Round`; it only grows. */
  log: string;
  /** Once the lane has ended. */
  timing: Timing | null;
  /** The same: the parts of the output, each with its tokens; none where it is an answer alone. */
  segments: [Segment, number][];
}

export type Segment = "thinking" | "tool call" | "code" | "answer";

export interface Timing {
  gaps: Gaps | null;
  /** The median pass over one token. */
  pass_s: number | null;
}

/** Times between output tokens. `together`: how many tokens came with the one before. */
export interface Gaps {
  n: number;
  p50_s: number;
  p95_s: number;
  p99_s: number;
  together: number;
}

/** A figure as shown, and what it means. */
export interface Figure {
  label: string;
  value: string;
  unit: string;
  meaning: string;
}

/** Where the lanes' outputs differ first: a token of the output, from 0, of `total` of the baseline. `expected`: they were
 * sampled. */
export interface Difference {
  index: number;
  margin: number | null;
  texts: string[];
  total: number;
  expected: boolean;
}

export interface Verdict {
  figure: string;
  meaning: string;
  /** The range of the speed-up and the runs behind it; "" without a speed-up. */
  runs: string;
  terms: Terms | null;
  repeatable: boolean;
  trust: "" | "doubtful" | "holds";
  badges: string[];
  /** Whether the outputs are the same, and the passes. */
  sentences: string[];
  /** What else there is to say, below the text. */
  notes: string[];
}

/** Speed-up = tokens per check ÷ cost of a check × prefill; the cost and its parts are in standard steps. */
export interface Terms {
  speedup: number;
  tokens_per_pass: number;
  cost: number;
  verify: number | null;
  draft: number | null;
  other: number | null;
  prefill: number;
}

/** `text`: to paste, in the engine's form; `note`: what it gives, or that it was not measured. `drafter`, `lookahead`: what
 * measures it here, where it was not; else "" and 0. `lane`: the name of its lane, where another than the shown one has. */
export interface Deploy {
  drafter: string;
  lookahead: number;
  lane: string;
  engine: string;
  text: string;
  note: string;
}

export interface DraftersTable {
  /** Which is the fastest, as far as it is clear. */
  verdict: string;
  caption: string;
  head: string[];
  rows: DrafterRow[];
  /** The name of the lane beside the baseline. */
  chosen: string;
  ready: boolean;
  skipped: string[];
}

/** A lane; one that has not answered yet has a name alone. */
export interface DrafterRow {
  lane: string;
  speedup?: string;
  tokens_per_pass?: string;
  acceptance?: string;
  cost?: string;
  runs_in?: string;
  memory?: string;
  output?: string;
  note?: string;
  best?: boolean;
  /** The speed-up and the ends of its interval. */
  bar?: [number, number, number] | null;
  outcome?: "faster" | "slower" | "unclear" | null;
}

/** A round of a recorded trace. `after`: the end of the text before it. */
export interface Pictured {
  title: string;
  after: string;
  round: Round;
}

/** A line of a lane's log (views/stage.py). What is unknown or false is left out. */
export interface Round {
  drafted: DraftToken[];
  /** The target's own token. */
  own?: Token;
  tree?: true;
  /** How many draft tokens the other exact rule would have kept. */
  otherRule?: number;
  times: { start: number; draft?: number; verify?: number; end: number };
}

export type Kind = "plain" | "accepted" | "rejected" | "unverified" | "correction" | "bonus";

/** `p`, `q`: the target's and the drafter's probability. `rank`: the target's choice among the drafter's, from 1; 0 if it
 * is not in the drafter's vocabulary. `draw`: the uniform number that decided. `bound`: the chance that it is compared
 * with, where that is not p ÷ q. */
export interface Token {
  id?: number;
  text: string;
  kind: Kind;
  special?: true;
  p?: number;
  q?: number;
  margin?: number;
  rank?: number;
  draw?: number;
  /** A grammar forced it. */
  forced?: true;
  bound?: number;
  /** In the draft, from 1: the depth in a tree. */
  position?: number;
  /** The index in `drafted` of the token that it follows, -1 for none; left out where that is the one before. */
  parent?: number;
}

export interface DraftToken extends Token {
  position: number;
}

/** A token that speculative sampling decided. */
export interface Decided extends Token {
  draw: number;
  p: number;
  q: number;
}

/** As the tooltip tells it. `at`: its index in the output. `segment`: what it is part of, where there are several. */
export interface ShownToken extends Token {
  round: number;
  place: string;
  at?: number;
  segment?: Segment;
}

/** A token's element. `spaces`: how many leading characters stand before it, in `lead`. */
export interface TokenNode extends HTMLElement {
  token: ShownToken;
  spaces: number;
  lead?: Text;
}

/** A round's element. `spans`: the tokens of the output. */
export interface RoundNode extends HTMLSpanElement {
  log: Round;
  spans: TokenNode[];
}

/** What the parts of the stage tell each other, so that every part follows every other. */
export interface Signals {
  /** A round was chosen (from 1; 0 chooses none). */
  select: Which;
  /** The pointer is over the token at this index of the output; -1 for none. */
  hover: { lane: number; token: number };
  /** The replay shows this second; Infinity shows everything. `share`: of the drafting lane's round that plays slowly, how
   * much has passed; else 0. */
  seek: { time: number; share: number };
  /** The timeline shows these seconds, from so many pixels on. */
  view: Span & { left: number };
}

export interface Which {
  lane: number;
  round: number;
}

/** From one second to another. */
export interface Span {
  from: number;
  to: number;
}

/** What Gradio's HTML component gives a script; `V` is the type of its value. */
export interface Component<V> {
  element: HTMLElement;
  props: { value: V };
  watch: (name: "value", act: () => void) => void;
  trigger: Press;
}

/** Sends an event to the page's handlers. */
export type Press = (name: string, data?: object) => void;

/** The controls' defaults, by their names; and for each pair those that it sets. */
export interface Defaults {
  usual: Record<string, ControlValue>;
  pairs: Record<string, Record<string, ControlValue>>;
}

export type ControlValue = string | number | boolean | null;
