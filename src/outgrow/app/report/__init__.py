"""One page about runs: see `outgrow.app.report.page`."""
