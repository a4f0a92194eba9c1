/** Work in slices, so that the page can draw and respond to input in between. */

/** Work that may be left wherever it yields, which is every few hundred items. */
export type Sliced<T> = Generator<void, T, void>;

/** Milliseconds of work between two turns of the page: less than a frame, with what a frame itself takes. */
const SLICE = 10;

/** All of it, now. */
export function atOnce<T>(work: Sliced<T>): T {
  for (;;) {
    const step = work.next();
    if (step.done) return step.value;
  }
}

/** All of it, as the page has time from its next turn on; what is not wanted any more is left, and the promise stays open. */
export async function inSlices<T>(work: Sliced<T>, isWanted: () => boolean = () => true): Promise<T> {
  for (;;) {
    await turn();
    if (!isWanted()) await new Promise(() => {});
    const end = performance.now() + SLICE;
    do {
      const step = work.next();
      if (step.done) return step.value;
    } while (performance.now() < end);
  }
}

const waiting: (() => void)[] = [];
let channel: MessageChannel | undefined;

/** The next turn, after what the page has to do; a timer would wait some milliseconds more. */
export function turn(): Promise<void> {
  if (channel === undefined) {
    channel = new MessageChannel();
    channel.port1.onmessage = () => waiting.shift()?.();
  }
  const { port2 } = channel;
  return new Promise((done) => {
    waiting.push(done);
    port2.postMessage(null);
  });
}
