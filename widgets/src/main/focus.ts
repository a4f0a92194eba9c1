/** The keyboard focus: after a key press in the explorer, the focus stays in it. */

/** What has the focus in the tree of an element, which may be a shadow tree. */
export function focused(within: HTMLElement): Element | null {
  const tree = within.getRootNode();
  return tree instanceof ShadowRoot ? tree.activeElement : document.activeElement;
}

/**
 * Takes the focus where a click or a key has done away with what had it, or hidden it; else the next key would be one of the notebook's.
 * Gives back what stops it.
 */
export function keepFocus(root: HTMLElement): () => void {
  let last: HTMLElement | null = null;
  const onFocus = (event: FocusEvent) => {
    last = event.target as HTMLElement;
  };
  const onAct = () =>
    requestAnimationFrame(() => {
      if (last === null || (last.isConnected && last.getClientRects().length > 0)) return;
      const now = focused(root);
      if (now !== null && now !== last && now !== document.body) return;
      root.focus({ preventScroll: true });
    });
  root.addEventListener("focusin", onFocus);
  for (const name of ["click", "keydown"]) root.addEventListener(name, onAct, true);
  return () => {
    root.removeEventListener("focusin", onFocus);
    for (const name of ["click", "keydown"]) root.removeEventListener(name, onAct, true);
  };
}
