/** Requests layouts: small ones are computed synchronously, large ones and Graphviz's in a worker, so that the page stays responsive. */

import type { Dot } from "./graphviz";
import { placeAll } from "./place";
import { prettier } from "./quality";
import type { Positions, Shape } from "./shape";

/** The source of the worker, inlined by the build; undefined in tests. */
declare const LAYOUT_WORKER: string | undefined;

/** Which layout to use: Graphviz's if it is better and fast, Graphviz's whenever possible, or never. */
export type Layouter = "auto" | "graphviz" | "layered";

/** Graphviz as the source of its module, for the worker, and as a function, for pages that do not allow workers. */
export interface Graphviz {
  source: string;
  dot(): Promise<Dot>;
}

export const NO_GRAPHVIZ = "Laid out without Graphviz: it is not loaded, or there are too many boxes.";

/** With at most this many boxes and edges, a layout takes less time than a round trip to the worker. */
const FEW = 300;
/**
 * With at most this many boxes, ports and edges, Graphviz takes less than half a second; the larger limit applies if the user asks for it.
 */
const PRETTY = 1000;
const PRETTY_IF_ASKED = 2500;
/** If Graphviz takes longer than this, our own layout is shown first; in milliseconds. */
const PATIENCE = 300;

let worker: Worker | null | undefined;
let asked = 0;
const waiting = new Map<number, { shape: Shape; by: Layouter; done: (positions: Positions) => void }>();

/**
 * Undefined before it is loaded. Null if loading failed, for example because the kernel was busy; choosing Graphviz explicitly tries again.
 */
let graphviz: Graphviz | null | undefined;
let loading: Promise<void> | undefined;

/**
 * Passes the layout of what is visible to `done`, synchronously if it is fast or there is no worker.
 * @param load loads Graphviz. Until that succeeds the layout is our own; `done` is then called a second time.
 */
export function place(
  shape: Shape,
  by: Layouter,
  load: () => Promise<Graphviz>,
  done: (positions: Positions, isAgain: boolean) => void,
): void {
  const size = shape.parent.length + shape.from.length;
  const most = by === "layered" ? 0 : by === "graphviz" ? PRETTY_IF_ASKED : PRETTY;
  if (graphviz === null && by === "graphviz") graphviz = loading = undefined;
  const own = (then: (positions: Positions) => void) => {
    if (size <= FEW) then(placeAll(shape));
    else work(shape, "layered", null, then);
  };
  if (size > most || graphviz === null) {
    own((positions) => done(positions, false));
    return;
  }
  if (graphviz !== undefined) {
    let isShown = false;
    const show = (positions: Positions) => {
      done(positions, false);
      isShown = true;
    };
    const timer = setTimeout(() => !isShown && size <= FEW && show(placeAll(shape)), PATIENCE);
    work(shape, by, graphviz, (positions) => {
      clearTimeout(timer);
      if (!isShown) show(positions);
      else if (positions.curved) done(positions, true);
    });
    return;
  }
  own((positions) => done(positions, false));
  loading ??= load().then(
    (found) => {
      graphviz = found;
    },
    () => {
      graphviz = null;
    },
  );
  loading.then(() => {
    if (graphviz) work(shape, by, graphviz, (positions) => positions.curved && done(positions, true));
  });
}

/** Computes a layout in the worker, or synchronously if there is none. */
function work(shape: Shape, by: Layouter, dot: Graphviz | null, done: (positions: Positions) => void): void {
  const found = theWorker();
  if (found !== null) {
    asked += 1;
    waiting.set(asked, { shape, by, done });
    found.postMessage([asked, shape, by, dot?.source ?? ""]);
  } else if (dot === null) done(placeAll(shape));
  else
    dot.dot().then(
      (program) => done(prettier(shape, placeAll(shape), program, by === "graphviz")),
      (error) => {
        console.warn(error);
        graphviz = null;
        done(placeAll(shape));
      },
    );
}

/** The worker's answer: a layout, and the error if Graphviz was requested but failed. */
export type Answer = [id: number, positions: Positions, error: string];

/** The worker that all panes share, created on first use; null on pages that do not allow workers. */
function theWorker(): Worker | null {
  if (worker !== undefined) return worker;
  worker = null;
  if (typeof LAYOUT_WORKER === "undefined" || typeof Worker === "undefined") return null;
  try {
    const url = URL.createObjectURL(new Blob([LAYOUT_WORKER], { type: "text/javascript" }));
    worker = new Worker(url);
    worker.onmessage = ({ data: [id, positions, error] }: MessageEvent<Answer>) => {
      if (error) {
        console.warn(error);
        graphviz = null;
      }
      const request = waiting.get(id);
      waiting.delete(id);
      request?.done(positions);
    };
    // Some pages refuse a worker only when it starts: then compute the pending layouts here.
    worker.onerror = () => {
      worker = null;
      const left = [...waiting.values()];
      waiting.clear();
      for (const { shape, by, done } of left) work(shape, by, null, done);
    };
  } catch {
    worker = null;
  }
  return worker;
}
