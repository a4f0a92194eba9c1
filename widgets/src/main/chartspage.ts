/** The charts of reports on a page without a kernel, such as the site. It is a classic script, since a page opened from a file cannot load modules. */

import { attend } from "./charts";

if (document.readyState === "loading") addEventListener("DOMContentLoaded", attend);
else attend();
