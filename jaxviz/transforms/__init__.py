"""Program transforms, one module each: its typed rule table and its interpreter."""
