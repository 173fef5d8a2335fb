package meshconfig

import (
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
)

// Roots that agents could not use are refused where the mesh says them, by field and with a remedy.
func TestCACertificates(t *testing.T) {
	root := fmt.Sprintf("%q", testkit.PKI(t).RootPEM)
	leaf, err := testkit.PKI(t).NewSVID("a", "b").Current()
	if err != nil {
		t.Fatal(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	for field, text := range map[string]string{
		"caCertificates[0].pem":             "caCertificates: [{pem: x}]",
		"caCertificates[1].pem":             fmt.Sprintf("caCertificates: [{pem: %s}, {pem: %q}]", root, leaf.CertPEM),
		"caCertificates[2].pem":             fmt.Sprintf("caCertificates: [{pem: %s}, {pem: %s}, {pem: %q}]", root, root, key),
		"caCertificates[0]":                 "caCertificates: [{trustDomains: [a]}]",
		"caCertificates[0].spiffeBundleUrl": "caCertificates: [{spiffeBundleUrl: 'http://b.example.com'}]",
		"caCertificates[1].spiffeBundleUrl": fmt.Sprintf("caCertificates: [{pem: %s}, {spiffeBundleUrl: 'https://u:p@b.example.com'}]", root),
		"caCertificates[0].trustDomains[1]": fmt.Sprintf("caCertificates: [{pem: %s, trustDomains: [a, UPPER]}]", root),
		"trustDomainAliases[0]":             fmt.Sprintf("trustDomainAliases: [UPPER]\ncaCertificates: [{pem: %s}]", root),
		"caCertificates": "caCertificates: [" + strings.Repeat("{spiffeBundleUrl: 'https://b'}, ", contract.MaxMeshRoots+1) +
			"]",
	} {
		config, _, problems := Parse("mesh.yaml", []byte(text))
		if config != nil || len(problems) != 1 || problems[0].Field != field || problems[0].Remedy == "" {
			t.Errorf("%s: %v, want one problem of %s", text, problems, field)
		}
		if strings.Contains(fmt.Sprint(problems), "u:p@") {
			t.Errorf("the password is told: %v", problems)
		}
	}
	large := fmt.Sprintf("caCertificates: [{pem: %q}]", string(testkit.PKI(t).RootPEM)+strings.Repeat("\n", contract.MaxMeshRootsBytes))
	if _, _, problems := Parse("mesh.yaml", []byte(large)); len(problems) != 1 || problems[0].Field != "caCertificates" {
		t.Errorf("too large: %v", problems)
	}
	good := fmt.Sprintf("trustDomainAliases: [old.example.com]\ncaCertificates:\n- {pem: %s, trustDomains: [partner.example.com]}\n- "+
		"{spiffeBundleUrl: 'https://b.example.com/'}\n", root)
	config, warnings, problems := Parse("mesh.yaml", []byte(good))
	if len(problems) > 0 || len(warnings) > 0 || len(config.GetCaCertificates()) != 2 {
		t.Errorf("good ones: %v, %v", warnings, problems)
	}
	_, warnings, problems = Parse("mesh.yaml", []byte(fmt.Sprintf("caCertificates: [{pem: %s, certSigners: [a]}]", root)))
	if len(problems) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0].Field, "certSigners") {
		t.Errorf("certSigners: %v, %v", warnings, problems)
	}
}
