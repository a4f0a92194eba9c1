/** Two versions as a diff. */

export { DiffPane } from "../../panes/diff";
