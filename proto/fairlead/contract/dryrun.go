package contract

// DryRunMetric is the counter of the requests and TCP connections that policies in dry run would have refused, with its
// tags, in this order. xds-server has proxies count, and `fairlead authz dry-run` reads it.
//
// DryRunDeny is the name of the DENY rule that would have refused, "ns[…]-policy[…]-rule[N]", empty if none would have.
// DryRunAllow is "denied" if ALLOW policies in dry run would have refused: none of their rules matched. DryRunCaller is
// the URI of the caller's certificate, empty without one.
const (
	DryRunMetric = "istio_fairlead_dry_run_refusals"
	DryRunDeny   = "deny"
	DryRunAllow  = "allow"
	DryRunCaller = "source_principal"
)
