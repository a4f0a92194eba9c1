/** Two versions as a diff. */

export { DiffPane } from "../../panes/diff";
export { default as sheet } from "../../styles/diff.css";
