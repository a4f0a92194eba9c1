/** Comparing two versions: the list of changes, and the diff. */

export { ChangesPane } from "../../panes/changes";
export { DiffPane } from "../../panes/diff";
export { default as sheet } from "../../styles/diff.css";
