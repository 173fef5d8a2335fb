package analyze

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestReferencePage: docs/reference/findings.md equals the list of codes.
func TestReferencePage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# What is found about objects in their mesh

Generated from config-watcher's list of findings by ` + "`make golden`" + `. An object can be valid, and still refer to what is not there, or be left without an effect by an
older one. That is no reason to refuse it, since the missing part may come later: it is a warning, and it goes when what it is about is mended. Where warnings are told: [errors](../guide/errors.md#warnings).

` + "The code of a warning stands at the end of its line. The last column names the message with which `istioctl analyze` tells of the same.\n\n" +
		"| code | found | until it is mended | Istio |\n|---|---|---|---|\n")
	for _, d := range Descriptions() {
		istio := d.Istio
		if istio == "" {
			istio = "-"
		}
		fmt.Fprintf(&b, "| <a id=\"%s\"></a>`%s` | %s | %s | %s |\n", d.Code.Anchor(), d.Code, d.About, d.Effect, istio)
	}
	testkit.Golden(t, "../../../../docs/reference/findings.md", []byte(b.String()))
}

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
		HostNotFound, PortNotFound, SubsetNotFound, GatewayNotFound, DelegateNotFound, CredentialNotFound, CredentialUnusable, NamespaceNotFound,
		NothingSelected, VirtualServiceShadowed, RuleShadowed, ServerShadowed,
	} {
		if !known[code] {
			t.Errorf("%s is not described", code)
		}
	}
}
