/** The switches of *what if*. */

export { WhatIfPane } from "../../panes/whatif";
