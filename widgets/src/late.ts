/** Says so where the kernel does not answer: it may be busy, or there is none any more. */

export const NO_ANSWER = "No answer from the kernel yet; it may be busy or gone.";

/** Milliseconds until it is said. */
export const PATIENCE = 8000;

/** Calls back once if nobody has stopped it by then. */
export class Late {
  private timer: ReturnType<typeof setTimeout> | undefined;

  start(say: () => void): void {
    this.stop();
    this.timer = setTimeout(say, PATIENCE);
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}
