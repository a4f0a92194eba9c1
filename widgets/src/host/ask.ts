/** Requests a part of the page's code from the kernel, or from the saved page. */

import type { WidgetModel } from "./model";

interface Answer {
  part?: string;
  error?: string;
}

/**
 * The gzipped source of a part. @throws if the part does not exist, or if there is no answer in time because there is no kernel or it is
 * busy.
 */
export function askFor(model: WidgetModel, name: string, milliseconds: number): Promise<DataView> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      model.off("msg:custom", onAnswer);
    };
    const onAnswer = (answer: Answer, buffers: DataView[]) => {
      if (answer?.part !== name) return;
      stop();
      const block = buffers?.[0];
      if (answer.error || block === undefined) reject(new Error(answer.error || `no part ${name}`));
      else resolve(block);
    };
    const timer = setTimeout(() => {
      stop();
      reject(new Error(`${name} is not available, because no kernel answers`));
    }, milliseconds);
    model.on("msg:custom", onAnswer);
    model.send?.({ part: name });
  });
}
