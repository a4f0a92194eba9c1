/** Work in slices, so that the page can draw and respond to input in between. */

/** Work that can be interrupted wherever it yields, which is every few hundred items. */
export type Sliced<T> = Generator<void, T, void>;

/** How long a slice runs, in milliseconds: less than a frame, which itself takes some time. */
const SLICE = 10;

/** Runs all of it now. */
export function atOnce<T>(work: Sliced<T>): T {
  for (;;) {
    const step = work.next();
    if (step.done) return step.value;
  }
}

/** Runs the work in slices, starting in the next task. If it is no longer wanted it stops, and the promise never settles. */
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

/** The next task; a timer would wait a few milliseconds longer. */
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
