/** The graph: its pane, its layout with the worker for that, its drawing. */

export { GraphPane } from "../../graph/pane";
