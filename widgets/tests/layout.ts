/** What jsdom has not: sizes. */

import { vi } from "vitest";

/** Every element that is watched is of this size. */
export function layOut(width: number, height: number): void {
  vi.stubGlobal(
    "ResizeObserver",
    class {
      constructor(private readonly callback: (entries: { contentRect: object }[]) => void) {}
      observe(): void {
        this.callback([{ contentRect: { width, height } }]);
      }
      unobserve(): void {}
      disconnect(): void {}
    },
  );
}
