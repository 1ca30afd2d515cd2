"""What walls cost: each module measures one thing, and one writes the page."""
