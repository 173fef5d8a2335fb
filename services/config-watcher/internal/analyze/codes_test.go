package analyze

import "testing"

// TestDescriptions: every code that a check reports has one description.
func TestDescriptions(t *testing.T) {
	known := map[Code]bool{}
	for _, d := range Descriptions() {
		if known[d.Code] || d.About == "" || d.Effect == "" || d.Severity != Warning {
			t.Errorf("incomplete or twice: %+v", d)
		}
		known[d.Code] = true
	}
	for _, code := range []Code{
		HostNotFound, RuleHostNotFound, PortNotFound, SubsetNotFound, GatewayNotFound, DelegateNotFound, CredentialNotFound, CredentialUnusable,
		NamespaceNotFound,
		NothingSelected, VirtualServiceShadowed, RuleShadowed, ServerShadowed, IngressClassNotFound,
	} {
		if !known[code] {
			t.Errorf("%s is not described", code)
		}
	}
}
